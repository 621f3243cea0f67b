"""What each part of a sweep costs, known before anything is measured: tokens and pairs."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import cached_assets_path, constants
from numpy.typing import NDArray
from scipy.optimize import nnls

from harness.engine.prefix_tree import PrefixTree, build_tree
from harness.errors import UserError
from harness.files import replacing
from harness.models.checkpoint import DTYPES, Checkpoint
from harness.sweep.cells import Batch, Item, Key
from harness.sweep.plan import Plan
from harness.sweep.record import named
from scaling.types import StatefulRope
from tasks._tokens import Tokens, kept
from tasks._types import Request

MOST_LENGTHS = 32  # whose trees are kept


@dataclass(frozen=True)
class Step:
    """A run of tokens that is forwarded once, or of tokens that are written one by one.

    ``cost`` are its runs, and multiplications and additions: by tokens, by pairs, of what is
    written.
    """

    tokens: int
    cost: Cost


@dataclass(frozen=True)
class Steps:
    """The steps of a batch in their order, and the steps that each question needs."""

    steps: tuple[Step, ...]
    needs: tuple[tuple[int, ...], ...]


def shared_tree(checkpoint: Checkpoint, batch: Batch) -> PrefixTree | None:
    """Return what the questions of a batch share; None where each is a forward of its own."""
    capped = getattr(checkpoint.config.get_text_config(), "attn_logit_softcapping", None)
    if isinstance(batch.rotation, StatefulRope) or checkpoint.sliding_window or capped:
        return None
    return tree_of(tuple(kept(question.tokens) for _, question in batch.items))


@lru_cache(maxsize=MOST_LENGTHS)
def tree_of(asked: tuple[Tokens, ...]) -> PrefixTree:
    """Build the tree of questions that every method is asked, once for all methods."""
    return build_tree(asked)


def steps_of(checkpoint: Checkpoint, batch: Batch) -> Steps:
    """Return the steps of the questions of a batch."""
    per_token, per_pair, per_target = prices(checkpoint)
    questions = [question for _, question in batch.items]
    spans, paths = _spans(shared_tree(checkpoint, batch), questions)
    costs = [
        np.array([1, tokens * per_token, tokens * per_pair * (first + end) / 2, 0])
        for first, end in spans
        for tokens in [end - first]
    ]
    for place, question in enumerate(questions):
        if question.new:  # its tokens are a run of their own
            each = per_token + per_target + per_pair * question.length
            paths[place] += (len(spans),)
            spans.append((question.start, question.length))
            costs.append(np.array([0, 0, 0, question.new * each]))
            continue
        if question.divergence:  # a second forward, of the model as it is
            paths[place] += (len(spans),)
            spans.append((0, question.length))
            pairs = question.length**2 / 2
            costs.append(np.array([1, question.length * per_token, pairs * per_pair, 0]))
        targets = question.length - question.start + 1
        costs[paths[place][-1]][1] += per_target * targets * (1 + question.divergence)
    made = zip(spans, costs, strict=True)
    return Steps(tuple(Step(end - first, cost) for (first, end), cost in made), tuple(paths))


def _spans(
    tree: PrefixTree | None, questions: Sequence[Request]
) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Return the first and end position of every run of input, and each question's runs."""
    if tree is not None:
        return [(node.first, node.end) for node in tree.nodes], list(tree.paths)
    turn: dict[Sequence[int], int] = {}
    paths: list[tuple[int, ...]] = [
        (turn.setdefault(question.tokens, len(turn)),) for question in questions
    ]
    return [(0, len(tokens)) for tokens in turn], paths


def prices(checkpoint: Checkpoint) -> tuple[float, float, float]:
    """Return the operations of a token in all layers, of a pair in all, of a target in the head."""
    config = checkpoint.config.get_text_config()
    heads, width = getattr(config, "num_attention_heads", None) or 0, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // max(heads, 1)
    table = config.vocab_size * width
    tables = table * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    inside = max(checkpoint.parameter_count - tables, 1)
    return 2 * inside, 4 * heads * head_dim * config.num_hidden_layers, 2 * table


