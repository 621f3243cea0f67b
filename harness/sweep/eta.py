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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import cached_assets_path, constants

from harness.engine.prefix_tree import PrefixTree, build_tree
from harness.errors import UserError
from harness.files import replacing
from harness.models.checkpoint import DTYPES, Checkpoint
from harness.sweep.plan import Batch, Item, Key, Plan
from harness.sweep.record import named
from tasks._tokens import kept
from tasks.types import Divergence, Generate

MOST_LENGTHS = 32  # whose trees are kept
# What is slower than the operations of a prompt's tokens weighs more: a forward as such, in
# operations; attention; and generated tokens, each of which reads all weights.
FORWARD, PAIRS, GENERATED = 3e7, 1.5, 40.0
PRIOR = 1.0  # seconds of measurement that count as much as what was assumed before
OF_PEAK = 0.5  # share of the speed of a large product that a forward reaches
TIMED = 0.2  # seconds in which the fastest product is sought; others may hold the machine for some
WORTH = 2.0  # seconds; a shorter measurement is no speed to keep
KNOWN, GUESSED = 1.33, 2.0  # times an estimate is off, from earlier runs and from one product


class Cost(NamedTuple):
    """What a request adds to those before it: tokens and weighted operations.

    ``forwarded`` are tokens of input that no request before it has; ``generated`` those that follow
    a prompt one by one.
    """

    forwarded: int
    operations: float
    generated: int = 0
    decoding: float = 0.0  # operations

    @property
    def total(self) -> float:
        """All operations."""
        return self.operations + self.decoding


def shared_tree(checkpoint: Checkpoint, batch: Batch) -> PrefixTree | None:
    """Return what the requests of a batch share; None where each is a forward of its own."""
    capped = getattr(checkpoint.config.get_text_config(), "attn_logit_softcapping", None)
    if batch.rotation.stateful or checkpoint.sliding_window or capped:
        return None
    return _tree_of(tuple(kept(request.tokens) for _, request in batch.items))


_tree_of = lru_cache(maxsize=MOST_LENGTHS)(build_tree)  # once for all methods


def costs(checkpoint: Checkpoint, batch: Batch) -> Iterator[Cost]:
    """Yield the cost of every request of a batch; what requests share is counted once."""
    per_token, per_pair, per_target = _operations(checkpoint)
    tree, seen = shared_tree(checkpoint, batch), set[object]()
    for place, (_, request) in enumerate(batch.items):
        if tree:
            path = [node for node in tree.paths[place] if node not in seen]
            spans = [(tree.nodes[node].first, tree.nodes[node].end) for node in path]
            seen.update(path)
        else:
            spans = [(0, len(request.tokens))] if request.tokens not in seen else []
            seen.add(request.tokens)
        targets, decoding = request.length - request.start + 1, 0.0
        generated = targets - 1 if isinstance(request, Generate) else 0
        if isinstance(request, Generate):
            each = per_token + per_target + per_pair * request.length
            targets, decoding = 0, GENERATED * request.max_new_tokens * each
        elif isinstance(request, Divergence):  # a second forward, of the model as it is
            spans, targets = [*spans, (0, request.length)], 2 * targets
        tokens = sum(end - first for first, end in spans)
        pairs = sum((end - first) * (first + end) / 2 for first, end in spans)
        operations = FORWARD * len(spans) + per_token * tokens + PAIRS * per_pair * pairs
        yield Cost(tokens, operations + per_target * targets, generated, decoding)


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
Rate = Callable[[str], float]  # seconds per operation, by method


def corrected(rate: Rate, measured: Rates, trust: float) -> Rate:
    """Correct expected rates by what was measured: the level of all methods, then each one's own.

    What was expected counts as much as ``trust`` seconds of measurement.
    """
    seconds = sum(work.seconds for work in measured.values())
    expected = sum(work.operations * rate(method) for method, work in measured.items())
    level = (seconds + trust) / (expected + trust) if seconds and expected else 1.0

    def better(method: str) -> float:
        own, work = level * rate(method), measured.get(method, Work())
        return own * (work.seconds + PRIOR) / (work.operations * own + PRIOR)

    return better


