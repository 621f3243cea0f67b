"""Results as plain JSON, by one rule for every command.

A dataclass is an object of its fields, or of the names in its ``JSON``, which may be properties. A
table is an array of rows. A path is a string. What is no finite number is null.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pandas as pd


def plain(value: Any) -> Any:
    """Return a result as what JSON has: objects, arrays, strings, numbers, true, false and null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, pd.DataFrame):
        return [plain(row) for row in value.astype(object).to_dict("records")]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy and torch
        return plain(value.tolist())
    return _parts(value)


def _parts(value: Any) -> Any:
    if fields := fields_of(type(value)):
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain(part) for part in value]
    if pd.isna(value):  # pd.NA, pd.NaT
        return None
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the names of what JSON has of a dataclass or a named tuple; none of other types."""
    if dataclasses.is_dataclass(kind):
        return getattr(kind, "JSON", tuple(field.name for field in dataclasses.fields(kind)))
    return getattr(kind, "_fields", ())
