"""One file a row, or a few of a kind: ``measure(setting) -> list[Row]``. The file is the entry."""