class ETA:
    """What is done and what is left of a sweep, in operations and in seconds.

    ``known`` are the rates of earlier sweeps, and ``guess`` the seconds per operation without them.
    """

    def __init__(
        self, plan: Plan, work: Sequence[Batch], known: Rates, guess: float | None = None
    ) -> None:
        self.left: dict[Key, tuple[str, Cost]] = {}  # method and cost, in the order of the plan
        for batch in work:
            each = ((batch.items[0].cell.scaling, cost) for cost in costs(plan.checkpoint, batch))
            self.left.update(zip(batch.questions, each, strict=True))
        self.operations = defaultdict[str, float](float)  # left by method
        for method, cost in self.left.values():
            self.operations[method] += cost.total
        self.known, self.guess = known, guess
        self.measured: Rates = {}
        self.tokens, self.answered_tokens = 0.0, 0  # since the last answer, and up to it
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
        method, cost = self.left.pop(item.key)
        self.operations[method] -= cost.total
        work = self.measured.setdefault(method, Work())
        work.operations += cost.total
        work.seconds += self.seen - self.last if self.last is not None else seconds
        self.answered_tokens += cost.forwarded + cost.generated
        self.last, self.tokens = self.seen, 0.0

    def tokens_a_second(self) -> float | None:
        """Return how many tokens are forwarded per second, those under way included."""
        seconds = sum(work.seconds for work in self.measured.values())
        seconds += self.seen - (self.last or self.seen)
        return (self.answered_tokens + self.tokens) / seconds if seconds > 0 else None

    def _under_way(self) -> tuple[str, Work]:
        """Return the method, the operations and the seconds of tokens that have no answer yet."""
        tokens, operations = self.tokens, 0.0
        for _, cost in self.left.values():
            if tokens <= 0:
                break
            operations += min(1.0, tokens / max(cost.forwarded, 1)) * cost.operations
            tokens -= cost.forwarded
        method = next((method for method, _ in self.left.values()), "")
        return method, Work(operations, self.seen - (self.last or self.seen))

    def _rate(self) -> Rate | None:
        """Return the rates measured here, else as known before; None where nothing is known."""
        rates, (method, work) = dict(self.measured), self._under_way()
        if work.operations and work.seconds:
            rates.setdefault(method, work)
        if not rates and not self.known and self.guess is None:
            return None
        trust = PRIOR * (self.guess is not None)
        rate = corrected(lambda _: self.guess or 1.0, self.known, trust)
        return corrected(rate, rates, PRIOR if self.known else trust)

    def _split(self, rate: Rate) -> tuple[float, float]:
        """Return the seconds that are over, what is under way included, and those that are left."""
        method, work = self._under_way()
        under_way = rate(method) * work.operations
        over = sum(rate(method) * work.operations for method, work in self.measured.items())
        left = sum(rate(method) * operations for method, operations in self.operations.items())
        return over + under_way, left - under_way

    def share(self) -> float:
        """Return which share of the time is over."""
        over, left = self._split(self._rate() or (lambda _: 1.0))
        return over / (over + left) if over + left else 1.0

    def seconds_left(self) -> float | None:
        """Return how long what is left takes; None where no speed is known."""
        rate = self._rate()
        if rate is None:
            return None
        since = time.monotonic() - self.seen if self.last is not None else 0.0
        return max(self._split(rate)[1] - since, 0.0)

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
    if sum(work.seconds for work in eta.measured.values()) >= WORTH:
        rates = {**eta.known, **eta.measured}
        rows = [[method, work.operations, work.seconds] for method, work in rates.items()]
        with suppress(OSError, ValueError, UserError), replacing(_file(plan, machine)) as new:
            new.write(json.dumps(rows).encode())


def _file(plan: Plan, machine: str) -> Path:
    name = f"{plan.checkpoint.fingerprint} {plan.checkpoint.dtype} {machine}"
    folder = cached_assets_path("ropewalk", "rates", assets_dir=constants.HF_ASSETS_CACHE)
    return Path(folder) / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
