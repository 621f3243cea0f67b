"""The samples of runs in little memory, and the columns of a frame that are made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    same = one.setdefault
    for record in each_checked(folder):
        names, told = tuple(record["facts"]), record["facts"].values()
        facts = tuple([same(fact, fact) if type(fact) is str else fact for fact in told])
        unit, status, reason, *numbers = map(record.get, SAMPLE)
        texts = same(unit, unit), same(status, status), same(reason, reason)
        sample = Kept._make((*texts, *numbers, same(names, names), facts))
        cell, question = record["cell"], record["question"]
        found.setdefault(cell, {})[same(question, question)] = sample
    return found


def columns_of(parts: Sequence[Rows]) -> pd.DataFrame:
    """Return a frame of all rows; what a row lacks is NaN.

    A fact never replaces a column of ours. One column is made after the other: a dictionary a row
    would take many times as much memory.
    """
    parts = [part for part in parts if part.samples]
    samples = [sample for part in parts for sample in part.samples]
    made = {name: _of_cells(name, parts) for name in (parts[0].head if parts else ())}
    made["question"] = _inferred([question for part in parts for question in part.questions])
    for place, name in enumerate(SAMPLE):
        made[name] = _inferred([sample[place] for sample in samples])
    kinds = dict.fromkeys(sample.names for sample in samples)
    order = dict.fromkeys(name for kind in kinds for name in (*kind, *made))
    facts = [name for name in order if name not in made]
    made.update(zip(facts, _facts(facts, kinds, samples), strict=True))
    return pd.DataFrame({name: made[name] for name in order})


def _of_cells(name: str, parts: Sequence[Rows]) -> pd.Series[Any]:
    column = _inferred([part.head[name] for part in parts])
    return column.repeat([len(part.samples) for part in parts]).reset_index(drop=True)


def _facts(
    names: Sequence[str], kinds: Iterable[tuple[str, ...]], samples: Sequence[Kept]
) -> Iterator[pd.Series[Any]]:
    """Yield the column of every fact; NaN where a sample has none of the name."""
    for name in names:
        at = {kind: kind.index(name) if name in kind else None for kind in kinds}
        places = [at[sample.names] for sample in samples]
        yield _inferred([
            math.nan if place is None else sample.facts[place]
            for sample, place in zip(samples, places, strict=True)
        ])  # fmt: skip


def _inferred(column: list[Any]) -> pd.Series[Any]:
    """Return a column of the type that its values have."""
    values = np.fromiter(column, object, len(column))  # a list in it is one value
    return pd.Series(values).infer_objects()
