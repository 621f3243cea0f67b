"""How fast a sweep goes and how long it still takes, from what each part of it costs.

A cost is known before: tokens and pairs of every forward. What is measured are speeds
(``speeds.py``); they are kept for the next sweep of the same model on the same machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import cached_assets_path, constants

from harness.errors import UserError
from harness.files import replacing
from harness.sweep.cells import Batch, Item, Key
from harness.sweep.costs import Step, Steps, steps_of
from harness.sweep.plan import Plan
from harness.sweep.record import named
from harness.sweep.speeds import USUAL, Cost, Kind, Row, Rows, Speeds, fitted, guessed

WORTH = 2.0  # seconds; a shorter measurement is no speed to keep
WARM = 1.0  # seconds that a first answer may take beside its cost, as kernels load
KNOWN, GUESSED = 1.33, 2.0  # times an estimate is off, from earlier runs and from one product
NOTHING = np.zeros(4)


@dataclass
class _Part:
    """The questions of one batch: their steps, those left in their order, and their cost."""

    method: str
    steps: Steps
    needs: dict[Key, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.left = dict(enumerate(self.steps.steps))
        self.cost = sum((step.cost for step in self.steps.steps), NOTHING)

    def take(self, item: Item) -> list[Step]:
        """Return the steps that an answer shows to be done, and take them off."""
        needed = self.needs[item.key]
        done = [self.left.pop(step) for step in needed if step in self.left]
        self.cost = self.cost - sum((step.cost for step in done), NOTHING)
        return done

    def under_way(self, tokens: float) -> Cost:
        """Return what so many tokens cost that went through the layers without an answer yet."""
        cost = NOTHING
        for run in self.left.values():
            if tokens <= 0:
                break
            if not run.cost[3]:
                cost = cost + min(1.0, tokens / run.tokens) * run.cost
                tokens -= run.tokens
        return cost


@dataclass
class ETA:
    """What is done and what is left of a sweep, in parts of a cost and in seconds."""

    parts: tuple[_Part, ...]
    known: Rows = field(default_factory=dict)  # of earlier sweeps
    guess: float | None = None  # seconds of an operation, where nothing is known
    rows: Rows = field(default_factory=dict)  # of this one
    tokens: float = 0.0  # since the last answer
    forwarded: int = 0  # tokens whose answers came
    now: _Part | None = None
    last: float | None = None  # when the last answer came
    seen: float = 0.0  # when anything was last heard

    @classmethod
    def of(cls, plan: Plan, work: Sequence[Batch], known: Rows, guess: float | None = None) -> ETA:
        """Begin with nothing done."""
        parts = []
        for batch in work:
            steps = steps_of(plan.checkpoint, batch)
            needs = dict(zip(batch.questions, steps.needs, strict=True))
            parts.append(_Part(batch.items[0].cell.scaling, steps, needs))
        return cls(tuple(parts), known, guess, now=next(iter(parts), None))

    def __post_init__(self) -> None:
        self.part_of = {key: part for part in self.parts for key in part.needs}
        self.whole = sum((part.cost for part in self.parts), NOTHING)
        self.took = 0.0

    def begin(self) -> None:
        """Note that the weights are loaded."""
        self.last = self.seen = time.monotonic()

    def layers(self, tokens: float) -> None:
        """Note that so many tokens have gone through all layers, or more through some of them."""
        self.tokens += tokens
        self.seen = time.monotonic()

    def answer(self, item: Item, seconds: float) -> None:
        """Note that a question is answered."""
        self.seen = time.monotonic()
        since = self.seen - self.last if self.last is not None else seconds
        self.now = self.part_of[item.key]
        done = self.now.take(item)
        self.forwarded += sum(step.tokens for step in done)
        cost = sum((step.cost for step in done), NOTHING)
        worked = self._worked(since, cost)
        kind = Kind(self.now.method, item.question.length, bool(item.question.new))
        row = self.rows.setdefault(kind, Row())
        row.cost = row.cost + cost
        row.seconds += worked
        self.took += since
        if not self.now.left:
            self.now = next((part for part in self.parts if part.left), self.now)
        self.last, self.tokens = self.seen, 0.0

    def _worked(self, seconds: float, cost: Cost) -> float:
        """Return the seconds that the cost of an answer took: of the first, without the warm-up.

        A tiny model's first forward is nearly all warm-up: taken for work, it would make minutes of
        a sweep of seconds. The speeds known before it say how long the cost takes at least.
        """
        before = None if self.rows else fitted(self.known, {}, self.guess)
        if before is None or self.now is None:
            return seconds
        told = before.seconds(cost, self.now.method)
        return max(min(told, seconds), seconds - WARM)

    def tokens_a_second(self) -> float | None:
        """Return how many tokens are forwarded a second, those under way included."""
        seconds = self.took + self.seen - (self.last or self.seen)
        return (self.forwarded + self.tokens) / seconds if seconds > 0 else None

    def share(self) -> float:
        """Return which share of the time is over by the speeds known, what is under way included.

        Without any, it is the share by the usual ones.
        """
        usual = self.speeds() or Speeds(USUAL, {})
        left = sum(usual.seconds(cost, method) for method, cost in self.left())
        whole = sum(usual.seconds(row.cost, kind.method) for kind, row in self.rows.items()) + left
        if self.now:
            whole += usual.seconds(self.now.under_way(self.tokens), self.now.method)
        return 1 - left / whole if whole else 1.0

    def left(self) -> list[tuple[str, Cost]]:
        """Return the method and the cost of every part that is left, without what is under way."""
        return [
            (part.method, part.cost - (part.under_way(self.tokens) if part is self.now else 0))
            for part in self.parts
        ]

    def speeds(self) -> Speeds | None:
        """Return the speeds as measured here, else as known from before."""
        rows = dict(self.rows)
        if self.now and self.tokens and self.last is not None and self.seen > self.last:
            kind = Kind(self.now.method, 0, text=False)
            cost = self.now.under_way(self.tokens)
            rows[kind] = Row(cost, self._worked(self.seen - self.last, cost))
        return fitted(self.known, rows, self.guess)

    def seconds_left(self) -> float | None:
        """Return how long what is left takes; None where no speed is known."""
        speeds = self.speeds()
        if speeds is None:
            return None
        seconds = sum(speeds.seconds(cost, method) for method, cost in self.left())
        since = time.monotonic() - self.seen if self.last is not None else 0.0
        return max(seconds - since, 0.0)

    def estimate(self, times: float = 1.0) -> str:
        """Return how long ``times`` what is left takes, as a range, and what that rests on."""
        seconds = self.seconds_left()
        if seconds is None:
            return "unknown on these machines yet"
        spread = KNOWN if self.known else GUESSED
        least, most = seconds * times / spread, seconds * times * spread
        told = f"{duration(least)} to {duration(most)}" if most >= 1 else "less than a second"
        rests = "earlier runs" if self.known else "the speed of one matrix product"
        return f"{told} here, estimated from {rests}"


def this_machine(device: str) -> str:
    """Name what measures in this process."""
    return f"{named(device)}, {torch.get_num_threads()} threads"


def before(plan: Plan, work: Sequence[Batch], where: str) -> ETA:
    """Return the pace of a sweep that has not begun, by what is known of this machine.

    Where nothing is, and this process measures, a product is timed.
    """
    known, device = known_rows(plan, where), plan.checkpoint.device
    guess = None
    if not known and work and where == this_machine(device):
        guess = guessed(device, plan.checkpoint.dtype)
    return ETA.of(plan, work, known, guess)


def duration(seconds: float) -> str:
    """Return a length of time as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))


