"""The samples of runs in little memory, and the columns of a frame that are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.runs.schema import each_checked

SAMPLE = ("unit", "status", "reason", "value", "weight", "seconds", "peak_mib")


class Kept(NamedTuple):
    """A sample without what its cell says: the columns of ``SAMPLE``, then its facts by name."""

    unit: Any
    status: str
    reason: str | None
    value: Any = None
    weight: Any = None
    seconds: float | None = None
    peak_mib: float | None = None
    names: tuple[str, ...] = ()
    facts: tuple[Any, ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        """The facts by their names."""
        return dict(zip(self.names, self.facts, strict=True))


class Rows(NamedTuple):
    """The rows of one cell: what is the same in all, and their questions and samples."""

    head: Mapping[str, Any]
    questions: Sequence[str]
    samples: Sequence[Kept]


def kept_samples(folder: Path) -> dict[str, dict[str, Kept]]:
    """Return the samples of a run by cell key and question; raise UserError for a damaged one.

    Equal texts are one in memory: units, questions and most facts occur once a method.
    """
    found: dict[str, dict[str, Kept]] = {}
    one: dict[Any, Any] = {}
    for record in each_checked(folder):
        names = tuple(record["facts"])
        parts = [map(record.get, SAMPLE), record["facts"].values()]
        own, facts = ([one.setdefault(v, v) if type(v) is str else v for v in p] for p in parts)
        sample = Kept._make([*own, one.setdefault(names, names), tuple(facts)])
        cell, question = (one.setdefault(record[name], record[name]) for name in PLACE)
        found.setdefault(cell, {})[question] = sample
    return found


PLACE = ("cell", "question")


def columns_of(parts: Sequence[Rows]) -> pd.DataFrame:
    """Return a frame of all rows; what a row lacks is NaN.

    A fact never replaces a column of ours. One column is made after the other: a dictionary a row
    would take many times as much memory.
    """
    ours = (*(parts[0].head if parts else ()), "question", *SAMPLE)
    names: dict[str, None] = {}
    samples = [sample for part in parts for sample in part.samples]
    for kind in dict.fromkeys(sample.names for sample in samples):
        names.update(dict.fromkeys((*kind, *ours)))
    return pd.DataFrame({name: _inferred(_column(name, parts, samples)) for name in names})


def _column(name: str, parts: Sequence[Rows], samples: Sequence[Kept]) -> list[Any]:
    if parts and name in parts[0].head:
        return [value for part in parts for value in [part.head[name]] * len(part.samples)]
    if name == "question":
        return [question for part in parts for question in part.questions]
    if name in SAMPLE:
        place = SAMPLE.index(name)
        return [sample[place] for sample in samples]
    at = {kind: kind.index(name) if name in kind else None for kind in _kinds(samples)}
    places = (at[sample.names] for sample in samples)
    return [
        math.nan if place is None else sample.facts[place]
        for sample, place in zip(samples, places, strict=True)
    ]


def _kinds(samples: Sequence[Kept]) -> set[tuple[str, ...]]:
    return {sample.names for sample in samples}


def _inferred(column: list[Any]) -> pd.Series[Any]:
    """Return a column of the type that its values have."""
    values = np.fromiter(column, object, len(column))  # a list in it is one value
    return pd.Series(values).infer_objects()