Cost = NDArray[np.float64]  # runs; operations by tokens, by pairs, of tokens that are written
# What is taken to be known before, in operations by tokens: what a run costs beside its tokens,
# and operations of the other kinds. Written tokens read all weights one by one.
USUAL = np.array([3e7, 1.0, 1.5, 40.0])
TRUST = 0.1  # in it: a speed ten times another one weighs as much as a row that is wrong by itself
SOON = 1.0  # seconds of a method until its own speed counts as much as that of all
OF_PEAK = 0.5  # share of the speed of a large product that a forward reaches
TIMED = 0.2  # seconds in which the fastest product is sought; others may hold the machine for some


@dataclass(frozen=True)
class Kind:
    """Samples that are alike in what they take: of a method, with one length, texts or not."""

    method: str
    length: int
    text: bool


@dataclass
class Row:
    """The cost and the seconds of all samples of a kind."""

    cost: Cost = field(default_factory=lambda: np.zeros(4))
    seconds: float = 0.0


Rows = dict[Kind, Row]


@dataclass(frozen=True)
class Speeds:
    """Seconds of each part of a cost, and how much slower each method is than all together."""

    parts: Cost
    factors: Mapping[str, float]

    def seconds(self, cost: Cost, method: str) -> float:
        """Return how long so much of a method takes."""
        return float(cost @ self.parts) * self.factors.get(method, 1.0)


def fitted(known: Rows, measured: Rows, guess: float | None) -> Speeds | None:
    """Return the speeds that these rows show; what is measured now sets the level.

    ``guess`` are the seconds of an operation where there is no row. None where nothing is known.
    """
    rows = {kind: row for kind, row in {**known, **measured}.items() if row.cost.any()}
    if not sum(row.seconds for row in rows.values()):
        return None if guess is None else Speeds(USUAL * guess, {})
    parts = _parts(list(rows.values()))
    now = {kind: row for kind, row in measured.items() if row.cost.any()}
    level = _level(parts, now.values()) if sum(row.seconds for row in now.values()) else 1.0
    factors = {}
    for method in {kind.method for kind in rows}:
        own = [(kind, row) for kind, row in rows.items() if kind.method == method]
        newest = [row for kind, row in own if kind in now] or [row for _, row in own]
        scale = level if any(kind in now for kind, _ in own) else 1.0
        told = scale * sum(float(row.cost @ parts) for row in newest)
        took = sum(row.seconds for row in newest)
        factors[method] = (took + SOON) / (told + SOON)
    return Speeds(parts * level, factors)


def _parts(rows: list[Row]) -> Cost:
    """Return the seconds of each part that fit the rows best, none below 0, relative to each."""
    costs = np.array([row.cost for row in rows]) * USUAL
    took = np.array([row.seconds for row in rows])
    base = took.sum() / costs.sum()
    weight = 1 / np.maximum(took, took.sum() / 100)  # a short row is known least
    held = math.sqrt(TRUST) * np.eye(4)
    asked = np.vstack([costs * base * weight[:, None], held])
    found, _ = nnls(asked, np.concatenate([took * weight, held.sum(axis=0)]))
    return np.asarray(found * base * USUAL)


def _level(parts: Cost, rows: Iterable[Row]) -> float:
    """Return how many times slower the rows were than these speeds say."""
    made = list(rows)
    return sum(row.seconds for row in made) / max(sum(float(r.cost @ parts) for r in made), 1e-9)


def guessed(device: str, dtype: str) -> float:
    """Return the seconds that an operation of a forward takes here, from one product, timed."""
    width = 4096 if torch.device(device).type == "cuda" else 512
    one = torch.ones(width, width, device=device, dtype=DTYPES[dtype])
    float((one @ one)[0, 0])  # the first loads what multiplies, which takes a GPU longer than TIMED
    took, end = math.inf, time.perf_counter() + TIMED
    while took == math.inf or time.perf_counter() < end:
        began = time.perf_counter()
        float((one @ one)[0, 0])  # waits for a GPU
        took = min(took, time.perf_counter() - began)
    return took / (2 * width**3) / OF_PEAK


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
