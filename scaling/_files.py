"""Read the tables of numbers that some methods take from a file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.scaling.types import Rope

OUTLIERS, NORMS = "outlier_shares", "pair_norms"  # the tables that ``ropewalk calibrate`` writes


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


def read_heads(path: str, name: str, rope: Rope) -> torch.Tensor:
    """Return a table of ``ropewalk calibrate``: float64 ``(layers, heads)``, norms also by pair.

    Raises ValueError for a file that cannot be read, and for the table of another model.
    """
    table: Any = read_table(path, "heads")
    try:
        numbers = torch.tensor(table[name], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the heads file {path} has no table {name}; ropewalk calibrate writes one"
        ) from error
    shape = (rope.layers, rope.heads, rope.rotary_dim // 2)[: numbers.dim()]
    if numbers.dim() != (2 if name == OUTLIERS else 3) or numbers.shape != shape:
        raise ValueError(
            f"the heads file {path} is of another model: its {name} are {tuple(numbers.shape)}, and"
            f" this one has {rope.layers} layers of {rope.heads} heads"
        )
    if not bool(numbers.isfinite().all()) or bool((numbers < 0).any()):
        raise ValueError(f"the heads file {path}: {name} must be finite and not negative")
    return numbers
