"""One file a row, or a few of a kind: ``measure(setting) -> list[Row]``. The file is the entry.

Rows of one kind of device alone say so: ``DEVICE = "cpu"`` or ``"cuda"``.
"""
