"""All methods of one task at one length on the units they share, compared with each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from harness.reports.stats.measure import (
    Measure,
    Score,
    Units,
    distinct,
    measure,
    scored,
    units,
    values_of,
    weights_of,
)
from harness.reports.stats.once import once
from harness.reports.writing import sentences
from harness.stats.selection import Selection, select_means, select_shares

FAILED = ("not_finite", "failed")  # statuses that are a method's own, not of the machine
NEEDED = (
    "model", "task", "scaling", "length", "frequencies", "metric", "protocol", "status", "unit",
    "value", "weight", "score", "low", "high", "trained_length", "needs_code",
    "found",
)  # fmt: skip
KEPT = 0.75  # of the units that the fullest method has; a method that leaves fewer is left out


@dataclass(frozen=True)
class Family:
    """The methods of one task at one length, which are compared with each other.

    ``groups`` are the methods that are compared, with those that are the same measurement;
    ``of`` their units, the same for all; ``own`` how many each method has by itself; ``asked``
    how many there are; ``apart`` the methods that have too few in common with the others;
    ``lost`` the units on which a method itself failed, which the others may have; ``code`` the
    methods that only a modelling file can serve; ``signs`` their frequencies, by fingerprint.
    """

    how: Measure
    groups: dict[str, list[str]]
    of: dict[str, Units]
    own: dict[str, int]
    asked: int
    apart: list[str]
    lost: dict[str, set[str]]
    code: set[str]
    signs: dict[str, str | None]
    score: Callable[[str], Score] = field(repr=False)

    @property
    def n(self) -> int:
        """Return how many units are compared."""
        return len(next(iter(self.of.values()), {}))

    @property
    def names(self) -> list[str]:
        """Return the methods that are compared, in the order of ``selection``."""
        return list(self.of)

    @cached_property
    def selection(self) -> Selection | None:
        """Return what the units say of the methods; None where they cannot be compared."""
        if self.how.made == "unknown" or not self.n:
            return None
        values = values_of(list(self.of.values()))
        if self.how.share:
            return select_shares(1 - values if self.how.lower else values)
        weights = weights_of(next(iter(self.of.values())))
        return select_means(values if self.how.lower else -values, weights)

    def first(self, name: str) -> str:
        """Return the method under whose name this one is measured."""
        return next(one for one, same in self.groups.items() if name in (one, *same))

    def compared(self, name: str) -> str | None:
        """Return the method under whose name this one is compared; None where it is not."""
        found = self.first(name) if name in self.own else None
        return found if found in self.of else None

    def everyone(self, name: str) -> list[str]:
        """Return a method and those that are the same measurement."""
        return [name, *self.groups[name]]

    def status(self, name: str) -> str:
        """Return "ok", or how many units a method's score is of: "20 of 23 ok"."""
        n = self.n if name in self.of else self.own[name]
        return "ok" if n == self.asked else f"{n} of {self.asked} ok"


@once
def families(frame: pd.DataFrame) -> dict[tuple[str, str, int], Family]:
    """Make the comparisons of every model, task and length that has a score."""
    made = {}
    for (model, task), samples in needed_of(frame).groupby(["model", "task"], sort=False):
        how = measure(samples)
        for length, here in samples.groupby("length"):
            if here["score"].notna().any():
                made[str(model), str(task), int(str(length))] = family(here, how)
    return made


def needed_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame without the columns that no comparison needs."""
    return frame[[name for name in NEEDED if name in frame]]


def family(samples: pd.DataFrame, how: Measure) -> Family:
    """Make the comparisons of one model, task and length."""
    known = samples[samples["score"].notna()]
    groups = distinct(known)
    by_name = dict(tuple(known[known["scaling"].isin(list(groups))].groupby("scaling")))
    every = {name: units(by_name[name]) for name in groups}
    cells = sentences.records(known.drop_duplicates("scaling")[["scaling", "score", "low", "high"]])
    made = {cell["scaling"]: Score(cell["score"], cell["low"], cell["high"]) for cell in cells}
    of = _shared(every, KEPT if how.made != "unknown" else 1.0)

    def score(name: str) -> Score:
        """Return the score of what is compared; of what is left out, its own."""
        fewer = name in of and of[name] != every[name]
        return scored(of[name], how) if fewer else made[name]

    apart = [name for name in every if name not in of]
    own = {one: len(every[name]) for name, same in groups.items() for one in (name, *same)}
    every_unit = max(asked(samples), *own.values())
    first = sentences.records(samples.drop_duplicates("scaling"))
    code = {row["scaling"] for row in first if row.get("needs_code")}
    signs = {row["scaling"]: row["frequencies"] for row in first}
    return Family(how, groups, of, own, every_unit, apart, failures(samples), code, signs, score)


def failures(samples: pd.DataFrame) -> dict[str, set[str]]:
    """Return the units on which every method itself failed; what was not measured is none."""
    failed = samples[samples["status"].isin(FAILED)]
    by_name = {str(name): set(rows.astype(str)) for name, rows in failed.groupby("scaling")["unit"]}
    return {name: by_name.get(name, set()) for name in samples["scaling"].unique()}


def asked(samples: pd.DataFrame) -> int:
    """Return how many units there are; a question that was never measured does not name its own."""
    named = samples[samples["unit"].fillna("") != ""]
    if named.empty:
        return 0
    fullest = named["scaling"].value_counts().index[0]
    cell = named[named["scaling"] == fullest]
    every, windows = cell["unit"].nunique(), len(cell)
    rows = int((samples["scaling"] == fullest).sum())
    return int(max(named["unit"].nunique(), math.ceil(rows * every / windows)))


def _shared(every: dict[str, Units], least: float) -> dict[str, Units]:
    """Keep of every method the units that all have whole, without those that have too few.

    All have them in one order. A document of several windows, some of them lost, has less weight
    than it has elsewhere.
    """
    full: dict[str, float] = {}
    for found in every.values():
        for unit, (_, weight) in found.items():
            full[unit] = max(weight, full.get(unit, 0))
    whole = {
        name: {unit for unit, (_, weight) in found.items() if weight == full[unit]}
        for name, found in every.items()
    }
    enough = least * max(map(len, whole.values()), default=0)
    while True:
        common = set.intersection(*whole.values()) if whole else set()
        if not whole or len(common) >= enough:
            break
        whole.pop(min(whole, key=lambda name: len(whole[name])))
    order = [unit for name in [*whole][:1] for unit in every[name] if unit in common]
    return {name: {unit: every[name][unit] for unit in order} for name in whole}