def known_rows(plan: Plan, where: str) -> Rows:
    """Return what was measured with this model on this machine; empty for nothing."""
    try:
        found = json.loads(_file(plan, where).read_text(encoding="utf-8"))
        return {
            Kind(str(method), int(length), bool(text)): Row(np.array(cost, float), float(seconds))
            for method, length, text, cost, seconds in found
            if len(cost) == len(NOTHING) and float(seconds) > 0
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def keep_rows(plan: Plan, where: str, pace: ETA) -> None:
    """Keep what was measured; where it cannot be, only an estimate is lost."""
    if pace.took >= WORTH:
        rows = {**pace.known, **pace.rows}
        told = [
            [kind.method, kind.length, kind.text, row.cost.tolist(), row.seconds]
            for kind, row in rows.items()
            if row.cost.any()
        ]
        with suppress(OSError, ValueError, UserError), replacing(_file(plan, where)) as new:
            new.write(json.dumps(told).encode())


def _file(plan: Plan, where: str) -> Path:
    told = f"{plan.checkpoint.fingerprint} {plan.checkpoint.dtype} {where}"
    name = hashlib.sha256(told.encode()).hexdigest()[:32]
    folder = cached_assets_path("ropewalk", "speeds", assets_dir=constants.HF_ASSETS_CACHE)
    return Path(folder) / f"{name}.json"
