"""Decide which method to use at each length, and by how much that choice can be wrong.

Every decision names one method. It is the winner where one is significant; else it comes with a
bound on its regret. ``harness.stats.selection`` has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.reports.stats.cells import cells
from harness.reports.stats.family import Family, families, needed_of
from harness.reports.stats.measure import Score, Units, difference, units
from harness.reports.stats.once import once
from harness.reports.writing import sentences
from harness.stats.paired import Difference

MARGIN = 1.0  # percent of perplexity or percentage points: less is as good as the best
Place = tuple[str, str, int]  # model, task, length
PLACE = ["model", "task", "length"]
COPIED = ("model", "task", "metric", "trained_length", "length", "relative_length")


@dataclass(frozen=True)
class Decision:
    """What is known of the methods of one task at one length.

    Attributes:
        facts: the cell's model, task, metric and lengths.
        of: the methods and the documents or trials that they share.
        best: the method with the best mean, ``recommended`` the one to use: the best that a
            server can run, of several as good as the best the one that costs least in the window.
        cost: the recommended method inside the window less the plain model there.
        truncation: the score of the plain model that reads only the trained window, and ``gain``
            the recommended method less it; of tasks that score the same targets at every length.
    """

    facts: Mapping[str, Any]
    of: Family
    best: str
    recommended: str
    margin: float
    cost: Difference | None = None
    truncation: Score | None = None
    gain: Difference | None = None

    @property
    def winner(self) -> bool:
        """Whether the best method is significantly so, and failed on nothing others can do."""
        made, lost = self.of.selection, self.of.lost[self.best]
        return bool(made and made.winner) and not any(
            lost - self.of.lost[name] for name in self.of.names if name != self.best
        )

    def regret(self, name: str) -> float | None:
        """Return how much worse than the best of all a method is at most (95 %), as shown."""
        made = self.of.selection
        if made is None:
            return None
        return self.of.how.shown(float(made.regret[self.of.names.index(name)]))

    def as_good(self, name: str) -> bool:
        """Return whether a method's regret is within the margin."""
        made = self.of.selection
        return made is not None and bool(made.regret[self.of.names.index(name)] <= self.room)

    @property
    def room(self) -> float:
        """Return the margin as a cost."""
        return self.of.how.margin(self.margin, self.of.score(self.best).score)

    def possible(self, name: str) -> bool:
        """Return whether a method may be the best: it is not significantly worse."""
        made = self.of.selection
        return made is None or bool(made.possible[self.of.names.index(name)])

    def less(self, name: str) -> Difference | None:
        """Return the best method less another, with its own 95 % interval, as shown."""
        return difference(self.of.of[self.best], self.of.of[name], self.of.how)

    @property
    def needed(self) -> int | None:
        """Return how many units would bound the regret of the best method by the margin."""
        made = self.of.selection
        return None if made is None else made.needed(self.room)

    def verdict(self, name: str) -> str:
        """Return what is said of a method."""
        if name == self.best and self.winner:
            return "best"
        if self.as_good(name):
            return "as good as the best"
        if self.of.selection is None:
            return "not compared"
        return "may be the best" if self.possible(name) else "worse than another method"


@once
def decisions(frame: pd.DataFrame) -> dict[Place, Decision]:
    """Return the decision of every model, task and length, by the usual margin."""
    return decide(frame, MARGIN)


def decide(frame: pd.DataFrame, margin: float) -> dict[Place, Decision]:
    """Return the decision of every model, task and length that has a score."""
    table = cells(frame).dropna(subset="score")
    facts = {tuple(row[name] for name in PLACE): row for row in sentences.records(table[::-1])}
    windows = table.groupby(PLACE)["trained_length"].nunique()
    inside = _inside(needed_of(frame))
    made = {}
    for place, of in families(frame).items():
        row = {name: facts[place][name] for name in COPIED}
        if windows[place] > 1:  # models of other windows, compared as methods
            row |= {"trained_length": None, "relative_length": None}
        made[place] = _decision(row, of, inside.get(place[:2], {}), margin)
    if not made:
        raise ValueError("no scores to choose by")
    return made


