"""``ropewalk new``: write the first file of a user's plug-in."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import COMPLETE, screen

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
    "report": (
        "Make it of any run:",
        "ropewalk report RUN --report {file}",
    ),
}


def method(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a scaling method of ten lines that runs as it is.

    Args:
        name: The method's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    return _begin("method", name, out)


def bands(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a method that moves relative positions and runs as it is.

    Args:
        name: The method's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    return _begin("bands", name, out)


def task(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a task that runs as it is.

    Args:
        name: The task's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    return _begin("task", name, out)


def report(name: str, /, *, out: Path = Path()) -> int:
    """Write NAME.py, a report that runs as it is.

    Args:
        name: The report's name; the file is NAME.py.
        out: The folder it goes to; default: this one.
    """
    return _begin("report", name, out)


def _begin(what: str, name: str, out: Path) -> int:
    from harness.methods.template import begin

    file = begin(what, name, out)
    given = file if file.is_absolute() else f"./{file}"
    told, *commands = (line.format(file=given, name=name) for line in NEXT[what])
    text = "\n".join([f"Wrote {file}. {told}", *(f"  {command}" for command in commands)])
    screen.print(text, highlight=False, markup=False, soft_wrap=True)
    return COMPLETE
