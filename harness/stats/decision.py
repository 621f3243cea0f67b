"""All methods of one task at one length on the units they share, compared with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.measure import (
    Measure,
    Units,
    difference,
    differences,
    in_both,
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
    select,
)
from ropewalk.tasks.types import Score

FAILED = ("not_finite", "failed")  # statuses that are a method's own, not of the machine
NEEDED = (
    "model", "task", "scaling", "length", "frequencies", "metric", "protocol", "status", "unit",
    "value", "weight", "score", "low", "high", "trained_length", "needs_code", "found",
)  # fmt: skip
SAME, NOT_COMPARED = "same", "not compared"
MARGIN = 1.0  # percent of perplexity or percentage points: less is as good as the best
Row = dict[str, Any]
KEPT = 0.75  # of the units that the fullest method has; a method that leaves fewer is left out


@dataclass(frozen=True)
class Family:
    """The methods of one task at one length, which are compared with each other.

    Attributes:
        how: how the task measures.
        first: every method that has a score, and the one under whose name it is measured.
        every: the documents or trials of each method that is measured.
        shared: those of each method that is compared, the same for all.
        own: the score of each method that is measured.
        score: the same, of those that are compared on their shared documents or trials.
        requested: how many documents or trials there are.
        lost: those on which a method itself failed, which others may have.
        code: methods that only a modelling file can serve.
        signs: the fingerprints of their frequencies.
    """

    how: Measure
    first: dict[str, str]
    every: dict[str, Units]
    shared: dict[str, Units]
    own: dict[str, Score]
    score: dict[str, Score]
    requested: int
    lost: dict[str, set[str]]
    code: set[str]
    signs: dict[str, str | None]

    @property
    def n(self) -> int:
        """Return how many units are compared."""
        return len(next(iter(self.shared.values()), {}))

    @cached_property
    def selection(self) -> Selection | None:
        """Return what the units say of the methods; None where they cannot be compared."""
        if self.how.form == "unknown" or not self.n:
            return None
        return select(list(self.shared.values()), self.how)

    def regret(self, name: str) -> float | None:
        """Return how much worse than the best of all a method is at most (95 %), as shown."""
        first = self.first.get(name)
        if self.selection is None or first not in self.shared:
            return None
        return self.how.shown(float(self.selection.regret[list(self.shared).index(first)]))

    def excess(self, name: str) -> float:
        """Return how much worse than the best mean a compared method is, as shown."""
        assert self.selection is not None
        values = self.selection.value[list(self.shared).index(self.first[name])]
        return self.how.shown(float(values.max()))


def needed_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame without the columns that no comparison needs."""
    return frame[[name for name in NEEDED if name in frame]]


def family(samples: pd.DataFrame, how: Measure) -> Family:
    """Make the comparisons of one model, task and length."""
    known = samples[samples["score"].notna()]
    rows = {row["scaling"]: row for row in records(known.drop_duplicates("scaling"))}
    measured: dict[str, str] = {}  # methods of equal frequencies once: else they count twice
    first = {
        name: measured.setdefault(row["frequencies"] or name, name) for name, row in rows.items()
    }
    by_name = dict(tuple(known.groupby("scaling")))
    every = {name: units(by_name[name]) for name in measured.values()}
    shared = _shared(every, KEPT if how.form != "unknown" else 1.0)
    own = {
        name: Score(rows[name]["score"], rows[name]["low"], rows[name]["high"], len(of))
        for name, of in every.items()
    }
    fewer = {name: of for name, of in shared.items() if len(of) < len(every[name])}
    failed = samples[samples["status"].isin(FAILED)]
    firsts = records(samples.drop_duplicates("scaling"))
    return Family(
        how, first, every, shared, own,
        score=own | {name: scored(of, how) for name, of in fewer.items()},
        requested=max(requested_units(samples), *map(len, every.values())),
        lost={
            name: set(failed["unit"][failed["scaling"] == name].astype(str))
            for name in samples["scaling"].unique()
        },
        code={row["scaling"] for row in firsts if row.get("needs_code")},
        signs={row["scaling"]: row["frequencies"] for row in firsts},
    )  # fmt: skip


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


def decide(
    frame: pd.DataFrame, margin: float = MARGIN
) -> dict[tuple[str, str, int], tuple[Family, dict[str, Row]]]:
    """Return the methods of every model, task and length, and what is known of those compared.

    Rows are by the name under which a method is measured, with the columns of a table of cells.
    Raises ValueError for a negative margin.
    """
    if margin < 0:
        raise ValueError(f"margin={margin:g} is invalid: a margin is 0 percent or more")
    known = {
        (str(model), str(task), int(str(length))): family(here, how)
        for (model, task), samples in needed_of(frame).groupby(["model", "task"], sort=False)
        for how in [measure(samples)]
        for length, here in samples.groupby("length")
        if here["score"].notna().any()
    }
    cuts = truncations(frame)
    windows = frame.groupby("model")["trained_length"].first()
    inside = {  # the longest length inside the window at which the plain model was measured
        (model, task): of
        for (model, task, length), of in known.items()
        if length <= windows[model] and "none" in of.first
    }
    result = {}
    for (model, task, length), of in known.items():
        near, beyond = inside.get((model, task)), length > windows[model]
        result[model, task, length] = of, _decided(of, near, (model, task) in cuts, beyond, margin)
    return result