def _decision(
    facts: Mapping[str, Any], of: Family, inside: Mapping[str, Cell], margin: float
) -> Decision:
    """Choose among the methods of one length; ``inside`` are the methods inside the window."""
    sign = 1 if of.how.lower else -1
    order = sorted(of.of, key=lambda name: sign * of.score(name).score)
    found = Decision(facts, of, order[0], order[0], margin)
    costs = {name: _cost(of, name, inside) for name in order}
    usable = [name for name in order if not of.code.issuperset(of.everyone(name))] or order

    def preference(name: str) -> tuple[float, int, int, str]:
        cost = costs[name]
        return sign * cost.value if cost else math.inf, *plainness(name)

    first = usable[0]
    level = [name for name in usable if of.score(name).score == of.score(first).score]
    alike = [name for name in usable if found.as_good(name)]
    wins = found.winner and found.best == first
    recommended = first if wins else min(alike or level, key=preference)
    own, window = inside.get("none"), facts["trained_length"]
    truncation = gain = None
    if own and own.truncation and window and facts["length"] > window:
        gain, truncation = difference(of.of[recommended], own.of, of.how), own.score
    beyond = window is not None and facts["length"] > window
    cost = costs[recommended] if beyond else None
    return Decision(facts, of, order[0], recommended, margin, cost, truncation, gain)


def plainness(name: str) -> tuple[int, int, str]:
    """Return how plain a method is, the plainest first: by its options, then its name."""
    return (0, 0, "") if name == "none" else (1 + name.count("="), len(name), name)


@dataclass(frozen=True)
class Cell:
    """A method at the longest length inside the window at which the plain model was measured.

    ``truncation``: it is the whole trained window, and its targets are those of longer lengths.
    """

    length: int
    frequencies: str | None
    of: Units
    score: Score
    truncation: bool


def _inside(frame: pd.DataFrame) -> dict[tuple[str, str], dict[str, Cell]]:
    """Return each method inside the window, by model and task."""
    found = {}
    near = frame[(frame["length"] <= frame["trained_length"]) & frame["score"].notna()]
    for (model, task), rows in near.groupby(["model", "task"], sort=False):
        own = rows[rows["scaling"] == "none"]
        if len(own):
            here = rows[rows["length"] == own["length"].max()]
            found[str(model), str(task)] = {
                str(name): _cell(of) for name, of in here.groupby("scaling", sort=False)
            }
    return found


def _cell(samples: pd.DataFrame) -> Cell:
    first = sentences.records(samples.head(1))[0]
    tail = first.get("protocol") == "tail" and first["metric"] == "perplexity"
    score = Score(first["score"], first["low"], first["high"])
    whole = tail and first["length"] == first["trained_length"]
    return Cell(int(first["length"]), first["frequencies"], units(samples), score, whole)


def _cost(of: Family, name: str, inside: Mapping[str, Cell]) -> Difference | None:
    """Return what a method costs inside the window in the form that it has at this length.

    None where that form was not measured there: the factor of a method may follow the length.
    """
    own, sign = inside.get("none"), of.signs[name]
    for cell in inside.values():
        if own is not None and sign is not None and cell.frequencies == sign:
            return difference(cell.of, own.of, of.how)
    return None


def truncations(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the trained window and the score of truncation, by model and task that have one."""
    if "protocol" not in frame:
        return {}
    own = frame[(frame["scaling"] == "none") & (frame["length"] == frame["trained_length"])]
    own = own[(own["metric"] == "perplexity") & (own["protocol"] == "tail")].dropna(subset="score")
    once = own.drop_duplicates(["model", "task"])
    facts = once[["model", "task", "length", "score"]].itertuples(index=False, name=None)
    return {(model, task): (int(length), float(score)) for model, task, length, score in facts}


def overall(found: Sequence[Decision]) -> tuple[str, float] | None:
    """Return one method for several tasks at one length, and the largest of its regrets.

    It is the servable method whose largest regret is least; percent of perplexity and percentage
    points count alike. None where no method has a bound on every task.
    """
    largest = {}
    for name in found[0].of.own:
        known = [one.regret(first) for one in found if (first := one.of.compared(name))]
        regrets = [regret for regret in known if regret is not None]
        if len(regrets) == len(found):
            largest[name] = max(regrets)
    names = [name for name in largest if all(name not in one.of.code for one in found)]
    best = min(names or largest, key=lambda name: (largest[name], *plainness(name)), default=None)
    return None if best is None else (best, largest[best])
