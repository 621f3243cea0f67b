"""All methods of one task at one length on the units they share, compared with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ropewalk.harness.stats.cells import once, records
from ropewalk.harness.stats.measure import (
    Measure,
    Score,
    Units,
    difference,
    differences,
    distinct,
    measure,
    scored,
    units,
    values_of,
    weights_of,
)
from ropewalk.harness.stats.paired import (
    ALPHA,
    NO_DIFFERENCE,
    Difference,
    adjusted,
    difference_columns,
)
from ropewalk.harness.stats.selection import (
    Selection,
    plainness,
    preferred,
    select_means,
    select_shares,
)

FAILED = ("not_finite", "failed")  # statuses that are a method's own, not of the machine
NEEDED = (
    "model", "task", "scaling", "length", "frequencies", "metric", "protocol", "status", "unit",
    "value", "weight", "score", "low", "high", "trained_length", "needs_code", "found",
)  # fmt: skip
SAME, NOT_COMPARED = "same", "not compared"
KEPT = 0.75  # of the units that the fullest method has; a method that leaves fewer is left out


@dataclass(frozen=True)
class Family:
    """The methods of one task at one length, which are compared with each other.

    Attributes:
        how: how the task measures.
        groups: the methods that are compared, each with those that are the same measurement.
        shared: the documents or trials of each method, the same for all.
        own: how many documents or trials each method has by itself.
        requested: how many there are.
        lost: documents or trials on which a method itself failed, which others may have.
        code: methods that only a modelling file can serve.
        signs: the fingerprints of their frequencies.
        score: the score of each method on its shared documents or trials.
    """

    how: Measure
    groups: dict[str, list[str]]
    shared: dict[str, Units]
    own: dict[str, int]
    requested: int
    lost: dict[str, set[str]]
    code: set[str]
    signs: dict[str, str | None]
    score: dict[str, Score]

    @property
    def n(self) -> int:
        """Return how many units are compared."""
        return len(next(iter(self.shared.values()), {}))

    @cached_property
    def selection(self) -> Selection | None:
        """Return what the units say of the methods; None where they cannot be compared."""
        if self.how.form == "unknown" or not self.n:
            return None
        values = values_of(list(self.shared.values()))
        if self.how.share:
            return select_shares(1 - values if self.how.lower else values)
        weights = weights_of(next(iter(self.shared.values())))
        return select_means(values if self.how.lower else -values, weights)

    def regret(self, name: str) -> float | None:
        """Return how much worse than the best of all a method is at most (95 %), as shown."""
        first = self.first(name) if name in self.own else None
        if self.selection is None or first not in self.shared:
            return None
        return self.how.shown(float(self.selection.regret[list(self.shared).index(first)]))

    def first(self, name: str) -> str:
        """Return the method under whose name this one is measured."""
        return next(one for one, same in self.groups.items() if name in (one, *same))


@once
def families(frame: pd.DataFrame) -> dict[tuple[str, str, int], Family]:
    """Make the comparisons of every model, task and length that has a score."""
    return {
        (str(model), str(task), int(str(length))): family(here, how)
        for (model, task), samples in needed_of(frame).groupby(["model", "task"], sort=False)
        for how in [measure(samples)]
        for length, here in samples.groupby("length")
        if here["score"].notna().any()
    }


def needed_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame without the columns that no comparison needs."""
    return frame[[name for name in NEEDED if name in frame]]


def family(samples: pd.DataFrame, how: Measure) -> Family:
    """Make the comparisons of one model, task and length."""
    known = samples[samples["score"].notna()]
    groups = distinct(known)
    by_name = dict(tuple(known[known["scaling"].isin(list(groups))].groupby("scaling")))
    every = {name: units(by_name[name]) for name in groups}
    of = _shared(every, KEPT if how.form != "unknown" else 1.0)
    scores = {}
    for cell in records(known.drop_duplicates("scaling")[["scaling", "score", "low", "high"]]):
        name = cell.pop("scaling")
        fewer = name in of and len(of[name]) < len(every[name])
        scores[name] = scored(of[name], how) if fewer else Score(**cell)
    own = {one: len(every[name]) for name, same in groups.items() for one in (name, *same)}
    every_unit = max(requested_units(samples), *own.values())
    first = records(samples.drop_duplicates("scaling"))
    code = {row["scaling"] for row in first if row.get("needs_code")}
    signs = {row["scaling"]: row["frequencies"] for row in first}
    failed = samples[samples["status"].isin(FAILED)]
    lost = {name: set(failed["unit"][failed["scaling"] == name].astype(str)) for name in signs}
    return Family(how, groups, of, own, every_unit, lost, code, signs, scores)


