"""All methods of one task at one length on the units they share, compared with each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from harness.reports.stats.measure import (
    Measure,
    Score,
    Units,
    differences,
    distinct,
    measure,
    scored,
    units,
)
from harness.reports.stats.needed import needed
from harness.reports.stats.once import once
from harness.reports.stats.paired import SURE, Difference, holm
from harness.reports.writing import sentences

MOST_PAIRED = 40  # of more methods every one is compared with the best and the baseline alone
FAILED = ("not_finite", "failed")  # statuses that are a method's own, not of the machine
NEEDED = (
    "model", "task", "scaling", "length", "frequencies", "metric", "protocol", "status", "unit",
    "value", "weight", "score", "low", "high",
)  # fmt: skip
KEPT = 0.75  # of the units that the fullest method has; a method that leaves fewer is left out


@dataclass(frozen=True)
class Family:
    """The comparisons of one task at one length: all pairs, corrected together.

    ``groups`` are the methods that are compared, with those that are the same measurement;
    ``of`` their units, the same for all; ``own`` how many each method has by itself; ``asked``
    how many there are; ``apart`` the methods that have too few in common with the others;
    ``lost`` the units on which a method itself failed, which the others may have.
    """

    how: Measure
    groups: dict[str, list[str]]
    of: dict[str, Units]
    own: dict[str, int]
    asked: int
    apart: list[str]
    lost: dict[str, set[str]]
    score: Callable[[str], Score] = field(repr=False)
    made: dict[str, dict[str, Difference]] = field(default_factory=dict, repr=False)

    @property
    def n(self) -> int:
        """Return how many units are compared."""
        return len(next(iter(self.of.values()), {}))

    @property
    def count(self) -> int:
        """Return how many pairs there are."""
        return math.comb(len(self.of), 2)

    def between(self, one: str, other: str) -> Difference | None:
        """Return one method less another, None where they are not compared.

        All that are compared with the other are, at once.
        """
        if one not in self.of or other not in self.of:
            return None
        if other not in self.made:
            self.made[other] = self._less(other, [name for name in self.of if name != other])
        return self.made[other].get(one)

    def _less(self, other: str, names: Sequence[str]) -> dict[str, Difference]:
        found = differences([self.of[name] for name in names], self.of[other], self.how)
        return dict(zip(names, found, strict=False))

    @cached_property
    def pairs(self) -> dict[frozenset[str], float | None]:
        """Return the corrected probability of every pair (Holm over all of them)."""
        names = list(self.of)
        found = {
            frozenset((one, other)): apart.p
            for place, other in enumerate(names)
            for one, apart in self._less(other, names[:place]).items()
        }
        return dict(zip(found, holm(list(found.values())), strict=True))

    def first(self, name: str) -> str:
        """Return the method under whose name this one is compared."""
        return next(one for one, same in self.groups.items() if name in (one, *same))

    def status(self, name: str) -> str:
        """Return "ok", or how many units a method's score is of: "20 of 23 ok"."""
        n = self.n if name in self.of else self.own[name]
        return "ok" if n == self.asked else f"{n} of {self.asked} ok"

    def p(self, one: str, other: str) -> float | None:
        """Return the probability of a pair, corrected for all pairs (Holm, of many Bonferroni)."""
        if len(self.of) <= MOST_PAIRED:
            return self.pairs.get(frozenset((one, other)))
        found = self.between(one, other)
        return None if found is None or found.p is None else min(1.0, found.p * self.count)

    def verdict(self, one: str, other: str) -> str:
        """Return same, better, worse, not distinguished or not compared, for all reports.

        Better or worse is said where the mean and the exact sign test agree, corrected, and there
        are enough units. A method that failed on a unit that the other has is not called better.
        """
        if one == other:
            return "same"
        found, p = self.between(one, other), self.p(one, other)
        if found is None:
            return "not compared"
        if p is None or p >= SURE or not found.enough:
            return "not distinguished"
        first = (found.value < 0) == self.how.lower
        if self.lost[one if first else other] - self.lost[other if first else one]:
            return "not distinguished"
        return "better" if first else "worse"

    def needed(self, one: str, other: str) -> int | None:
        """Return how many units would distinguish a pair under this family's correction."""
        found, p = self.between(one, other), self.p(one, other)
        if found is None or p is None or (p < SURE and found.enough):
            return None
        if len(self.of) > MOST_PAIRED:
            return needed(found, self.count)
        return needed(found, sum(p is not None and p >= SURE for p in self.pairs.values()))


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
    return Family(how, groups, of, own, every_unit, apart, failures(samples), score)


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
