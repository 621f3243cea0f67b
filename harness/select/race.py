"""A race of methods: who is measured on more documents, when it ends, what its answer may claim.

After each round the candidates are compared on the documents so far by Hsu's multiple comparisons
with the best (``harness.stats.selection``). For each candidate k this gives upper bounds of how
much worse every other candidate is than k; if k is truly the best, all of them hold. Everything
that a race claims needs only this one event, for the method that is truly the best:

- a candidate is eliminated once another's upper bound is below 0: it is not the best;
- how much worse the recommended method can be than the best is the largest of its upper bounds
  over the candidates that may be the best;
- the winner is the one candidate that is left.

So all claims of a race hold together in 95 % of races (simulated: ``results/races.md``). Looking
after every round does not change this, because the rounds share the error of 5 % (a union bound): a
fifth of it is for eliminating candidates whose in-window cost is above the tolerance. Half of the
rest is for the last round that the budget covers for all candidates, and the rounds share the other
half in proportion to their documents. As the bounds of all rounds hold together, the lowest one
counts.

A candidate is also measured no further once the leader is at most the margin worse than it: it may
be the best, but not by more than the margin. Its bounds stay, so the claims still include it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.stats.paired import of_means
from harness.stats.selection import preferred, select_means
from harness.sweep.eta import duration
from tasks._intervals import ratios

Array = NDArray[np.float64]
FAR, NEAR, CUT = "far", "near", "cut"  # at the target; inside the window; truncated to the window
Need = tuple[str, str, int]  # one of these, a candidate, and on how many documents
FIRST, SECOND, GROWTH = 4, 6, 1.5  # documents of the first rounds, and how fast they grow
SHARE = 3  # the default budget is one part in so many of what measuring everything takes
FINALISTS = 6  # candidates whose in-window cost is measured on all documents of the race
ERROR, COST_ERROR = 0.05, 0.01  # probability of a false claim; the part for in-window costs
WINNER, MARGIN, DOCUMENTS, BUDGET = "winner", "margin", "documents", "budget"  # why a race ended
WRITTEN = re.compile(r"([1-9][0-9]{0,8}(?:\.[0-9]{1,3})?) ?(h|min|s|)")
SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0}


@dataclass(frozen=True)
class Budget:
    """The most that a race may take, in seconds or in forwards at the target length."""

    most: float = math.inf
    timed: bool = False

    def __str__(self) -> str:
        return "no limit" if math.isinf(self.most) else self.text(self.most)

    def text(self, cost: float) -> str:
        """Return a part of the budget in words, rounded up."""
        return duration(math.ceil(cost)) if self.timed else f"{math.ceil(cost):,} forwards"


def read_budget(text: str | None, default: float) -> Budget:
    """Parse a budget; None is the default number of forwards. Raise UserError if it is invalid."""
    if text is None:
        return Budget(default)
    if text == "all":
        return Budget()
    match = WRITTEN.fullmatch(text)
    if match is None or (not match[2] and "." in match[1]):
        raise UserError(
            f"--budget {text!r} is invalid: write 2h, 15min, a number of forwards, or all."
        )
    return Budget(float(match[1]) * SECONDS.get(match[2], 1.0), timed=bool(match[2]))


class Field(Protocol):
    """What a race measures with: a model and its run folder, or numbers that are known already."""

    @property
    def budget(self) -> Budget:
        """The most that the race may take."""

    def spent(self) -> float:
        """Return how much of the budget is spent."""

    def cost(self, needs: Iterable[Need]) -> float:
        """Return how much of the budget it takes to measure what is missing."""

    def measure(self, needs: Iterable[Need]) -> dict[str, str]:
        """Measure what is missing; return the candidates that have no number, and why."""

    def losses(self, kind: str, name: str, documents: int) -> Array:
        """Return the loss per token on each of the first documents."""

    def unchanged(self, name: str) -> bool:
        """Return whether a candidate is the plain model inside the window."""


@dataclass(frozen=True)
class Rules:
    """What a race promises.

    Attributes:
        rounds: documents measured at the end of each round; the last are all of them.
        own: the plain model, against which in-window costs are measured.
        servable: the candidates to choose from; others are measured for a note.
        tolerance: the in-window cost that a candidate may have, as a share of the perplexity.
        margin: a method at most this much worse than the best is as good as the best.
    """

    rounds: tuple[int, ...]
    own: str
    servable: frozenset[str]
    tolerance: float = 0.01
    margin: float = 0.01


@dataclass(frozen=True)
class Standing:
    """A race after a round; a loss is in nats per token.

    Attributes:
        names: the candidates that were raced.
        documents: how many the leader was measured on.
        seen: how many each candidate was measured on.
        leader: the servable candidate with the lowest mean.
        possible: the servable candidates that may be the best.
        regret: how much worse each candidate can be than the best servable one; absent if unknown.
        needed: documents that would bring the leader's regret down to the margin; None if unknown.
        ended: why the race is over, "" while it goes on.
        recommended: the method to use; "" while the race goes on.
        truncated: whether truncation was measured.
    """

    names: tuple[str, ...]
    documents: int
    seen: dict[str, int]
    leader: str
    possible: tuple[str, ...]
    regret: dict[str, float]
    needed: int | None = None
    ended: str = ""
    recommended: str = ""
    truncated: bool = False


def rounds(documents: int) -> tuple[int, ...]:
    """Return the documents at the end of every round: 4, 6, 9, 14, 20, 30, 46 … and all of them."""
    ends, size = [], float(FIRST)
    while round(size) * 1.2 < documents:
        ends.append(round(size))
        size = max(SECOND, size * GROWTH)
    return (*ends, documents)


class Bounds:
    """Upper bounds of all differences between the servable candidates, over all rounds."""

    def __init__(self, names: tuple[str, ...], rules: Rules) -> None:
        self.names, self.rules = names, rules
        self.main = [name for name in names if name in rules.servable] or list(names)
        self.upper = np.full((len(self.main), len(self.main)), np.inf)
        np.fill_diagonal(self.upper, 0)
        self.seen = dict.fromkeys(names, 0)

    def after(
        self, losses: Mapping[str, Array], documents: int, alpha: float
    ) -> tuple[Standing, tuple[str, ...]]:
        """Return the standing after a round, and the candidates to measure in the next one."""
        self.seen |= dict.fromkeys(losses, documents)
        margin, main = math.log1p(self.rules.margin), self.main
        active = [place for place, name in enumerate(main) if name in losses]
        table = np.stack([losses[main[place]] for place in active], axis=1)
        leader = active[int(table.mean(axis=0).argmin())]
        selection = select_means(table, np.ones(documents), level=1 - alpha, candidates=len(main))
        if selection:
            both = np.ix_(active, active)
            self.upper[both] = np.minimum(self.upper[both], selection.upper)
        possible = np.all(self.upper >= 0, axis=0)
        regret = self.upper[:, possible].max(axis=1)
        above = enumerate(self.upper[leader])
        rivals = [place for place, bound in above if possible[place] and bound > margin]
        unserved = {
            name: losses[name] - losses[main[leader]] for name in losses if name not in main
        }
        following = (
            *(main[place] for place in sorted({leader, *rivals})),
            *(name for name, difference in unserved.items() if not _significant(difference)),
        )
        ended = DOCUMENTS if documents >= self.rules.rounds[-1] else ""
        if not rivals:
            ended = WINNER if possible.sum() == 1 else MARGIN
        return Standing(
            names=self.names,
            documents=documents,
            seen=dict(self.seen),
            leader=main[leader],
            possible=tuple(name for name, is_ in zip(main, possible, strict=True) if is_),
            regret={n: float(r) for n, r in zip(main, regret, strict=True) if r < np.inf},
            needed=selection.needed(margin) if selection else None,
            ended=ended,
        ), following


def _significant(difference: Array) -> bool:
    return of_means(difference[:, None], np.ones((len(difference), 1)))[0].significant()


class Race:
    """A race of candidates, given in the order in which a small budget takes them.

    ``cost_documents`` are the documents on which each in-window cost was measured.
    """

    def __init__(self, field: Field, names: tuple[str, ...], rules: Rules) -> None:
        self.field, self.names, self.rules = field, names, rules
        self.failed: dict[str, str] = {}
        self.costly: set[str] = set()
        self.cost_documents: dict[str, int] = {}

    def run(self, report: Callable[[Standing], None]) -> Standing:
        """Race to the end; ``report`` is given the standing after each round.

        If a candidate fails, or is found too costly, after it eliminated others, the race is
        decided again without it, from the samples that exist.
        """
        self._measure_first_round()
        while True:
            standing = self._run_rounds(report)
            if standing and (finished := self._finish(standing)):
                return finished

    def in_window_cost(self, name: str, documents: int) -> Array:
        """Return how much more a candidate loses inside the window than the plain model."""
        if self.field.unchanged(name):
            return np.zeros(documents)
        own = self.field.losses(NEAR, self.rules.own, documents)
        return self.field.losses(NEAR, name, documents) - own

    def default_budget(self, grid: float) -> float:
        """Return the default budget, given the cost of measuring everything.

        It is a third, or two rounds of all candidates where that is more: one says too little.
        """
        return max(grid / SHARE, self.cost(self.names, self.rules.rounds[:2][-1]))

    def fit_budget(self) -> None:
        """Drop the last candidates until the first round fits into the budget."""
        first = self.rules.rounds[0]
        while not self._affordable(cost := self.cost(self._left(), first)):
            if len(self._left()) <= 2:
                least = self.field.budget.text(self.field.spent() + cost)
                raise UserError(
                    f"--budget {self.field.budget} is too small: {len(self._left())} candidates on "
                    f"{first} documents, with their in-window cost and truncation, take at least "
                    f"{least}. Give that much, fewer documents (--limit), or a shorter --length."
                )
            self.names = tuple(name for name in self.names if name != self._left()[-1])

    def cost(self, names: Sequence[str], end: int, begun: Iterable[Need] = ()) -> float:
        """Return what it takes to measure candidates on documents and then to finish the race."""
        each = sorted(self._changed(names), key=lambda name: self.field.cost([(NEAR, name, end)]))
        needs = [*begun, *((FAR, name, end) for name in names), (CUT, self.rules.own, end)]
        needs += self._near(names, self.rules.rounds[0]) + self._near(each[-FINALISTS:], end)
        return self.field.cost(needs)

    def _affordable(self, cost: float) -> bool:
        return cost <= self.field.budget.most - self.field.spent()

    def _measure_first_round(self) -> None:
        """Measure the first round of as many candidates as the budget allows.

        A budget of time is compared again with what was measured after two forwards, which show how
        fast the model is, and after the first document, which shows it of each candidate.
        """
        first = self.rules.rounds[0]
        self.fit_budget()
        if self.field.budget.timed:
            self._measure((FAR, name, min(2, first)) for name in self.names[:1])
            self.fit_budget()
        self._measure_costs(self._left(), first)
        self._eliminate_costly(self._left(), first)
        for documents in (1, first) if self.field.budget.timed else (first,):
            self.fit_budget()
            self._measure((FAR, name, documents) for name in self._left())
        self.planned = self._plan_rounds()

    def _run_rounds(self, report: Callable[[Standing], None]) -> Standing | None:
        """Measure round by round until the race is over; None where a candidate failed."""
        active = self._left()
        if not active:
            why = "is too costly inside the window" if self.costly else "has no number"
            raise UserError(
                f"every candidate failed or {why}; give other --scaling, or more --tolerance."
            )
        bounds, standing = Bounds(active, self.rules), None
        for end in self.planned:
            documents = self._affordable_documents(active, standing, end) if standing else end
            if standing and documents == standing.documents:
                break
            if not self._measure((FAR, name, documents) for name in active):
                return None
            losses = {name: self.field.losses(FAR, name, documents) for name in active}
            standing, active = bounds.after(losses, documents, self.planned[end])
            report(standing)
            if standing.ended:
                return standing
        assert standing is not None  # there is a first round
        return replace(standing, ended=BUDGET)

    def _finish(self, standing: Standing) -> Standing | None:
        """Measure in-window costs and truncation, and recommend; None if a candidate is out."""
        end, own = standing.documents, self.rules.own
        best = {
            name: float(self.field.losses(FAR, name, end).mean())
            for name in {standing.leader, *standing.possible}
            if standing.seen[name] == end
        }
        final = sorted(best, key=lambda name: (best[name], name))[:FINALISTS]
        cut = [(CUT, own, end)]
        while len(final) > 1 and not self._affordable(
            self.field.cost(self._near(final, end) + cut)
        ):
            final.pop()
        if not self._measure_costs(final, end) or self._eliminate_costly(final, end):
            return None
        truncated = self._affordable(self.field.cost(cut)) and not self.field.measure(cut)
        margin = math.log1p(self.rules.margin)
        alike = [name for name in final if standing.regret.get(name, math.inf) <= margin]

        def cost(name: str) -> float:
            return round(float(self.in_window_cost(name, end).mean()), 3)

        recommended = preferred(alike or [standing.leader], cost)
        return replace(standing, recommended=recommended, truncated=truncated)

    def _left(self) -> tuple[str, ...]:
        return tuple(n for n in self.names if n not in self.failed and n not in self.costly)

    def _changed(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.field.unchanged(name)]

    def _near(self, names: Iterable[str], documents: int) -> list[Need]:
        changed = self._changed(names)
        return [(NEAR, name, documents) for name in [*[self.rules.own] * bool(changed), *changed]]

    def _measure(self, needs: Iterable[Need]) -> bool:
        """Measure; return whether every candidate has its numbers."""
        failed = self.field.measure(needs)
        self.failed |= failed
        return not failed

    def _measure_costs(self, names: Iterable[str], documents: int) -> bool:
        """Measure in-window costs; return whether every candidate has one."""
        changed = self._changed(names)
        complete = self._measure(self._near(changed, documents))
        self.cost_documents |= dict.fromkeys(changed, documents)
        return complete

    def _eliminate_costly(self, names: Iterable[str], documents: int) -> bool:
        """Eliminate who costs significantly more than the tolerance; return whether there is one.

        There are two such tests, on the first round and at the end, of all candidates at most.
        """
        changed = [name for name in self._changed(names) if name not in self.failed]
        if not changed:
            return False
        costs = np.stack([self.in_window_cost(name, documents) for name in changed], axis=1)
        level = 1 - COST_ERROR / len(self.names)  # of two sides, one of which is tested, twice
        lows = [one.interval(level)[0] for one in ratios(costs, np.ones((documents, 1)))]
        limit = math.log1p(self.rules.tolerance)
        costly = {
            n for n, low in zip(changed, lows, strict=True) if low is not None and low > limit
        }
        self.costly |= costly
        return bool(costly)

    def _plan_rounds(self) -> dict[int, float]:
        """Return the rounds that the budget may allow, each with its part of the error.

        They are fixed before the first comparison. The last round is the first that the budget does
        not cover for two candidates, if there is one. Half of the error is for the last round that
        it covers for all, where most races end; the rest is in proportion to documents.
        """
        first, *later = self.rules.rounds
        names = self._left()
        begun = [(FAR, name, first) for name in names]
        two, all_ = (
            sum(self._affordable(self.cost(some, end, begun)) for end in later)
            for some in (names[:2], names)
        )
        planned = (first, *later[: two + 1])
        reached = planned[min(all_ + 1, len(planned) - 1)]
        error = (ERROR - COST_ERROR) / 2
        return {end: error * (end / sum(planned) + (end == reached)) for end in planned}

    def _affordable_documents(self, active: Sequence[str], standing: Standing, end: int) -> int:
        """Return on how many documents, up to ``end``, the budget covers all active candidates."""
        documents = standing.documents
        while documents < end:
            middle = (documents + end + 1) // 2
            if self._affordable(self.cost(active, middle)):
                documents = middle
            else:
                end = middle - 1
        return documents
