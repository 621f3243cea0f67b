"""Run a model's layers over a pack of token runs, in row chunks; return the hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.memory import ROWS
from ropewalk.harness.engine.packed_attention import Run, SkipAttention, installed
from ropewalk.harness.engine.prefix_tree import Node, NodePath, PrefixTree
from ropewalk.harness.engine.structure import NotShareableError, decoder_layers, language_model

Ranges = list[tuple[int, int, bool]]  # first row, end, and whether its output is needed


def run_pack(
    model: Any,
    tree: PrefixTree,
    pack: NodePath,
    needed: NDArray[np.bool_],
    chunk: int,
    **more: Any,
) -> tuple[Tensor, Run]:
    """Return the pack's hidden states (1, rows, width), valid at the ``needed`` rows, and its Run.

    ``chunk``, a multiple of 32, is how many rows a layer computes at a time; ``more`` goes to the
    Run. A layer computes all chunks before the next layer begins, and only its keys are in memory.
    """
    trunk = language_model(model)
    tokens, positions = _laid_out([tree.nodes[node] for node in pack], model.device)
    size = tokens.shape[1]
    run = Run(tree.nodes, tree.spans(pack), size, **more)
    every = _ranges([True] * size, chunk)
    last = _ranges([*needed.tolist(), *[False] * (size - len(needed))], chunk)
    layers = decoder_layers(trunk)
    with ExitStack() as stack:
        stack.enter_context(installed(model, run.attend))
        for layer in layers:
            ranges = last if layer is layers[-1] else every
            stack.enter_context(_replaced(layer, _layer_by_rows(layer.forward, run, ranges)))
        if len(every) > 1:
            for child in trunk.children():
                if "Norm" in type(child).__name__:
                    stack.enter_context(_replaced(child, _norm_by_rows(child.forward, every)))
        hidden: Tensor = trunk(input_ids=tokens, position_ids=positions, use_cache=False)[0]
    if run.calls != len(layers):
        raise NotShareableError("a layer without attention")
    return hidden, run


def _ranges(needed: Sequence[bool], chunk: int) -> Ranges:
    """Cut rows into ranges of at most ``chunk``, in which all rows are needed or none is.

    Boundaries are multiples of 32; one needed row makes its 32 rows needed.
    """
    flags = [any(needed[a : a + ROWS]) for a in range(0, len(needed), ROWS)]
    ranges: Ranges = []
    for flag, group in groupby(enumerate(flags), itemgetter(1)):
        blocks = [index for index, _ in group]
        first, end = blocks[0] * ROWS, min((blocks[-1] + 1) * ROWS, len(needed))
        ranges += [(a, min(a + chunk, end), flag) for a in range(first, end, chunk)]
    return ranges


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _layer_by_rows(own: Callable[..., Any], run: Run, ranges: Ranges) -> Callable[..., Any]:
    """Return a layer's forward that computes its rows range by range and overwrites its input.

    For rows that are not needed only keys and values are computed.
    """

    def forward(hidden: Tensor, *args: Any, **named: Any) -> Any:
        size = hidden.shape[1]
        out: Any = hidden
        for first, end, needed in ranges:
            run.rows, run.keys_only = (first, end), not needed
            rows = slice(first, end)
            positional = [_rows(value, rows, size) for value in args]
            keywords = {name: _rows(value, rows, size) for name, value in named.items()}
            try:
                out = own(hidden[:, rows], *positional, **keywords)
            except SkipAttention:
                continue
            if len(ranges) > 1:
                hidden[:, rows] = out[0] if isinstance(out, tuple) else out
                out = (hidden, *out[1:]) if isinstance(out, tuple) else hidden
        run.layers.clear()  # the next layer computes its keys and values before it stores them
        run.derived.clear()
        return out

    return forward


def _norm_by_rows(own: Callable[[Tensor], Tensor], ranges: Ranges) -> Callable[..., Any]:
    """Return a norm's forward that overwrites its input: its float32 copies stay small."""

    def forward(hidden: Tensor) -> Tensor:
        if hidden.dim() != 3 or not hidden.is_floating_point():  # an embedding, also called a norm
            return own(hidden)
        for first, end, _ in ranges:
            hidden[:, first:end] = own(hidden[:, first:end])
        return hidden

    return forward


def _rows(value: Any, rows: slice, size: int) -> Any:
    """Return the given rows of positions, or of cos and sin in a tuple."""
    if isinstance(value, tuple):
        return tuple(_rows(part, rows, size) for part in value)
    by_row = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == size
    return value[:, rows] if by_row else value


def _laid_out(nodes: Sequence[Node], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens and positions of a pack, (1, rows).

    On a CPU up to 31 unused rows complete the last 32: the kernels of activations compute so
    many at a time, and the rest with other bits.
    """
    tokens = [*chain.from_iterable(node.tokens for node in nodes)]
    positions = [*chain.from_iterable(range(node.first, node.end) for node in nodes)]
    if sdpa.blocked(device):
        odd = -len(tokens) % ROWS
        tokens += tokens[:1] * odd
        positions += [0] * odd
    whole, places = (sdpa.sent(torch.tensor([part]), device) for part in (tokens, positions))
    return whole, places
