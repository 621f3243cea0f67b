"""Time left of a sweep: its counted operations over the throughput that is measured.

The operations of every forward are known before anything is measured. The throughput of each
method is measured as answers arrive, and kept for the next sweep of the same model on the same
machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

import torch
from huggingface_hub import cached_assets_path, constants

from harness.engine.prefix_tree import PrefixTree, build_tree
from harness.errors import UserError
from harness.files import replacing
from harness.models.checkpoint import DTYPES, Checkpoint
from harness.sweep.plan import Batch, Item, Key, Plan
from harness.sweep.record import named
from tasks._tokens import Tokens, kept
from tasks.types import Divergence, Generate, Request

MOST_LENGTHS = 32  # whose trees are kept
# What is slower than the operations of a prompt's tokens weighs more: a forward as such, in
# operations; attention; and generated tokens, each of which reads all weights.
FORWARD, PAIRS, GENERATED = 3e7, 1.5, 40.0
PRIOR = 1.0  # seconds of measurement that count as much as what was assumed before
OF_PEAK = 0.5  # share of the speed of a large product that a forward reaches
TIMED = 0.2  # seconds in which the fastest product is sought; others may hold the machine for some
WORTH = 2.0  # seconds; a shorter measurement is no speed to keep
KNOWN, GUESSED = 1.33, 2.0  # times an estimate is off, from earlier runs and from one product


@dataclass(frozen=True)
class Step:
    """Tokens that are forwarded once, or generated one by one, and their weighted operations."""

    tokens: int
    operations: float
    generated: bool = False


@dataclass(frozen=True)
class Steps:
    """The steps of a batch in their order, and the steps that each request needs."""

    steps: tuple[Step, ...]
    needs: tuple[tuple[int, ...], ...]


def shared_tree(checkpoint: Checkpoint, batch: Batch) -> PrefixTree | None:
    """Return what the requests of a batch share; None where each is a forward of its own."""
    capped = getattr(checkpoint.config.get_text_config(), "attn_logit_softcapping", None)
    if batch.rotation.stateful or checkpoint.sliding_window or capped:
        return None
    return tree_of(tuple(kept(request.tokens) for _, request in batch.items))


@lru_cache(maxsize=MOST_LENGTHS)
def tree_of(texts: tuple[Tokens, ...]) -> PrefixTree:
    """Build the tree of texts, once for all methods."""
    return build_tree(texts)


def steps_of(checkpoint: Checkpoint, batch: Batch) -> Steps:
    """Return the steps of the requests of a batch."""
    per_token, per_pair, per_target = _operations(checkpoint)
    requests = [request for _, request in batch.items]
    spans, paths = _spans(shared_tree(checkpoint, batch), requests)

    def forwarded(first: int, end: int) -> Step:
        pairs = (end - first) * (first + end) / 2
        operations = FORWARD + (end - first) * per_token + PAIRS * per_pair * pairs
        return Step(end - first, operations)

    steps = [forwarded(first, end) for first, end in spans]
    for place, request in enumerate(requests):
        if isinstance(request, Generate):
            each = per_token + per_target + per_pair * request.length
            operations = GENERATED * request.max_new_tokens * each
            paths[place] += (len(steps),)
            steps.append(Step(request.length - request.start, operations, generated=True))
            continue
        if isinstance(request, Divergence):  # a second forward, of the model as it is
            paths[place] += (len(steps),)
            steps.append(forwarded(0, request.length))
        targets = (request.length - request.start + 1) * (1 + isinstance(request, Divergence))
        last = paths[place][-1]
        operations = steps[last].operations + per_target * targets
        steps[last] = Step(steps[last].tokens, operations)
    return Steps(tuple(steps), tuple(paths))


def _spans(
    tree: PrefixTree | None, requests: Sequence[Request]
) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Return the first and end position of every span of input, and the spans of each request."""
    if tree is not None:
        return [(node.first, node.end) for node in tree.nodes], list(tree.paths)
    order: dict[Sequence[int], int] = {}
    paths: list[tuple[int, ...]] = [
        (order.setdefault(request.tokens, len(order)),) for request in requests
    ]
    return [(0, len(tokens)) for tokens in order], paths


