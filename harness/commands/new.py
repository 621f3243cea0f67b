"""``ropewalk new``: begin a plug-in from an example that runs unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ropewalk.harness.errors import UserError, article
from ropewalk.harness.plugins import names
from ropewalk.harness.sweep.spec import OUT

EXAMPLES = Path(__file__).parent / "examples"
NEXT = {
    "method": "ropewalk check {file}",
    "bands": "ropewalk check {file}",
    "task": "ropewalk run --scaling none yarn --task {file}",
    "encoding": "ropewalk check {file}",
    "report": "ropewalk report RUN --report {file}",
}


@dataclass(frozen=True)
class NewFile:
    """The file that was written, and the command to try next."""

    file: Path
    next: str

    def __str__(self) -> str:
        return f"Wrote {self.file}. Next: {self.next}"


def new(
    kind: Literal["method", "bands", "task", "report", "encoding"],
    name: str,
    /,
    *,
    out: Annotated[Path, OUT] = Path(),
) -> NewFile:
    """Write NAME.py, a working plug-in of about ten lines.

    Args:
        kind: The kind of plug-in. bands is a method that moves relative positions.
        name: Its name; the file is NAME.py.
        out: The folder it goes to.
    """
    plugin = "method" if kind == "bands" else kind
    if not name.isidentifier() or name in names(plugin):
        raise UserError(
            f"{name!r} is not a new name for {article(plugin)}; write letters, digits and _, as in "
            f"my_{plugin}."
        )
    file = Path(out) / f"{name}.py"
    text = (EXAMPLES / f"{kind}.py").read_text(encoding="utf-8")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text.replace(f'"""{kind}:', f'"""{name}:', 1))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None
    return NewFile(file, NEXT[kind].format(file=file if file.is_absolute() else f"./{file}"))