def requested_units(samples: pd.DataFrame) -> int:
    """Return how many units there are; a question that was never measured does not name its own."""
    named = samples[samples["unit"].fillna("") != ""]
    if named.empty or len(named) == len(samples):
        return int(named["unit"].nunique())
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
    for own in every.values():
        for unit, (_, weight) in own.items():
            full[unit] = max(weight, full.get(unit, 0))
    whole = {
        name: {unit for unit, (_, weight) in own.items() if weight == full[unit]}
        for name, own in every.items()
    }
    enough = least * max(map(len, whole.values()), default=0)
    while True:
        common = set.intersection(*whole.values()) if whole else set()
        if not whole or len(common) >= enough:
            break
        whole.pop(min(whole, key=lambda name: len(whole[name])))
    order = [unit for name in [*whole][:1] for unit in every[name] if unit in common]
    return {name: {unit: every[name][unit] for unit in order} for name in whole}


MARGIN = 1.0  # percent of perplexity or percentage points: less is as good as the best
Row = dict[str, Any]


@dataclass(frozen=True)
class Inside:
    """A method at the longest length inside the window at which the plain model was measured."""

    frequencies: str | None
    of: Units
    score: Score


def decide(
    frame: pd.DataFrame, margin: float = MARGIN
) -> dict[tuple[str, str, int], tuple[Family, dict[str, Row]]]:
    """Return the methods of every model, task and length, and what is known of those compared.

    Rows are by the name under which a method is measured, with the columns of a table of cells.
    Raises ValueError for a negative margin.
    """
    if margin < 0:
        raise ValueError(f"margin={margin:g} is invalid: a margin is 0 percent or more")
    inside, cuts = _inside(needed_of(frame)), truncations(frame)
    windows = frame.groupby("model")["trained_length"].first()
    result = {}
    for (model, task, length), of in families(frame).items():
        near, beyond = inside.get((model, task), {}), length > windows[model]
        plain = near.get("none") if (model, task) in cuts else None
        result[model, task, length] = of, _decided(of, near, plain, beyond, margin)
    return result


def _decided(
    of: Family, inside: Mapping[str, Inside], cut_off: Inside | None, beyond: bool, margin: float
) -> dict[str, Row]:
    """Choose among the methods of one length; ``inside`` are the methods inside the window.

    ``cut_off`` is the plain model at the trained window on the targets of longer lengths. The one
    to use is the best that a server can run; of several as good as the best it is the one that
    costs least inside the window.
    """
    how, selection, sign = of.how, of.selection, 1 if of.how.lower else -1
    order = sorted(of.shared, key=lambda name: sign * of.score[name].score)
    best, several = order[0], len(order) > 1
    regret = dict(zip(of.shared, selection.regret.tolist(), strict=True)) if selection else {}
    possible = dict(zip(of.shared, selection.possible.tolist(), strict=True)) if selection else {}
    room = how.margin(margin, of.score[best].score)
    good = {name for name in regret if regret[name] <= room}
    # A method that failed on what another could do is never the winner.
    winner = bool(selection and selection.winner) and not any(
        of.lost[best] - of.lost[name] for name in order if name != best
    )
    costs = {name: _cost(of, name, inside) for name in order}
    usable = [name for name in order if not of.code.issuperset([name, *of.groups[name]])] or order
    level = [n for n in usable if of.score[n].score == of.score[usable[0]].score]

    dear = {name: sign * cost.value if cost else math.inf for name, cost in costs.items()}
    alike = [name for name in usable if name in good] or level
    use = best if winner and best == usable[0] else preferred(alike, dear.__getitem__)
    cut = _truncation(of, cut_off, best) if cut_off and beyond else None
    window = cut_off.of if cut_off else {}
    rows = {}
    for name in order:
        less = next(iter(differences([of.shared[best]], of.shared[name], how)), None)
        rows[name] = {
            "compared": of.n, "best": name == best, "winner": name == best and winner,
            "use": name == use, "margin": margin,
            **{f"compared_{end}": getattr(of.score[name], end) for end in ("score", "low", "high")},
            "truncation": cut and cut.score, "truncation_low": cut and cut.low,
            "truncation_high": cut and cut.high,
            **difference_columns("change", difference(of.shared[name], window, how)),
            **difference_columns("cost", costs[name] if beyond else None),
        }  # fmt: skip
        if several and less:
            above = less.swapped(relative=how.relative)
            rows[name] |= difference_columns("above", above) | {
                "regret": of.regret(name),
                "possible": possible.get(name, True), "as_good": name in good,
                "needed": selection.needed(room) if selection and name == best else None,
            }  # fmt: skip
    return rows