def _operations(checkpoint: Checkpoint) -> tuple[float, float, float]:
    """Return the operations per token and per pair in all layers, and per target in the head."""
    config = checkpoint.config.get_text_config()
    heads, width = getattr(config, "num_attention_heads", None) or 0, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // max(heads, 1)
    table = config.vocab_size * width
    tables = table * (1 if getattr(config, "tie_word_embeddings", False) else 2)
    inside = max(checkpoint.parameter_count - tables, 1)
    return 2 * inside, 4 * heads * head_dim * config.num_hidden_layers, 2 * table


@dataclass
class Work:
    """The operations that were done under a method, and the seconds that they took."""

    operations: float = 0.0
    seconds: float = 0.0


Rates = dict[str, Work]  # by method


def seconds_per_operation(
    known: Rates, measured: Rates, guess: float | None
) -> Callable[[str], float] | None:
    """Return the seconds per operation by method; None where nothing is known.

    Earlier sweeps (``known``), or a ``guess``, say what to expect. What is measured now corrects
    it: the level of all methods, then each method's own.
    """
    level, prior, factors = guess or 1.0, PRIOR * (guess is not None), dict[str, float]()
    for rates in (known, measured):
        expected = {
            method: work.operations * level * factors.get(method, 1.0)
            for method, work in rates.items()
        }
        seconds, total = sum(work.seconds for work in rates.values()), sum(expected.values())
        if seconds and total:
            correction = (seconds + prior) / (total + prior)
            level, prior = level * correction, PRIOR
            for method, work in rates.items():
                own = (work.seconds + PRIOR) / (expected[method] * correction + PRIOR)
                factors[method] = factors.get(method, 1.0) * own
    return (lambda method: level * factors.get(method, 1.0)) if prior else None


