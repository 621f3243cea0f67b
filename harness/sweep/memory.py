"""The estimated cost of a plan, and the sizes that fit into its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.engine import DEFAULT, Sizes, memory
from harness.engine.prefix_tree import PrefixTree
from harness.errors import UserError
from harness.models.checkpoint import DTYPES, Checkpoint
from harness.patching.banded_attention import kept_of
from harness.sweep.eta import costs, shared_tree
from harness.sweep.plan import Batch, Item, Key, Plan
from scaling.types import Bands
from tasks.types import Divergence, Generate


@dataclass(frozen=True)
class Cost:
    """Cost of the samples that are left: tokens to forward, and bytes at the peak."""

    samples: int
    tokens: int
    parameters: int
    bytes: int


def estimate(plan: Plan, done: set[Key]) -> Cost:
    """Estimate a plan from its config alone: what is shared is forwarded once."""
    work = plan.work(done)
    sizes, demand = fitted(plan, work), _demand(plan, work)
    return Cost(
        samples=sum(not question.too_long for _, question in plan.left(done)),
        tokens=sum(load.tokens for load in demand.loads),
        parameters=demand.parameters,
        bytes=max(demand.bytes(sizes), _loading(plan, demand.parameters)),
    )


def fitted(plan: Plan, work: Sequence[Batch]) -> Sizes:
    """Return the fastest sizes that keep to ``max_memory``.

    Raises UserError where even the smallest do not, with how much they need.
    """
    limit = plan.spec.memory
    if limit is None or not work:
        return DEFAULT
    demand = _demand(plan, work)
    loading = _loading(plan, demand.parameters)
    needs = {sizes: max(demand.bytes(sizes), loading) for sizes in DEFAULT.smaller}
    for sizes, needed in needs.items():
        if needed <= limit:
            return sizes
    raise UserError(
        f"--max-memory {plan.spec.max_memory} is too little: the weights and the longest question"
        f" need about {min(needs.values()) / 2**20:,.0f} MiB; give shorter lengths or more memory."
    )


def _loading(plan: Plan, parameters: int) -> int:
    """Return the bytes at the peak of loading: of another dtype, the files beside the weights.

    On a CPU weights of the requested dtype are read in place; others are converted one by one, and
    the mapped files count until all are.
    """
    checkpoint = plan.checkpoint
    shipped = DTYPES.get(str(checkpoint.config.dtype or "float32").removeprefix("torch."))
    wanted = DTYPES[checkpoint.dtype]
    if checkpoint.loaded is not None or shipped in (None, wanted) or checkpoint.device != "cpu":
        return 0
    if getattr(checkpoint.config, "quantization_config", None) is not None:
        return 2 * checkpoint.weight_bytes  # its files hold what memory does
    return parameters * (wanted.itemsize + shipped.itemsize)


def needed(plan: Plan, item: Item) -> int:
    """Return the bytes that one question needs alone, in the smallest chunks, with the weights."""
    rotation = item.cell.superset or item.cell.rotation
    assert rotation is not None  # it was measured
    return _demand(plan, [Batch(rotation, (item,))]).bytes(DEFAULT.least)


@dataclass(frozen=True)
class _Load:
    """The questions of one batch: what they share, or alone the longest of them."""

    tree: PrefixTree | None
    tokens: int
    longest: int
    targets: int
    beside: int
    texts: tuple[memory.Text, ...]
    moved: memory.Moved

    def bytes(self, shape: memory.Shape, sizes: Sizes) -> int:
        if self.tree is not None:
            return memory.shared(shape, self.tree, self.targets, sizes, self.texts, self.moved)
        cache = memory.written(shape, self.texts, 1)
        return cache + memory.whole(shape, self.longest, self.beside, self.targets, sizes)


@dataclass(frozen=True)
class _Demand:
    """All that memory depends on but the sizes."""

    shape: memory.Shape
    parameters: int
    weights: int  # bytes
    loads: tuple[_Load, ...]

    def bytes(self, sizes: Sizes) -> int:
        peak = max((load.bytes(self.shape, sizes) for load in self.loads), default=0)
        return self.weights + peak


def _demand(plan: Plan, work: Sequence[Batch]) -> _Demand:
    checkpoint = plan.checkpoint
    config, dtype = checkpoint.config.get_text_config(), DTYPES[checkpoint.dtype]
    size = dtype.itemsize
    device = torch.device(checkpoint.device)
    # Where only workers have GPUs their number is not known, which device_count gives as 0.
    gpus = torch.cuda.device_count() if device.type == "cuda" and checkpoint.device_map else 1
    shape = memory.Shape.of(config, size).on(device, gpus=gpus)
    loads = []
    for batch in work:
        questions = [question for _, question in batch.items]
        tree = shared_tree(checkpoint, batch)
        longest = max(question.length for question in questions)
        tokens = sum(cost.forwarded + cost.generated for cost in costs(checkpoint, batch))
        paths = tree.paths if tree else [()] * len(questions)
        texts = tuple(
            (path, question.length)
            for path, question in zip(paths, questions, strict=True)
            if isinstance(question, Generate)
        )
        targets = sum(question.length - question.start + 1 for question in questions)
        rotation = batch.rotation
        moved = kept_of(rotation) if isinstance(rotation, Bands) else memory.Moved()
        beside = memory.tables(shape, longest, moved) + memory.rotated(shape, longest, moved)
        # Bands have no mask, and scores of a few rows at a time.
        if not moved.tables or any(isinstance(question, Divergence) for question in questions):
            beside = max(beside, _attention_bytes(checkpoint, config, longest, size))
        loads.append(_Load(tree, tokens, longest, targets, beside, texts, moved))
    return _Demand(shape, checkpoint.parameter_count, checkpoint.weight_bytes, tuple(loads))


def _attention_bytes(checkpoint: Checkpoint, config: Any, length: int, size: int) -> int:
    """Return what attention needs beyond the fused causal kernel, which needs nothing.

    Soft-capped scores are computed whole, in every head, with a float32 copy. Scores of the
    laboratory's encodings are computed for some queries at a time, in float32. A sliding window is
    a mask of one byte per pair.
    """
    sliding = checkpoint.sliding_window
    if numbers := getattr(config, "score_numbers", None):
        return int(numbers(length, torch.device(checkpoint.device)) * memory.FLOAT32)
    if getattr(config, "attn_logit_softcapping", None):
        return int(config.num_attention_heads * length**2 * (size + memory.FLOAT32))
    return length**2 if sliding is not None and length > sliding else 0
