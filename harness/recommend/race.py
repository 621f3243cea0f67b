"""Who is left of a race after a round: decisions from losses alone, nothing is measured here.

Candidates are compared on the same documents, in rounds. One that is surely worse than the leader
is dropped (a Hoeffding race, Maron and Moore 1994, with tests of paired means in place of
Hoeffding's bound). The error is spent in equal parts on all candidates and rounds (Bonferroni):
whichever candidate is truly the best, it is dropped in at most ``error`` of all races. What the
documents so far do not show, a leader may hide: the tests count one more document, on which it
fails as badly as any candidate that is left did on any document.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from harness.errors import UserError
from harness.recommend.chances import Array, chances, failure, students
from harness.reports.stats.paired import ENOUGH

Losses = Mapping[str, Array]  # nats a token, of every document so far, by candidate
FIRST, GROWTH = 6, 1.5  # documents of the first round, and how much larger each next one is
SEEN = 60  # documents; a failure on one in 20 is on none of them in 5 % of samples
WORSE, PRICE, FAILED, OPEN = "worse", "price", "failed", "open"  # why one is measured no more
ONE, MARGIN, DOCUMENTS, BUDGET = "one", "margin", "documents", "budget"  # why a race is over


@dataclass(frozen=True)
class Rules:
    """What a race promises; ``tolerance`` and ``margin`` are shares of the perplexity.

    ``rounds`` are the documents measured at the end of each.
    """

    rounds: tuple[int, ...]
    tolerance: float = 0.01
    margin: float = 0.01
    error: float = 0.05

    def level(self, candidates: int) -> float:
        """Return the probability below which one comparison of one round decides."""
        return self.error / (max(1, candidates) * max(1, len(self.rounds)))


@dataclass(frozen=True)
class Dropped:
    """A candidate that is measured no more: why, worse than which, after how many documents."""

    name: str
    why: str
    by: str
    documents: int


@dataclass(frozen=True)
class Standing:
    """A race after some documents; ``ended`` says why it is over, "" while it goes on."""

    left: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    leader: str = ""
    documents: int = 0
    ended: str = ""

    @property
    def everyone(self) -> int:
        """Return how many candidates there are."""
        return len(self.left) + len(self.dropped)

    @property
    def open(self) -> tuple[str, ...]:
        """Return who was set aside for the budget, and is not distinguished from the leader."""
        return tuple(one.name for one in self.dropped if one.why == OPEN)

    @property
    def sole(self) -> str:
        """Return the sole winner; "" where there is none."""
        return self.leader if self.ended == ONE and self.documents >= ENOUGH else ""

    def again(self, lost: Collection[str]) -> Standing:
        """Bring back who was measured no more because of one that is lost."""
        back = tuple(one for one in self.dropped if one.by in lost)
        rest = tuple(one for one in self.dropped if one not in back)
        return replace(self, left=(*self.left, *(one.name for one in back)), dropped=rest)

    def without(self, names: Mapping[str, str], why: str) -> Standing:
        """Measure these no more: by name, which one is better."""
        left = tuple(name for name in self.left if name not in names)
        gone = [Dropped(name, why, by, self.documents) for name, by in names.items()]
        return replace(self, left=left, dropped=(*self.dropped, *gone))


def rounds(documents: int) -> tuple[int, ...]:
    """Return the documents at the end of every round: 6, 9, 14, 20 … 60 …, at last all of them."""
    ends, size = [], float(FIRST)
    while math.ceil(size) * 1.2 < documents:
        ends.append(math.ceil(size))
        size = next((n for n in (ENOUGH, SEEN) if size < n < size * GROWTH), size * GROWTH)
    return (*ends, documents)


def unpriced(standing: Standing, far: Losses, prices: Losses, rules: Rules) -> str | None:
    """Return whose price must be known before anyone is dropped: who would lead; None for no one.

    Only the leader's is, so that what is dropped on the way costs nothing inside the window.
    """
    for name in _order(standing.left, far):
        if name not in prices:
            return name
        if not _dear(prices[name], rules):
            return None
    return None


def decided(standing: Standing, far: Losses, prices: Losses, rules: Rules) -> Standing:
    """Drop who surely costs more than the tolerance, then who is surely worse; say if it is over.

    ``prices`` are losses inside the window less those of the plain model, of those that are known.
    The leader is the best of those whose price is not seen above the tolerance. Who was measured
    no more because of one that is dropped now for its price is left again, to be measured first.
    Raises UserError where no one is left: all cost too much, and the plain model has no number.
    """
    standing = replace(standing, documents=documents(far))
    dear = _too_dear(standing.left, prices, rules, standing.everyone)
    standing = standing.without(dict.fromkeys(dear, ""), PRICE)
    if (back := standing.again(dear)) != standing:
        return back
    if not standing.left:
        message = (
            f"every candidate that has a number surely costs more than the tolerance of "
            f"{100 * rules.tolerance:.3g} % inside the window; give a larger --tolerance."
        )
        raise UserError(message)
    order = _order(standing.left, far)
    cheap = [name for name in order if name in prices and not _dear(prices[name], rules)]
    standing = replace(standing, leader=(cheap or order)[0])
    final = standing.documents >= min(SEEN, rules.rounds[-1])
    out = _beaten(standing, far, rules, final=final)
    standing = standing.without(dict.fromkeys(out, standing.leader), WORSE)
    return replace(standing, ended=_over(standing, far, rules))


def affordable(
    standing: Standing, far: Losses, forwards: float, reserve: float, rules: Rules
) -> Standing:
    """Set aside whom the budget does not carry through the next round; keep the best.

    ``forwards`` at the target length are left to spend; ``reserve`` of them are kept for the best
    two, through all documents. Where not even two can go on, the race is over.
    """
    if standing.ended:
        return standing
    step = next(end for end in rules.rounds if end > standing.documents) - standing.documents
    if 2 * step > forwards:
        out = dict.fromkeys(_beaten(standing, far, rules, final=True), standing.leader)
        standing = standing.without(out, WORSE)
        return replace(standing, ended=_over(standing, far, rules) or BUDGET)
    room = max(0.0, forwards - reserve) / step
    most = 2 + int(min(room, standing.everyone))
    order = [name for name in _order(standing.left, far) if name != standing.leader]
    return standing.without(dict.fromkeys(order[most - 1 :], standing.leader), OPEN)


def priced(standing: Standing, prices: Losses, rules: Rules) -> Standing:
    """Return the end of a race with the prices of all that were not dropped."""
    names = [name for name in (*standing.left, *standing.open) if name in prices]
    dear = _too_dear(names, prices, rules, standing.everyone)
    kept = tuple(one for one in standing.dropped if one.name not in dear)
    gone = tuple(Dropped(name, PRICE, "", len(prices[name])) for name in dear)
    left = tuple(name for name in standing.left if name not in dear)
    return replace(standing, left=left, dropped=(*kept, *gone))


def documents(losses: Losses) -> int:
    """Return how many documents the losses are of."""
    return len(next(iter(losses.values())))


def _order(names: Iterable[str], far: Losses) -> list[str]:
    """Return candidates, the one with the least loss first."""
    return sorted(names, key=lambda name: (float(far[name].mean()), name))


def _dear(price: Array, rules: Rules) -> bool:
    """Return whether a price is seen above the tolerance."""
    return float(price.mean()) > math.log1p(rules.tolerance)


def _too_dear(names: Iterable[str], prices: Losses, rules: Rules, everyone: int) -> list[str]:
    """Return whose price is surely above the tolerance."""
    limit, level = math.log1p(rules.tolerance), rules.level(everyone)
    known = [name for name in names if name in prices and prices[name].any()]
    return [name for name in known if chances(prices[name][:, None] - limit, level)[0] < level]


def _apart(standing: Standing, far: Losses) -> tuple[list[str], Array]:
    """Return who is left beside the leader, and how much worse each is on every document."""
    others = [name for name in standing.left if name != standing.leader]
    columns = [far[name] - far[standing.leader] for name in others]
    return others, np.stack(columns, axis=1) if columns else np.zeros((standing.documents, 0))


def _beaten(standing: Standing, far: Losses, rules: Rules, *, final: bool) -> list[str]:
    """Return who is surely worse than the leader; two stay, but for the ``final`` decision.

    Who is dropped takes its failures along: those that are left are compared again.
    """
    others, apart = _apart(standing, far)
    level, out = rules.level(standing.everyone), np.zeros(len(others), bool)
    while not out.all():
        left = np.flatnonzero(~out)
        worse = chances(apart[:, left], level, failure(apart[:, left])) < level
        if not worse.any():
            break
        out[left[worse]] = True
    gone = [name for name, dropped in zip(others, out, strict=True) if dropped]
    stay = len(gone) == len(others) and not (final and standing.documents >= ENOUGH)
    return _order(gone, far)[1:] if stay else gone


def _over(standing: Standing, far: Losses, rules: Rules) -> str:
    """Say why a race is over: one is left, or all left are within the margin of the leader."""
    others, apart = _apart(standing, far)
    if not others:
        return DOCUMENTS if standing.open else ONE
    if standing.documents >= ENOUGH and not standing.open:
        room, level = math.log1p(rules.margin), rules.level(standing.everyone)
        sides, lost = np.hstack([room + apart, room - apart]), failure(apart)
        if (students(sides, lost) < level).all() and (chances(sides, level, lost) < level).all():
            return MARGIN
    return DOCUMENTS if standing.documents >= rules.rounds[-1] else ""