@dataclass
class _Part:
    """One batch: its method, the steps that are left, and the steps that each answer needs."""

    method: str
    left: dict[int, Step]
    needs: dict[Key, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.operations = sum(step.operations for step in self.left.values())

    def take(self, key: Key) -> list[Step]:
        """Remove the steps that an answer shows to be done, and return them."""
        done = [self.left.pop(step) for step in self.needs[key] if step in self.left]
        self.operations -= sum(step.operations for step in done)
        return done

    def under_way(self, tokens: float) -> float:
        """Return the operations of tokens that went through the layers without an answer yet."""
        operations = 0.0
        for step in self.left.values():
            if tokens <= 0:
                break
            if not step.generated:
                operations += min(1.0, tokens / step.tokens) * step.operations
                tokens -= step.tokens
        return operations


class ETA:
    """What is done and what is left of a sweep, in operations and in seconds.

    ``known`` are the rates of earlier sweeps, and ``guess`` the seconds per operation without them.
    """

    def __init__(
        self, plan: Plan, work: Sequence[Batch], known: Rates, guess: float | None = None
    ) -> None:
        self.parts = []
        for batch in work:
            steps = steps_of(plan.checkpoint, batch)
            needs = dict(zip(batch.questions, steps.needs, strict=True))
            method = batch.items[0].cell.scaling
            self.parts.append(_Part(method, dict(enumerate(steps.steps)), needs))
        self.part_of = {key: part for part in self.parts for key in part.needs}
        self.known, self.guess = known, guess
        self.measured: Rates = {}
        self.current = next(iter(self.parts), None)
        self.tokens, self.answered_tokens = 0.0, 0  # since the last answer, and up to it
        self.took = 0.0
        self.last: float | None = None  # time of the last answer
        self.seen = 0.0  # time of the last news

    def begin(self) -> None:
        """Note that the weights are loaded."""
        self.last = self.seen = time.monotonic()

    def layers(self, tokens: float) -> None:
        """Note that so many tokens have gone through all layers, or more through some of them."""
        self.tokens += tokens
        self.seen = time.monotonic()

    def answer(self, item: Item, seconds: float) -> None:
        """Note that a request is answered; ``seconds`` count where the weights load elsewhere."""
        self.seen = time.monotonic()
        since = self.seen - self.last if self.last is not None else seconds
        part = self.part_of[item.key]
        done = part.take(item.key)
        work = self.measured.setdefault(part.method, Work())
        work.operations += sum(step.operations for step in done)
        work.seconds += since
        self.took += since
        self.answered_tokens += sum(step.tokens for step in done)
        self.current = part if part.left else next((one for one in self.parts if one.left), part)
        self.last, self.tokens = self.seen, 0.0

    def tokens_a_second(self) -> float | None:
        """Return how many tokens are forwarded per second, those under way included."""
        seconds = self.took + self.seen - (self.last or self.seen)
        return (self.answered_tokens + self.tokens) / seconds if seconds > 0 else None

    def _left(self) -> list[tuple[str, float]]:
        """Return the method and the operations left of every part, without what is under way."""
        return [
            (
                part.method,
                part.operations - (part.under_way(self.tokens) if part is self.current else 0),
            )
            for part in self.parts
        ]

    def _rate(self) -> Callable[[str], float] | None:
        """Return the seconds per operation by method, as measured here, else as known before."""
        rates, current = dict(self.measured), self.current
        if current and self.tokens and self.last is not None and current.method not in rates:
            operations = current.under_way(self.tokens)
            if not any(step.generated for step in current.left.values()):  # their time is unseen
                rates[current.method] = Work(operations, self.seen - self.last)
        return seconds_per_operation(self.known, rates, self.guess)

    def share(self) -> float:
        """Return which share of the time is over, what is under way included."""
        rate = self._rate() or (lambda _: 1.0)
        left = sum(rate(method) * operations for method, operations in self._left())
        done = {method: work.operations for method, work in self.measured.items()}
        if self.current:
            under_way = self.current.under_way(self.tokens)
            done[self.current.method] = done.get(self.current.method, 0.0) + under_way
        over = sum(rate(method) * operations for method, operations in done.items())
        return over / (over + left) if over + left else 1.0

    def seconds_left(self) -> float | None:
        """Return how long what is left takes; None where no speed is known."""
        rate = self._rate()
        if rate is None:
            return None
        seconds = sum(rate(method) * operations for method, operations in self._left())
        since = time.monotonic() - self.seen if self.last is not None else 0.0
        return max(seconds - since, 0.0)

    def estimate(self, times: float = 1.0) -> str:
        """Return how long ``times`` what is left takes, as a range, and what that rests on."""
        seconds = self.seconds_left()
        if seconds is None:
            return "unknown on these machines yet"
        spread = KNOWN if self.known else GUESSED
        least, most = seconds * times / spread, seconds * times * spread
        text = f"{duration(least)} to {duration(most)}" if most >= 1 else "less than a second"
        source = "earlier runs" if self.known else "the speed of one matrix product"
        return f"{text} here, estimated from {source}"


def duration(seconds: float) -> str:
    """Return a length of time as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))


def this_machine(device: str) -> str:
    """Name what measures in this process."""
    return f"{named(device)}, {torch.get_num_threads()} threads"


def initial_eta(plan: Plan, work: Sequence[Batch], machine: str) -> ETA:
    """Return the ETA of a sweep that has not begun, by what is known of this machine.

    Where nothing is, and this process measures, a product is timed.
    """
    known, device = known_rates(plan, machine), plan.checkpoint.device
    guess = None
    if not known and work and machine == this_machine(device):
        guess = guessed(device, plan.checkpoint.dtype)
    return ETA(plan, work, known, guess)


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


def known_rates(plan: Plan, machine: str) -> Rates:
    """Return what was measured with this model on this machine; empty for nothing."""
    try:
        stored = json.loads(_file(plan, machine).read_text(encoding="utf-8"))
        return {str(method): Work(float(done), float(took)) for method, done, took in stored}
    except (OSError, ValueError, TypeError):
        return {}


def keep_rates(plan: Plan, machine: str, eta: ETA) -> None:
    """Keep what was measured; where it cannot be, only an estimate is lost."""
    if eta.took >= WORTH:
        rates = {**eta.known, **eta.measured}
        rows = [[method, work.operations, work.seconds] for method, work in rates.items()]
        with suppress(OSError, ValueError, UserError), replacing(_file(plan, machine)) as new:
            new.write(json.dumps(rows).encode())


def _file(plan: Plan, machine: str) -> Path:
    name = f"{plan.checkpoint.fingerprint} {plan.checkpoint.dtype} {machine}"
    folder = cached_assets_path("ropewalk", "rates", assets_dir=constants.HF_ASSETS_CACHE)
    return Path(folder) / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