def _decided(
    of: Family, inside: Family | None, cut: bool, beyond: bool, margin: float
) -> dict[str, Row]:
    """Choose among the methods of one length; ``inside`` are the methods inside the window.

    With a ``cut``, the plain model inside is truncation: it has the targets of longer lengths. The
    method to use is the best that a server can run; of several as good as the best it is the one
    that costs least inside the window, if that was measured of all, else the plainest.
    """
    how, selection, sign = of.how, of.selection, 1 if of.how.lower else -1
    order = sorted(of.shared, key=lambda name: sign * of.score[name].value)
    best = order[0]
    regret = dict(zip(of.shared, selection.regret.tolist(), strict=True)) if selection else {}
    possible = dict(zip(of.shared, selection.possible.tolist(), strict=True)) if selection else {}
    room = how.margin(margin, of.score[best].value)
    good = {name for name in regret if regret[name] <= room}
    # A method that failed on what another could do is never the winner.
    winner = bool(selection and selection.winner) and not any(
        of.lost[best] - of.lost[name] for name in order if name != best
    )
    costs = {name: _cost(of.signs[name], inside) for name in order}
    servable = {of.first[name] for name in of.first if name not in of.code}
    usable = [name for name in order if name in servable] or order
    level = [n for n in usable if of.score[n].value == of.score[usable[0]].value]

    alike = [name for name in usable if name in good] or level
    measured = all(costs[name] for name in alike)  # else an unknown one would lose to a known one

    def in_window_cost(name: str) -> float:
        cost = costs[name]
        return sign * cost.value if cost and measured else 0.0

    use = best if winner and best == usable[0] else preferred(alike, in_window_cost)
    window, truncation = dict[str, tuple[float, float]](), None
    if inside and cut:
        plain = inside.first["none"]
        window = inside.every[plain]
        both = {unit: window[unit] for unit in in_both(of.shared[best], window)}
        if beyond and both:
            truncation = inside.own[plain] if len(both) == len(window) else scored(both, how)
    rows = {}
    for name in order:
        rows[name] = {
            "compared": of.n, "best": name == best, "winner": name == best and winner,
            "use": name == use, "margin": margin,
            "compared_score": of.score[name].value, "compared_low": of.score[name].low,
            "compared_high": of.score[name].high, **difference_columns("truncation", truncation),
            **difference_columns("change", difference(of.shared[name], window, how)),
            **difference_columns("cost", costs[name] if beyond else None),
        }  # fmt: skip
        less = differences([of.shared[best]], of.shared[name], how)
        if len(order) > 1 and less:
            above = less[0].swapped(relative=how.relative)
            rows[name] |= difference_columns("above", above) | {
                "regret": of.regret(name), "possible": possible.get(name, True),
                "as_good": name in good,
                "needed": selection.needed(room) if selection and name == best else None,
            }  # fmt: skip
    return rows


def _cost(frequencies: str | None, inside: Family | None) -> Difference | None:
    """Return what a method costs inside the window in the form that it has at this length.

    None where that form was not measured there: the factor of a method may follow the length.
    """
    if inside is None or frequencies is None:
        return None
    form = next((name for name in inside.every if inside.signs[name] == frequencies), None)
    plain = inside.every[inside.first["none"]]
    return difference(inside.every[form], plain, inside.how) if form else None


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

    It is the servable method whose largest difference from the best mean of a task is least, as in
    a race; of equal ones the next largest decides, then the regrets. Percent of perplexity and
    percentage points count alike. None where no method has a bound on every task, or no method
    scores above 0 on any.
    """
    if not any(not of.how.share or of.score[name].value for of in tasks for name in of.shared):
        return None
    if len(measured := {name for of in tasks for name in of.first}) == 1:
        return measured.pop(), 0.0
    regrets, order = {}, {}
    for name in tasks[0].first:
        bounds = [regret for of in tasks if (regret := of.regret(name)) is not None]
        if len(bounds) == len(tasks):
            regrets[name] = max(bounds)
            each = sorted((of.excess(name) for of in tasks), reverse=True)
            order[name] = each, sorted(bounds, reverse=True), plainness(name)
    names = [name for name in regrets if all(name not in of.code for of in tasks)]
    best = min(names or regrets, key=order.__getitem__, default=None)
    return None if best is None else (best, regrets[best])


def against(here: Family, baseline: str) -> dict[str, Row]:
    """Return the difference of every method from the baseline, which has a score here.

    ``p`` is of one comparison; ``p_all``, by which the ``verdict`` says better or worse, is
    corrected for all methods. A method that failed on what the other could do is not called better.
    """
    other = here.first[baseline]
    names = [name for name in here.shared if name != other] if other in here.shared else []
    shared = [here.shared[name] for name in names]
    results = differences(shared, here.shared[other], here.how) if names else []
    compared, p_all = dict(zip(names, results, strict=False)), dict[str, float | None]()
    if results:  # none, where samples do not show scores
        less = values_of(shared) - values_of([here.shared[other]])
        weights = weights_of(here.shared[other])
        corrected = adjusted(less, weights, results, shares=here.how.share)
        p_all = dict(zip(names, corrected, strict=True))
    rows: dict[str, Row] = {}
    for name in here.first.keys() - {baseline}:
        first = here.first[name]
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
