"""What ``ropewalk calibrate`` measured of a model's heads, read from its file."""

from typing import Any

import torch

from scaling._files import read_table
from scaling.types import Rope

OUTLIERS, NORMS = "outlier_shares", "pair_norms"


def read_heads(path: str, name: str, rope: Rope) -> torch.Tensor:
    """Return one table of a file: float64 ``(layers, heads)``, of norms ``(layers, heads, pairs)``.

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
