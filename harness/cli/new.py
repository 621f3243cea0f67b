"""``ropewalk new``: write the first file of a user's plug-in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ropewalk.harness.cli.console import Done, screen
from ropewalk.harness.cli.output import command

NEXT = {
    "method": "ropewalk check {file}",
    "bands": "ropewalk check {file}",
    "task": "ropewalk run --scaling none yarn --task {file}",
    "encoding": "ropewalk check {file}",
    "report": "ropewalk report RUN --report {file}",
}


@command
def new(
    kind: Literal["method", "bands", "task", "report", "encoding"],
    name: str,
    /,
    *,
    out: Path = Path(),
) -> Done:
    """Write NAME.py, a working plug-in of about ten lines.

    Args:
        kind: The kind of plug-in. bands is a method that moves relative positions.
        name: Its name; the file is NAME.py.
        out: The folder it goes to.
    """
    from ropewalk.harness.api.new import new as copy_example

    file = copy_example(kind, name, out)
    given = file if file.is_absolute() else f"./{file}"
    screen.print(f"Wrote {file}. Next: {NEXT[kind].format(file=given)}", soft_wrap=True)
    return Done(file)
