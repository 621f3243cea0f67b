"""Read the tables of numbers that some methods take from a file."""

import json
from collections.abc import Mapping
from pathlib import Path


def read_table(path: str, what: str) -> Mapping[str, object]:
    """Return the JSON object of a file; raise ValueError, calling the file ``what``, for no such.

    It is for tables that are too large for an option; their numbers are in the fingerprint.
    """
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the {what} file {path} cannot be read as JSON: {error}") from error
    if not isinstance(table, dict):
        raise ValueError(f"the {what} file {path} must hold one JSON object")
    return table
