"""How fast a sweep goes and how long it still takes, from what each part of it costs.

A cost is known before: tokens and pairs of every forward. What is measured is a rate, of every
method and of all; rates are kept for the next sweep of the same model on the same machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import cached_assets_path, constants

from harness.errors import UserError
from harness.replacing import replacing
from harness.sweep.cells import Batch, Item, Key
from harness.sweep.costs import Step, Steps, steps_of
from harness.sweep.plan import Plan
from harness.sweep.record import machine

WORTH = 2.0  # seconds; a shorter measurement is no rate to keep
PRIOR = 10.0  # seconds
ALL = ""  # the rate over all methods


@dataclass
class _Part:
    """The questions of one batch: their steps, those left in their order, and their cost."""

    method: str
    steps: Steps
    needs: dict[Key, tuple[int, ...]]

    def __post_init__(self) -> None:
        """Begin with every step left."""
        self.left = dict(enumerate(self.steps.steps))
        self.cost = sum(step.operations for step in self.steps.steps)

    def take(self, item: Item) -> list[Step]:
        """Return the steps that an answer shows to be done, and take them off."""
        needed = self.needs[item.key]
        done = [self.left.pop(step) for step in needed if step in self.left]
        self.cost -= sum(step.operations for step in done)
        return done

    def under_way(self, tokens: float) -> float:
        """Return what so many tokens cost that went through the layers without an answer yet."""
        cost = 0.0
        for run in self.left.values():
            share = min(1.0, tokens / run.tokens)
            cost, tokens = cost + share * run.operations, tokens - run.tokens
            if tokens <= 0:
                break
        return cost


@dataclass
class Pace:
    """What is done and what is left of a sweep, in operations and in seconds."""

    parts: tuple[_Part, ...]
    known: dict[str, float] = field(default_factory=dict)  # operations a second, by method
    spent: dict[str, tuple[float, float]] = field(default_factory=dict)  # operations, seconds
    tokens: float = 0.0  # since the last answer
    forwarded: int = 0  # tokens whose answers came
    now: _Part | None = None
    last: float | None = None  # when the last answer came
    seen: float = 0.0  # when anything was last heard

    @classmethod
    def of(cls, plan: Plan, work: Sequence[Batch], known: dict[str, float]) -> Pace:
        """Begin with nothing done."""
        parts = []
        for batch in work:
            steps = steps_of(plan.checkpoint, batch)
            needs = dict(zip(batch.questions, steps.needs, strict=True))
            parts.append(_Part(batch.items[0].cell.scaling, steps, needs))
        return cls(tuple(parts), known, now=next(iter(parts), None))

    def __post_init__(self) -> None:
        """Find the part of every question."""
        self.part_of = {key: part for part in self.parts for key in part.needs}

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
        cost = sum(step.operations for step in done)
        self.forwarded += sum(step.tokens for step in done)
        if not self.now.left:
            self.now = next((part for part in self.parts if part.left), self.now)
        for name in (item.cell.scaling, ALL):
            before = self.spent.get(name, (0.0, 0.0))
            self.spent[name] = before[0] + cost, before[1] + since
        self.last, self.tokens = self.seen, 0.0

    def tokens_a_second(self) -> float | None:
        """Return how many tokens are forwarded a second, those under way included."""
        seconds = self.spent.get(ALL, (0.0, 0.0))[1] + self.seen - (self.last or self.seen)
        return (self.forwarded + self.tokens) / seconds if seconds > 0 else None

    def share(self) -> float:
        """Return which share of all operations is done, those under way included."""
        left = sum(part.cost for part in self.parts)
        done = self.spent.get(ALL, (0.0, 0.0))[0]
        under_way = self.now.under_way(self.tokens) if self.now else 0.0
        return (done + under_way) / max(done + left, 1.0)

    def rates(self) -> dict[str, float]:
        """Return operations a second by method, as measured here, else as known from before."""
        spent = dict(self.spent)
        if self.now and self.tokens and self.last is not None:
            cost = self.now.under_way(self.tokens)
            for name in (self.now.method, ALL):
                before = spent.get(name, (0.0, 0.0))
                spent[name] = before[0] + cost, before[1] + self.seen - self.last
        cost, took = spent.get(ALL, (0.0, 0.0))
        if not cost or not took:
            return self.known
        base = cost / took  # a method counts as this fast until it was measured for a while
        measured = {name: (c + base * PRIOR) / (t + PRIOR) for name, (c, t) in spent.items()}
        return {**self.known, **measured, ALL: base}

    def seconds_left(self) -> float | None:
        """Return how long what is left takes; None where no rate is known."""
        rates = self.rates()
        if ALL not in rates:
            return None
        seconds = 0.0
        for part in self.parts:
            under_way = part.under_way(self.tokens) if part is self.now else 0.0
            seconds += (part.cost - under_way) / rates.get(part.method, rates[ALL])
        since = time.monotonic() - self.seen if self.last is not None else 0.0
        return max(seconds - since, 0.0)


def this_machine(device: str) -> str:
    """Name what measures in this process."""
    here = machine(device)
    return f"{here['device']}, {here['threads']} threads"


def known_rates(plan: Plan, where: str) -> dict[str, float]:
    """Return the rates that were measured with this model on this machine; empty for none."""
    try:
        found = json.loads(_file(plan, where).read_text(encoding="utf-8"))
        return {str(name): float(rate) for name, rate in found.items() if float(rate) > 0}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def keep_rates(plan: Plan, where: str, pace: Pace) -> None:
    """Keep the rates that were measured; where they cannot be, only an estimate is lost."""
    if pace.spent.get(ALL, (0.0, 0.0))[1] >= WORTH:
        with suppress(OSError, ValueError, UserError), replacing(_file(plan, where)) as new:
            new.write(json.dumps(pace.rates()).encode())


def _file(plan: Plan, where: str) -> Path:
    told = f"{plan.checkpoint.fingerprint} {plan.checkpoint.dtype} {where}"
    name = hashlib.sha256(told.encode()).hexdigest()[:32]
    folder = cached_assets_path("ropewalk", "rates", assets_dir=constants.HF_ASSETS_CACHE)
    return Path(folder) / f"{name}.json"