def _truncation(of: Family, plain: Inside, best: str) -> Score | None:
    """Return the score of the plain model that reads the window alone, on the compared units."""
    both = {
        name: plain.of[name]
        for name, (_, weight) in of.shared[best].items()
        if name in plain.of and plain.of[name][1] == weight
    }
    if len(both) == len(plain.of):
        return plain.score
    return scored(both, of.how) if both else None


def _inside(frame: pd.DataFrame) -> dict[tuple[str, str], dict[str, Inside]]:
    result = {}
    near = frame[(frame["length"] <= frame["trained_length"]) & frame["score"].notna()]
    for (model, task), rows in near.groupby(["model", "task"], sort=False):
        own = rows[rows["scaling"] == "none"]
        if len(own):
            here = rows[rows["length"] == own["length"].max()]
            cells = result[str(model), str(task)] = dict[str, Inside]()
            for name, samples in here.groupby("scaling", sort=False):
                first = records(samples.head(1))[0]
                score = Score(first["score"], first["low"], first["high"])
                cells[str(name)] = Inside(first["frequencies"], units(samples), score)
    return result


def _cost(of: Family, name: str, inside: Mapping[str, Inside]) -> Difference | None:
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


def overall(tasks: Sequence[Family]) -> tuple[str, float] | None:
    """Return one method for several tasks at one length, and the largest of its regrets.

    It is the servable method whose largest regret is least; of equal ones the next largest decides,
    as a task in which all methods score alike has one bound for all. Percent of perplexity and
    percentage points count alike. None where no method has a bound on every task, or no method
    scores above 0 on any.
    """
    if not any(not of.how.share or of.score[name].score for of in tasks for name in of.shared):
        return None
    if len(measured := {name for of in tasks for name in of.own}) == 1:
        return measured.pop(), 0.0
    regrets = {}
    for name in tasks[0].own:
        bounds = [regret for of in tasks if (regret := of.regret(name)) is not None]
        if len(bounds) == len(tasks):
            regrets[name] = sorted(bounds, reverse=True)
    names = [name for name in regrets if all(name not in of.code for of in tasks)]
    best = min(names or regrets, key=lambda name: (regrets[name], *plainness(name)), default=None)
    return None if best is None else (best, regrets[best][0])


def against(
    here: Family, baseline: str, p_all: Mapping[str, float | None] | None = None
) -> dict[str, Row]:
    """Return the difference of every method from the baseline, which has a score here.

    ``p`` is of one comparison; ``p_all``, by which the ``verdict`` says better or worse, is
    corrected for all methods. A method that failed on what the other could do is not called better.
    """
    other = here.first(baseline)
    names = [name for name in here.shared if name != other] if other in here.shared else []
    shared = [here.shared[name] for name in names]
    results = differences(shared, here.shared[other], here.how) if names else []
    compared = dict(zip(names, results, strict=False))  # none, where samples do not show scores
    if p_all is None:
        p_all = {}
        if results:
            less = values_of(shared) - values_of([here.shared[other]])
            weights = weights_of(here.shared[other])
            corrected = adjusted(less, weights, results, shares=here.how.share)
            p_all = dict(zip(names, corrected, strict=True))
    rows: dict[str, Row] = {}
    for name in here.own.keys() - {baseline}:
        first = here.first(name)
        difference, p = compared.get(first), p_all.get(first)
        better = difference is not None and (difference.value < 0) == here.how.lower
        winner, loser = (first, other) if better else (other, first)
        if first == other:
            verdict = SAME
        elif difference is None:
            verdict = NOT_COMPARED
        elif p is None or p >= ALPHA or here.lost[winner] - here.lost[loser]:
            verdict = NO_DIFFERENCE  # also where the better one failed on what the other has
        else:
            verdict = "better" if better else "worse"
        rows[name] = {
            "baseline": baseline, "p_all": p, "verdict": verdict,
            **difference_columns("difference", difference),
            "p": difference.p if difference else None,
            "paired": difference.n if difference else None,
        }  # fmt: skip
        if first == other:
            rows[name]["difference"] = 0.0
    return rows
