"""``ropewalk new``: a file to begin a plug-in of one's own with."""

from __future__ import annotations

from pathlib import Path

from harness.commands._screen import COMPLETE, screen


def method(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a scaling method of ten lines that runs as it is.

    Args:
        name: The method's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    from harness.beginning import FREQUENCIES

    return _begin(name, out, FREQUENCIES)


def bands(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a method that moves relative positions and runs as it is.

    Args:
        name: The method's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    from harness.beginning import BANDS

    return _begin(name, out, BANDS)


def _begin(name: str, out: Path, text: str) -> int:
    from harness.beginning import begin_method

    file = begin_method(name, out, text)
    given = file if file.is_absolute() else f"./{file}"
    told = (
        f"Wrote {file}. Does it keep the contract, what does it do, how far does it carry:\n"
        f"  ropewalk check {given}\n"
        f"  ropewalk inspect --scaling none {given} --length 4x --out figures\n"
        f"  ropewalk run --scaling none {given}"
    )
    screen.print(told, highlight=False, markup=False, soft_wrap=True)
    return COMPLETE
