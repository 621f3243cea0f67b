"""A race of methods: who is measured on more documents, when it ends, what its answer may claim.

After each round the candidates are compared on the documents or trials so far, task by task, by
Hsu's multiple comparisons with the best (``harness/stats/selection.py``). For each candidate k this
gives upper bounds of how much worse every other candidate is than k. Everything that a race claims
of a task needs only those bounds to hold of the method that is truly the best there:

- a candidate whose bound is below 0 for another is significantly worse: it is not the best;
- how much worse the recommended method can be than the best is the largest of its upper bounds
  over the candidates that may be the best;
- the winner is the one candidate that may be the best.

So all claims of a race hold together in 95 % of races (simulated: ``results/races.md``). Looking
after every round does not change this, because rounds and tasks share the error of 5 %, in parts
that are fixed before the first comparison (a union bound). As the bounds of all rounds hold
together, the lowest one counts. The bounds are over all candidates, also those that the budget did
not reach yet.

With several tasks the best method is the one whose largest difference from the best mean of a task
is least; percent of perplexity and percentage points of a share count alike. A candidate is
eliminated once it is not that one: it is significantly worse than some other on every task, or it
is worse than the best of one task by more than another can be on any. (The method that is the best
overall is eliminated only where its own bounds fail, or those of the best on a task: of this,
another 5 % is the most.)

A candidate is also measured no further once the leader is at most the margin worse than it on every
task: it may be the best, but not by more than the margin. Its bounds stay, so the claims still
include it. One that is eliminated is still measured while it may be the best on one of several
tasks, because the leader's bound there depends on it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import ndtri

from ropewalk.harness.errors import UserError
from ropewalk.harness.recommend.candidates import OWN
from ropewalk.harness.recommend.losses import CUT, FAR, NEAR, Losses, Need
from ropewalk.harness.stats.measure import values_of
from ropewalk.harness.stats.paired import Array, shares_of
from ropewalk.harness.stats.selection import preferred, select
from ropewalk.tasks._intervals import ratios

FIRST, SECOND, GROWTH = 4, 6, 1.5  # units of the first rounds, and how fast they grow
SHARE = 3  # the default budget is one part in so many of what measuring everything takes
FINALISTS = 6  # candidates whose in-window cost is measured on all documents of the race
ERROR, COST_ERROR = 0.05, 0.01  # probability of a false claim; the part for in-window costs
WINNER, MARGIN, DOCUMENTS, BUDGET = "winner", "margin", "documents", "budget"  # why a race ended


def rounds(documents: int) -> tuple[int, ...]:
    """Return the documents at the end of every round: 4, 6, 9, 14, 20, 30, 46 … and all of them."""
    ends, size = [], float(FIRST)
    while round(size) * 1.2 < documents:
        ends.append(round(size))
        size = max(SECOND, size * GROWTH)
    return (*ends, documents)


@dataclass(frozen=True)
class Standing:
    """A race after a round. A regret is a share of perplexity, or of the trials.

    Attributes:
        documents: how many documents or trials of every task the leader was measured on, or all.
        leader: the candidate whose scores are least worse than the best ones.
        possible: the candidates that may be the best over all tasks.
        regrets: how much worse each candidate can be than the best, by task; absent if unknown.
        winners: the one candidate that may be the best, by task; "" where there are several.
        needed: documents or trials that would bring the leader's regret down to the margin, by
            task; None if unknown.
        active: the candidates that are measured further while the race goes on.
        ended: why the race is over, "" while it goes on.
        recommended: the method to use; "" while the race goes on.
    """

    documents: int
    leader: str
    possible: tuple[str, ...]
    regrets: Mapping[str, Mapping[str, float]]
    winners: Mapping[str, str]
    needed: Mapping[str, int | None]
    active: tuple[str, ...]
    ended: str
    recommended: str = ""

    def regret(self, name: str) -> float:
        """Return the largest regret that a candidate can have on a task."""
        return max(self.regrets.get(name, {"": math.inf}).values())


class Race:
    """A race of candidates, given in the order in which a small budget takes them.

    Attributes:
        tolerance: the in-window cost that a candidate may have on a task, as a share.
        margin: a method at most this much worse than the best is as good as the best.
        entered: the candidates that were measured on the first round.
        costly: those whose in-window cost is significantly above the tolerance.
        seen: the documents or trials on which each candidate was measured at the target.
        cost_documents: those on which each in-window cost was measured.
        raced: the candidates that are compared, without those that failed or cost too much.
        upper: the lowest bound so far of how much worse each of them is than each other, by task.
    """

    def __init__(
        self, data: Losses, names: Iterable[str], tolerance: float = 0.01, margin: float = 0.01
    ) -> None:
        self.data, self.names, self.tasks = data, tuple(names), data.tasks
        self.tolerance, self.margin = tolerance, margin
        self.rounds = rounds(data.size)
        self.entered: list[str] = []
        self.costly: set[str] = set()
        self.seen: dict[str, int] = {}
        self.cost_documents: dict[str, int] = {}
        retrieval = any(how.share for how in self.tasks.values())
        # What shows whether the model itself can do the tasks of retrieval.
        self._plain: list[Need] = [(NEAR, OWN, data.size)] if retrieval else []

    def run(self) -> Generator[Standing]:
        """Yield the standing after each round, and the answer at the end.

        The race is decided again, from the samples that exist, if a candidate fails or is found too
        costly after it eliminated others.
        """
        self._check_window()
        if self.data.budget.timed:  # a few short forwards after a first, slow one show its speed
            for count in (1, min(3, self.rounds[0])):
                self.data.measure([(NEAR, OWN, count)])
        while self._enter():
            pass
        levels, answer = self._levels(), None
        while answer is None:
            standing = yield from self._run_rounds(levels)
            answer = standing and self._finish(standing)
        yield answer

    def _run_rounds(
        self, levels: Mapping[int, float]
    ) -> Generator[Standing, None, Standing | None]:
        """Measure round by round; return None where a candidate failed."""
        active = self.raced = self.left(self.entered)
        if not active:
            why = "is too costly inside the window" if self.costly else "has no number"
            raise UserError(
                f"every candidate failed or {why}; give other --scaling, or more --tolerance."
            )
        count, standing = len(active), None
        self.upper = np.full((len(self.tasks), count, count), np.inf)
        self.upper[:, range(count), range(count)] = 0
        self.seen |= dict.fromkeys(active, 0)
        for end, alpha in levels.items():
            documents = end
            if standing:
                more, cost = range(standing.documents + 1, end + 1), partial(self._cost, active)
                documents = standing.documents + bisect_right(more, self._budget_left(), key=cost)
                if documents == standing.documents:
                    break
            if not self.data.measure([(FAR, name, documents) for name in active]):
                return None
            self.seen |= dict.fromkeys(active, documents)
            standing = self._decide(active, documents, alpha)
            active = standing.active
            yield standing
            if standing.ended:
                return standing
        assert standing is not None  # there is a first round
        complete = standing.documents == self.rounds[-1]
        return replace(standing, ended=DOCUMENTS if complete else BUDGET)

    def _decide(self, active: Sequence[str], documents: int, alpha: float) -> Standing:
        """Compare the candidates of a round."""
        names, upper = self.raced, self.upper
        excess = self._excess(active, documents)
        leading = min(excess, key=excess.__getitem__)
        places, leader, needed = [names.index(name) for name in active], names.index(leading), {}
        for bounds, (task, how) in zip(upper, self.tasks.items(), strict=True):
            units = [self.data.units(task, (FAR, name, documents)) for name in active]
            level = 1 - alpha / len(self.tasks)
            selection = select(units, how, level=level, candidates=len(self.names))
            if selection:
                both = np.ix_(places, places)
                bounds[both] = np.minimum(bounds[both], np.vectorize(how.shown)(selection.upper))
            margin = how.margin(100 * self.margin, 0.0)
            needed[task] = selection.needed(margin) if selection else None
        possible = np.all(upper >= 0, axis=1)
        possible[~possible.any(axis=1)] = True  # the bounds of two rounds can contradict each other
        regrets = np.where(possible[:, None], upper, -np.inf).max(axis=2)
        least = np.stack([  # that each is worse than the best
            1 / (1 + low) - 1 if how.relative else -low
            for how, low in zip(self.tasks.values(), upper.min(axis=1), strict=True)
        ])  # fmt: skip
        left = (upper >= 0).any(axis=0).all(axis=0) & (least.max(0) <= regrets.max(0).min())
        far = upper[:, leader] > self.margin
        matters = (far & (possible | left)).any(axis=0)
        rivals = np.flatnonzero(matters).tolist() if left.sum() > 1 else []
        return Standing(
            documents=documents,
            leader=leading,
            possible=tuple(name for name, is_ in zip(names, left, strict=True) if is_),
            regrets={
                name: dict(zip(self.tasks, of, strict=True))
                for name, of in zip(names, regrets.T.tolist(), strict=True)
                if max(of) < math.inf
            },
            winners={
                task: names[int(may.argmax())] if may.sum() == 1 else ""
                for task, may in zip(self.tasks, possible, strict=True)
            },
            needed=needed,
            ended="" if rivals else WINNER if left.sum() == 1 else MARGIN,
            active=tuple(names[index] for index in sorted({leader, *rivals})),
        )

    def _losses(self, task: str, kind: str, names: Iterable[str], documents: int) -> Array:
        """Return the losses on the first documents or trials, shape (units, names)."""
        sign = 1 if self.tasks[task].lower else -1
        return sign * values_of([self.data.units(task, (kind, name, documents)) for name in names])

    def _excess(self, names: Sequence[str], documents: int) -> dict[str, list[float]]:
        """Return by how much each score is worse than the best of these, the largest first."""
        excess: dict[str, list[float]] = {name: [] for name in names}
        for task, how in self.tasks.items():
            means = self._losses(task, FAR, names, documents).mean(axis=0)
            for name, cost in zip(names, (means - means.min()).tolist(), strict=True):
                excess[name].append(how.shown(cost))
        return {name: sorted(of, reverse=True) for name, of in excess.items()}

    def _finish(self, standing: Standing) -> Standing | None:
        """Measure in-window costs and truncation, and recommend; None if a candidate is out."""
        end, cut = standing.documents, [(CUT, OWN, standing.documents)]
        names = {standing.leader, *standing.possible}
        best = self._excess([name for name in names if self.seen[name] == end], end)
        final = sorted(best, key=lambda name: (best[name], name))[:FINALISTS]
        while len(final) > 1 and self.data.cost(_near(final, end) + cut) > self._budget_left():
            final.pop()
        if not self._within_tolerance(final, end):
            return None
        self.data.measure(cut)
        alike = [name for name in final if standing.regret(name) <= self.margin]
        level = [name for name in final if best[name] == best[standing.leader]]
        inside = [self._in_window_costs(task, final, end).mean(axis=0) for task in self.tasks]
        costs = {
            name: max(round(mean, 3) for mean in means)
            for name, means in zip(final, np.stack(inside, axis=1).tolist(), strict=True)
        }
        return replace(standing, recommended=preferred(alike or level, costs.__getitem__))

    def _levels(self) -> dict[int, float]:
        """Return the part of the error of each round, by its documents.

        A fifth of the error is for eliminating candidates whose in-window cost is above the
        tolerance. Half of the rest is for the last round that the budget covers for all candidates,
        where most races end; the rounds share the other half equally.
        """
        names, left = self.left(self.entered), self._budget_left()
        covered = sum(self._cost(names, end) <= left for end in self.rounds[1:])
        reached = self.rounds[min(covered + 1, len(self.rounds) - 1)]
        error = (ERROR - COST_ERROR) / 2
        return {end: error * (1 / len(self.rounds) + (end == reached)) for end in self.rounds}

    def default_budget(self) -> float:
        """Return a third of the forwards of the grid, or two rounds of all if that is more."""
        return max(self.grid() / SHARE, self._cost(self.names, self.rounds[:2][-1]))

    def grid(self) -> float:
        """Return how many forwards it takes to measure all candidates on every document."""
        end = self.rounds[-1]
        far = [(FAR, name, end) for name in self.names]
        return self.data.forwards([*far, *_near(self.names, end), (CUT, OWN, end)])

    def covered(self) -> list[str]:
        """Return the candidates that can still enter, as many as the budget covers.

        That is their first round, and the end of the race. Raises UserError if the budget does not
        cover two candidates.
        """
        first, entered = self.rounds[0], self.left(self.entered)
        new = [name for name in self.left(self.names) if name not in entered]
        while new and (cost := self._cost([*entered, *new], first)) > self._budget_left():
            if not self.entered and len(new) <= 2:
                budget = self.data.budget
                least = budget.text(self.data.spent() + cost)
                raise UserError(
                    f"--budget {budget.text(budget.most)} is too small: {len(new)} candidates on "
                    f"{first} {self.data.nouns}, with their in-window cost and truncation, take at "
                    f"least {least}. Give that much, fewer {self.data.nouns} (--limit), or a "
                    "shorter --length."
                )
            new.pop()
        return new

    def _enter(self) -> bool:
        """Measure the first round of those who can enter; return whether anything was measured.

        The forwards of one document show how fast they are.
        """
        first, new = self.rounds[0], self.covered()
        if not new:
            return False
        self._within_tolerance(new, first)
        for count in (1, first):
            entering = [name for name in self.covered() if name in new]
            self.data.measure([(FAR, name, count) for name in entering])
        self.entered += self.left(entering)
        return True

    def _within_tolerance(self, names: Sequence[str], documents: int) -> bool:
        """Measure in-window costs and eliminate who costs significantly more than the tolerance.

        Return whether nobody is out. There are two such tests, on the first round and at the end,
        of all candidates at most.
        """
        complete = self.data.measure(_near(names, documents))
        left = self.left(names)
        self.cost_documents |= dict.fromkeys(left, documents)
        if not left:
            return False
        level = 1 - COST_ERROR / len(self.names) / len(self.tasks)  # of two sides, one is tested
        for task, how in self.tasks.items():
            costs = self._in_window_costs(task, left, documents)
            if how.share:
                center, error = shares_of(costs)
                lows = (center - float(ndtri((1 + level) / 2)) * error).tolist()
            else:
                means = ratios(costs, np.ones((len(costs), 1)))
                lows = [mean.interval(level)[0] for mean in means]
            for name, low in zip(left, lows, strict=True):
                if low is not None and how.shown(low) > self.tolerance:
                    self.costly.add(name)
        return complete and self.left(names) == left

    def _in_window_costs(self, task: str, names: Sequence[str], documents: int) -> Array:
        """Return how much more than the plain model each loses inside the window."""
        losses = partial(self._losses, task, NEAR, documents=documents)
        return losses(names=names) - losses(names=[OWN])

    def _check_window(self) -> None:
        """Raise UserError for retrieval that the plain model fails inside its window."""
        self.data.measure(self._plain)
        for task, how in self.tasks.items():
            if how.share and not self._losses(task, NEAR, [OWN], self.data.size).any():
                raise UserError(
                    f"{OWN} scores 0 on all {len(self.data.order[task])} trials of {task} inside "
                    f"the trained window ({self.data.window:,} tokens): there is no retrieval to "
                    "keep beyond it. Name a task that the model can do, such as --task perplexity."
                )

    def _cost(self, names: Sequence[str], end: int) -> float:
        """Return what it takes to measure candidates on so many documents and finish the race."""
        near = sorted(names, key=lambda name: self.data.cost([(NEAR, name, end)]))
        needs = [*((FAR, name, end) for name in names), (CUT, OWN, end), *self._plain]
        return self.data.cost(
            [*needs, *_near(names, self.rounds[0]), *_near(near[-FINALISTS:], end)]
        )

    def _budget_left(self) -> float:
        return self.data.budget.most - self.data.spent()

    def left(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the candidates that have numbers and do not cost too much."""
        return tuple(n for n in names if n not in self.data.failed and n not in self.costly)


def _near(names: Iterable[str], documents: int) -> list[Need]:
    return [(NEAR, name, documents) for name in (OWN, *names)]
