"""Begin a plug-in from an example that runs unchanged."""

from __future__ import annotations

from pathlib import Path

from ropewalk.harness.errors import UserError
from ropewalk.harness.names import article
from ropewalk.harness.plugins import names

EXAMPLES = Path(__file__).parent / "examples"


def new(example: str, name: str, folder: str | Path = "") -> Path:
    """Write NAME.py, a copy of an example: method, bands, task, report or encoding.

    Raises UserError for a name that is invalid or taken, and where the file exists.
    """
    kind = "method" if example == "bands" else example
    if not name.isidentifier() or name in names(kind):
        raise UserError(
            f"{name!r} is not a new name for {article(kind)}; write letters, digits and _, as in "
            f"my_{kind}."
        )
    file = Path(folder) / f"{name}.py"
    text = (EXAMPLES / f"{example}.py").read_text(encoding="utf-8")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text.replace(f'"""{example}:', f'"""{name}:', 1))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None
    return file
