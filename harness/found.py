"""The file of a found method: what ``--scaling ./found.json`` names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import UserError, reason
from harness.reading import read_regular

LARGEST = 2**20  # bytes; a table of factors has some thousand


def found_in(name: str, options: str = "") -> tuple[str, dict[str, str]]:
    """Return the method that a file names, and options beside those it has there.

    One with LongRoPE's two lists is ``longrope`` of them; so is one with ``layers``, such lists for
    each layer. The path of these is an option apart: it may have a comma.

    Raises UserError for a file that has neither, and for options given behind it.
    """
    path = Path(name)
    if options:
        raise UserError(f"method file {path} has its options in it; leave out {options!r}.")
    try:
        table: Any = json.loads(read_regular(path, limit=LARGEST))
    except FileNotFoundError:
        raise UserError(f"method file {path} does not exist.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"method file {path} cannot be read as JSON: {reason(error)}.") from None
    named = table.get("scaling") if isinstance(table, dict) else None
    if isinstance(named, str) and not named.endswith(".json"):
        return named, {}
    if isinstance(table, dict) and (
        "layers" in table or {"short_factor", "long_factor"} <= table.keys()
    ):
        return "longrope", {"factors": str(path)}
    raise UserError(
        f'method file {path} names no method: it needs "scaling", as ropewalk tune writes it, or'
        " short_factor and long_factor, or layers, a list of such tables."
    )
