"""``ropewalk new``: write the first file of a user's plug-in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.cli.console import Done, screen
from harness.cli.output import command

METHOD = (
    "Does it keep the contract, what does it do, how far does it carry:",
    "ropewalk check {file}",
    "ropewalk inspect --scaling none {file} --length 4x --out figures",
    "ropewalk run --scaling none {file}",
)
NEXT = {
    "method": METHOD,
    "bands": METHOD,
    "task": (
        "Measure it; a report of its run, later, names the file again:",
        "ropewalk run --scaling none yarn --task {file} --out results/{name}",
        "ropewalk report results/{name} --task {file}",
    ),
    "encoding": (
        "Does it keep the contract; train it beside another, and measure both:",
        "ropewalk check {file}",
        "python scripts/train_encodings.py --encodings rope {file} --minutes 3",
        "ropewalk run --model training/encodings/rope-seed1 training/encodings/{name}-seed1 \\",
        "  --scaling none --trust-remote-code --out results/{name}",
    ),
    "report": (
        "Make it of any run:",
        "ropewalk report RUN --report {file}",
    ),
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
    from harness.api.new import new as copy_example

    file = copy_example(kind, name, out)
    given = file if file.is_absolute() else f"./{file}"
    what, *commands = (line.format(file=given, name=name) for line in NEXT[kind])
    text = "\n".join([f"Wrote {file}. {what}", *(f"  {command}" for command in commands)])
    screen.print(text, highlight=False, markup=False, soft_wrap=True)
    return Done(file)
