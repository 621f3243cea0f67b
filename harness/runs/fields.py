"""The names, numbers and facts that a record may hold."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from harness.files import MIB
from harness.runs.store import LINE

LONGEST = 4096  # characters of a name, which tables and figures show whole
MOST = 2**62  # of what is counted
LETTER, NUMBER = 6, 26  # bytes that one may take in a line of JSON


def _is_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError("should be printable")
    return text


def _is_name(text: str) -> str:
    if len(_is_text(text)) > LONGEST:
        raise ValueError(f"has {len(text):,} characters, at most {LONGEST:,} are allowed")
    return text


def is_fact(value: Any) -> Any:
    """Return what a record may hold as a fact; raise ValueError for anything else."""
    if isinstance(value, str):
        value.encode()  # a ValueError of half a letter, which no file holds
        return value
    if type(value) in (int, float) and _is_number(value):
        return value
    numbers = value if isinstance(value, list) else [value]
    if set(map(type, numbers)) == {float} and all(map(math.isfinite, numbers)):
        return value  # as losses are: twice as fast
    if value is not None and not all(map(_is_number, numbers)):
        raise ValueError("should be a text, a finite number, a list of numbers or None")
    return value


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63  # what a column of a table holds
    return isinstance(value, float) and math.isfinite(value)


Text = Annotated[str, AfterValidator(_is_text), Field(strict=True)]
Name = Annotated[str, AfterValidator(_is_name), Field(strict=True)]
Tokens = Annotated[int, Field(strict=True, gt=0, lt=2**40)]
Count = Annotated[int, Field(strict=True, ge=0, lt=MOST)]
Fact = Annotated[Any, AfterValidator(is_fact)]
COLUMNS = {  # of the frame, which a fact of the same name would not reach
    "run", "model", "trained_length", "scaling", "frequencies", "task", "metric", "length", "asked",
    "score", "low", "high", "n", "question", "unit", "status", "reason", "value", "weight",
    "seconds", "peak_mib",
}  # fmt: skip


def _is_no_column(name: str) -> str:
    if name in COLUMNS:
        raise ValueError(f"a fact may not be called {name}, which is a column of the frame")
    return name


def _fit(facts: dict[str, Any]) -> dict[str, Any]:
    sizes = (LETTER if isinstance(fact, str) else NUMBER for fact in facts.values())
    lengths = (len(fact) if isinstance(fact, str | list) else 1 for fact in facts.values())
    size = sum(map(operator.mul, sizes, lengths)) + sum(LETTER * len(name) for name in facts)
    if size > LINE // 2:
        raise ValueError(
            f"up to {size / MIB:,.0f} MiB in a record, at most {LINE // 2 // MIB} are written"
        )
    return facts


Facts = dict[Name, Fact]
Given = Annotated[  # by a task
    dict[Annotated[Name, AfterValidator(_is_no_column)], Fact], AfterValidator(_fit)
]


def wrong_facts(facts: Iterable[tuple[str, Any]], kinds: Mapping[str, type]) -> list[str]:
    """Return the names of the facts that are not of the kind their task has them of, its FACTS.

    No table holds values of two kinds in one column.
    """
    return [
        name
        for name, fact in facts
        if (kind := kinds.get(name))
        and (type(fact) is not kind or kind is int)
        and not _is_of(kind, fact)
    ]


def _is_of(kind: type, value: Any) -> bool:
    if kind is int:
        return type(value) is int and value >= 0
    return type(value) in ((int, float) if kind is float else (kind,))
