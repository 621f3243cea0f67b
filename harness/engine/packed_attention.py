"""Compute attention over a pack of token runs: each run sees itself and the runs before it.

The model's own layers compute queries, keys and values for all runs of a pack at once. This
attention, registered with transformers, joins the keys and values of each run's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.harness.engine.prefix_tree import Node, NodePath
from ropewalk.harness.engine.sdpa import Causal, Kept, Kernel, padded_length
from ropewalk.harness.engine.structure import NotShareableError, language_model

NAME, PLAIN = "ropewalk_runs", "sdpa"
BEYOND = ("softcap", "s_aux", "position_bias", "sliding_window", "attention_mask")
POSITIONS = ("position_ids", "cache_position")  # any other tensor may select keys
Pair = tuple[Tensor, Tensor]  # keys and values, (1, kv_heads, rows, head_dim)
KVCache = dict[tuple[int, int], Pair]  # by node and layer


class SkipAttention(Exception):
    """Leaves a layer from which only the keys and values of the current rows are needed."""


@dataclass
class LayerKeys:
    """The keys and values of all rows so far in one layer, and what was derived for one node."""

    whole: list[Tensor]
    derived: Kept | None = None
    node: int = -1


@dataclass
class Run:
    """One pack during its forward through the layers.

    ``spans`` has the rows of each node in the pack; ``above`` has the keys and values of nodes
    computed in earlier packs, ``kept`` collects those of the nodes in ``keep``. ``part`` are the
    rows that the trunk is called with, and ``rows`` those that a layer computes now; ``layers`` has
    the keys and values of the layers that are not done. ``joined``
    has those of one path, of the layer and the nodes in ``joined_of``; layers may be on several
    devices.
    """

    nodes: tuple[Node, ...]
    spans: dict[int, tuple[int, int]]
    size: int
    kernel: Kernel
    above: KVCache = field(default_factory=dict)
    keep: frozenset[int] = frozenset()
    part: tuple[int, int] = (0, 0)
    rows: tuple[int, int] = (0, 0)
    keys_only: bool = False
    calls: int = 0
    kept: KVCache = field(default_factory=dict)
    layers: dict[int, LayerKeys] = field(default_factory=dict)
    joined: list[Tensor] = field(default_factory=list)
    joined_of: tuple[int, NodePath] = (-1, ())

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> Tensor:
        """Store the rows' keys, and return their attention; SkipAttention if that is not needed."""
        _hold(self, module.layer_idx, key, value)
        if self.keys_only:
            raise SkipAttention
        return _rows(self, module, query, scale)


# What computes the attention of the current rows, (1, rows, heads, head_dim): of a module, its
# query, key and value, and the scale.
Attend = Callable[[Any, Tensor, Tensor, Tensor, float | None], Tensor]
_running: list[Attend] = []


@contextmanager
def running(attend: Attend) -> Iterator[None]:
    """Let the registered attention be computed by this function."""
    _running.append(attend)
    try:
        yield
    finally:
        _running.pop()


def kernel_of(model: Any, longest: int = 0) -> Kernel | None:
    """Return what computes a model's attention of rows at any positions below ``longest``.

    It is transformers' plain fused attention, or what the registered one offers as ``kernel``.
    None of a model whose attention cannot be replaced.
    """
    from transformers import AttentionInterface  # with the model's code

    trunk = language_model(model)
    name = trunk.config._attn_implementation
    if not trunk._can_set_attn_implementation():
        return None
    if name == PLAIN:
        return Causal(longest)
    kernel: Kernel | None = getattr(AttentionInterface().get(name), "kernel", None)
    return kernel


@contextmanager
def installed(model: Any, name: str = NAME) -> Iterator[None]:
    """Replace the attention of a model by a registered one, that over runs."""
    from transformers import AttentionInterface, AttentionMaskInterface  # with the model's code

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)
    trunk = language_model(model)
    before = trunk.config._attn_implementation
    trunk.set_attn_implementation(name)
    try:
        yield
    finally:
        trunk.set_attn_implementation(before)


