"""Results as plain JSON, by one rule for every command, and the schema of each command's.

A dataclass is an object of its fields, or of the names in its ``JSON``, which may be properties. A
table is an array of rows. A path is a string. What is no finite number is null.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal

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


Schema = dict[str, Any]
SCALARS: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    Path: {"type": "string"},
    type(None): {"type": "null"},
    float: {"type": ["number", "null"]},
    pd.DataFrame: {"type": "array", "items": {"type": "object"}},
    Any: {},
    object: {},
}


def schema(kind: Any, defined: dict[str, Schema]) -> Schema:
    """Return the schema of a type; that of a class is added to ``defined`` and referred to."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema(part, defined) for part in arguments]}
    if origin is tuple and arguments[-1] is not ...:
        parts = [schema(part, defined) for part in arguments]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    return _of_class(kind, origin or kind, arguments, defined)


def _of_class(
    kind: Any, origin: type, arguments: Sequence[Any], defined: dict[str, Schema]
) -> Schema:
    if fields := fields_of(kind):
        if kind.__name__ not in defined:
            defined[kind.__name__] = {}  # of a class that has itself
            defined[kind.__name__] = _object(kind, fields, defined)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema((*arguments, Any)[1], defined)}
    if issubclass(origin, Sequence | Set):
        return {"type": "array", "items": schema((*arguments, Any)[0], defined)}
    if hasattr(kind, "tolist"):  # of NumPy and torch
        return {"type": "array"}
    raise TypeError(f"{kind} has no form in JSON")


def _object(kind: Any, fields: Sequence[str], defined: dict[str, Schema]) -> Schema:
    hints = typing.get_type_hints(kind)
    for name in fields:
        if name not in hints:
            hints[name] = typing.get_type_hints(getattr(kind, name).fget)["return"]
    about = (kind.__doc__ or "").partition("\n\n")[0]
    return {
        "description": " ".join(about.split()),
        "type": "object",
        "properties": {name: schema(hints[name], defined) for name in fields},
        "required": list(fields),
        "additionalProperties": False,
    }


def results() -> dict[str, Any]:
    """Return the type of the result of every command."""
    from harness.api.calibrate import Calibration
    from harness.api.compare import Comparison, PublishedComparison
    from harness.api.describe import Description
    from harness.api.report import Reports
    from harness.api.reproduce import Reproduction
    from harness.api.run import MeasuredRun, PlanSummary
    from harness.api.tune import Tuned
    from harness.inspection.inspect import Inspection
    from harness.methods import Finding
    from harness.select.recommend import Recommendation
    from harness.serve._export import Export

    return {
        "run": MeasuredRun | list[PlanSummary],
        "report": Reports,
        "recommend": Recommendation | None,
        "tune": Tuned | None,
        "calibrate": Calibration,
        "export": Export,
        "doctor": list[Finding],
        "inspect": Inspection,
        "check": list[Finding],
        "compare": Comparison | PublishedComparison,
        "publish": list[Path],
        "reproduce": Reproduction | None,
        "list": dict[str, dict[str, str]] | list[Description],
        "new": Path,
    }


def document(command: str) -> Schema:
    """Return the schema of what a command prints with --json: its result, or an error."""
    defined: dict[str, Schema] = {}
    note = {
        "type": "object",
        "properties": {"text": SCALARS[str], "warning": SCALARS[bool]},
        "required": ["text", "warning"],
    }
    sentences = {"type": "array", "items": SCALARS[str]}
    properties = {
        "ropewalk": {**SCALARS[str], "description": "The version."},
        "command": {"enum": [command]},
        "status": {**SCALARS[int], "description": "The exit status."},
        "notes": {"type": "array", "items": note, "description": "What it says on the way."},
        "result": schema(results()[command], defined),
        "error": {
            "type": "object",
            "properties": {"message": SCALARS[str], "problems": sentences},
            "required": ["message", "problems"],
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": ["ropewalk", "command", "status", "notes"],
        "oneOf": [{"required": ["result"]}, {"required": ["error"]}],
        "additionalProperties": False,
        "$defs": defined,
    }