def _no_mask(*_: Any, local_size: int | None = None, **__: Any) -> None:
    """Return no mask; raise for sliding and chunked layers, which would need one."""
    if local_size is not None:
        raise NotShareableError("local attention")


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention of the current rows, (1, rows, heads, head_dim), for transformers.

    Raises SkipAttention when only keys are needed, NotShareableError for anything not causal.
    """
    if attention_mask is not None and attention_mask.numel() > 1:  # else it hides nothing
        options["attention_mask"] = attention_mask
    beyond = [name for name in BEYOND if options.pop(name, None) is not None]
    beyond += [n for n, x in options.items() if isinstance(x, Tensor) and n not in POSITIONS]
    if beyond or query.shape[0] != 1 or query.shape[3] != value.shape[3]:
        raise NotShareableError(", ".join(beyond) or "shape")
    return _running[-1](module, query, key, value, options.get("scaling")), None


def _rows(run: Run, module: Any, query: Tensor, scale: float | None) -> Tensor:
    first, end = run.rows
    layer, parts = run.layers[module.layer_idx], []
    for index, (start, stop) in run.spans.items():
        low, high = max(first, start), min(end, stop)
        if low >= high:
            continue
        rows, position = (
            query[:, :, low - first : high - first],
            run.nodes[index].first + low - start,
        )
        key, value = _path(run, index, high, module.layer_idx)
        if layer.node != index:
            layer.node = index
            layer.derived = Kept(padded_length(run.nodes[index].end, query.device))
        # A node that is computed at once derives nothing that its later rows need.
        derived = None if high - low == stop - start else layer.derived
        parts.append(run.kernel(module, rows, key, value, position, scale, derived).transpose(1, 2))
    odd = end - first - sum(part.shape[1] for part in parts)
    if odd:  # rows that only complete the last ones, and that are not read
        parts.append(query.new_zeros((1, odd, query.shape[1], query.shape[3])))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _hold(run: Run, layer: int, key: Tensor, value: Tensor) -> None:
    """Store the rows' keys and values, and copy those that later packs need."""
    first, end = run.rows
    if first == 0:
        run.calls += 1
        more = padded_length(run.size, key.device) - key.shape[2]  # rows that are not written yet
        run.layers[layer] = LayerKeys(
            [pad(t, (0, 0, 0, more)) if more else t for t in (key, value)]
        )
    else:
        for whole, rows in zip(run.layers[layer].whole, (key, value), strict=True):
            whole[:, :, first:end] = rows
    if end == run.size:
        for index in run.keep:
            span = slice(*run.spans[index])
            keys, values = (t[:, :, span].clone() for t in run.layers[layer].whole)
            run.kept[index, layer] = keys, values


def _path(run: Run, index: int, high: int, layer: int) -> Pair:
    """Return keys and values from position 0 up to row ``high`` of a node, up to whole blocks.

    They are a view where the path is contiguous, and joined otherwise.
    """
    node, (start, _) = run.nodes[index], run.spans[index]
    whole = run.layers[layer].whole
    length = node.first + high - start
    held = padded_length(length, whole[0].device)
    origin = row = start - node.first
    for above in node.above:
        if run.spans.get(above, (None,))[0] != row:
            break
        row += len(run.nodes[above].tokens)
    if row == start and origin >= 0 and origin + held <= whole[0].shape[2]:
        key, value = (t[:, :, origin : origin + held] for t in whole)
        return key, value
    return _joined(run, index, high, layer)


def _joined(run: Run, index: int, high: int, layer: int) -> Pair:
    """Return the joined keys and values of a path, in memory allocated once per pack.

    The part in common with the previous path is reused. Rows after its end are not seen.
    """
    node, (start, _) = run.nodes[index], run.spans[index]
    own = run.layers[layer].whole
    length, device = node.first + high - start, own[0].device
    longest = padded_length(max(run.nodes[other].end for other in run.spans), device)
    needed = [((1, rows.shape[1], longest, rows.shape[3]), device) for rows in own]
    before = run.joined_of[1] if run.joined_of[0] == layer else ()
    if [(tuple(whole.shape), whole.device) for whole in run.joined] != needed:
        run.joined = [t.new_zeros(size) for t, (size, _) in zip(own, needed, strict=True)]
        before = ()
    same = sum(one == other for one, other in zip(before, node.above, strict=False))
    run.joined_of = layer, node.above
    for part, (rows, whole) in enumerate(zip(own, run.joined, strict=True)):
        for above in node.above[same:]:
            near = above in run.spans
            piece = rows[:, :, slice(*run.spans[above])] if near else run.above[above, layer][part]
            whole[:, :, run.nodes[above].first : run.nodes[above].end] = piece
        whole[:, :, node.first : length] = rows[:, :, start:high]
    key, value = (whole[:, :, : padded_length(length, device)] for whole in run.joined)
    return key, value
