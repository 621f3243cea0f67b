"""Compute attention over a pack of token runs: each run sees itself and the runs before it.

The model's own layers compute queries, keys and values for all runs of a pack at once. This
attention, registered with transformers, joins the keys and values of each run's path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, cat
from torch.nn.functional import pad

from ropewalk.harness.engine.prefix_tree import Node, NodePath
from ropewalk.harness.engine.sdpa import Before, Causal, Kept, Kernel, View, padded_length
from ropewalk.harness.engine.structure import NotShareableError, attending, language_model

NAME, PLAIN = "ropewalk_runs", "sdpa"
BEYOND = ("softcap", "s_aux", "position_bias", "sliding_window", "attention_mask")
POSITIONS = ("position_ids", "cache_position")  # any other tensor may select keys
Pair = tuple[Tensor, Tensor]  # keys and values, (1, kv_heads, rows, head_dim)
KVCache = dict[tuple[int, int], Pair]  # by node and layer
# What computes the attention of the current rows, (1, rows, heads, head_dim): of a module, its
# query, key and value, and the scale.
Attend = Callable[[Any, Tensor, Tensor, Tensor, float | None], Tensor]


class SkipAttention(Exception):
    """Leaves a layer from which only the keys and values of the current rows are needed."""


@dataclass
class Run:
    """One pack during its forward through the layers.

    ``spans`` has the rows of each node in the pack; ``above`` has the keys and values of nodes
    computed in earlier packs, ``kept`` collects those of the nodes in ``keep``. ``rows`` are
    those that a layer computes now; ``layers`` has the keys and values of the layer that is not
    done, and ``derived`` what its kernel computed from those of one node. ``joined`` has those of
    one path, of the layer and the nodes in ``joined_of``; layers may be on several devices.
    """

    nodes: tuple[Node, ...]
    spans: dict[int, tuple[int, int]]
    size: int
    kernel: Kernel
    above: KVCache = field(default_factory=dict)
    keep: frozenset[int] = frozenset()
    rows: tuple[int, int] = (0, 0)
    keys_only: bool = False
    calls: int = 0
    kept: KVCache = field(default_factory=dict)
    layers: dict[int, list[Tensor]] = field(default_factory=dict)
    derived: dict[int, tuple[int, Kept]] = field(default_factory=dict)
    joined: list[Tensor] = field(default_factory=list)
    joined_of: tuple[int, NodePath] = (-1, ())

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> Tensor:
        """Store the rows' keys, and return their attention; SkipAttention if that is not needed."""
        self._store(module.layer_idx, key, value)
        if self.keys_only:
            raise SkipAttention
        layer, (first, end), parts = module.layer_idx, self.rows, []
        for index, (start, stop) in self.spans.items():
            low, high = max(first, start), min(end, stop)
            if low >= high:
                continue
            node = self.nodes[index]
            rows, position = query[:, :, low - first : high - first], node.first + low - start
            pair = self._path(index, high, layer)
            if self.derived.get(layer, (-1,))[0] != index:
                self.derived[layer] = index, Kept(padded_length(node.end, query.device))
            # A node that is computed at once derives nothing that its later rows need.
            derived = None if high - low == stop - start else self.derived[layer][1]
            out = self.kernel(module, rows, *pair, position, scale, derived)
            parts.append(out.transpose(1, 2))
        odd = end - first - sum(part.shape[1] for part in parts)
        if odd:  # rows that only complete the last ones, and that are not read
            parts.append(query.new_zeros((1, odd, query.shape[1], query.shape[3])))
        return parts[0] if len(parts) == 1 else cat(parts, 1)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> None:
        first, end = self.rows
        if first == 0:
            self.calls += 1
            more = padded_length(self.size, key.device) - key.shape[2]  # rows not written yet
            whole = [pad(rows, (0, 0, 0, more)) if more else rows for rows in (key, value)]
            self.layers[layer] = whole
        else:
            for rows, new in zip(self.layers[layer], (key, value), strict=True):
                rows[:, :, first:end] = new
        if end == self.size:
            for index in self.keep:
                span = slice(*self.spans[index])
                keys, values = (rows[:, :, span].clone() for rows in self.layers[layer])
                self.kept[index, layer] = keys, values

    def _path(self, index: int, high: int, layer: int) -> Pair:
        """Return keys and values from position 0 up to row ``high`` of a node, in whole blocks.

        They are a view where the path is contiguous, and joined otherwise.
        """
        node, start = self.nodes[index], self.spans[index][0]
        whole = self.layers[layer]
        held = padded_length(node.first + high - start, whole[0].device)
        origin = row = start - node.first
        for above in node.above:
            if self.spans.get(above, (None,))[0] != row:
                break
            row += len(self.nodes[above].tokens)
        if row == start and origin >= 0 and origin + held <= whole[0].shape[2]:
            key, value = (rows[:, :, origin : origin + held] for rows in whole)
            return key, value
        return self._joined(index, high, layer)

    def _joined(self, index: int, high: int, layer: int) -> Pair:
        """Return them in memory that is allocated once per pack.

        The part in common with the previous path is reused. Rows after its end are not seen.
        """
        node, start = self.nodes[index], self.spans[index][0]
        own = self.layers[layer]
        length, device = node.first + high - start, own[0].device
        longest = padded_length(max(self.nodes[other].end for other in self.spans), device)
        needed = [((1, rows.shape[1], longest, rows.shape[3]), device) for rows in own]
        before = self.joined_of[1] if self.joined_of[0] == layer else ()
        if [(tuple(whole.shape), whole.device) for whole in self.joined] != needed:
            self.joined = [t.new_zeros(size) for t, (size, _) in zip(own, needed, strict=True)]
            before = ()
        same = sum(one == other for one, other in zip(before, node.above, strict=False))
        self.joined_of = layer, node.above
        for part, (rows, whole) in enumerate(zip(own, self.joined, strict=True)):
            for above in node.above[same:]:
                near = self.spans.get(above)
                piece = rows[:, :, slice(*near)] if near else self.above[above, layer][part]
                whole[:, :, self.nodes[above].first : self.nodes[above].end] = piece
            whole[:, :, node.first : length] = rows[:, :, start:high]
        key, value = (whole[:, :, : padded_length(length, device)] for whole in self.joined)
        return key, value


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


def views_of(model: Any, longest: int) -> tuple[Sequence[View], int]:
    """Return the views of the model's attention of positions below ``longest``.

    None where it cannot compute the rows of several texts at once. Beside them is how many keys and
    values of a token are kept.
    """
    from transformers import AttentionInterface  # with the model's code

    name = language_model(model).config._attn_implementation
    if name == PLAIN:
        return (Before(),), 2
    attention = AttentionInterface().get(name)
    if not hasattr(type(attention), "views"):
        return (), 0
    views = attention.views
    return views if all(longest <= view.length for view in views) else (), attention.copies


def installed(model: Any, attend: Attend) -> AbstractContextManager[None]:
    """Let a function compute the attention of a model's layers, which are checked to be causal."""
    return attending(model, NAME, partial(_attended, attend), _no_mask)


def _no_mask(*_: Any, local_size: int | None = None, **__: Any) -> None:
    if local_size is not None:  # sliding and chunked layers, which would need one
        raise NotShareableError("local attention")


def _attended(
    attend: Attend,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention of the current rows; NotShareableError for anything not causal."""
    if attention_mask is not None and attention_mask.numel() > 1:  # else it hides nothing
        options["attention_mask"] = attention_mask
    beyond = [name for name in BEYOND if options.pop(name, None) is not None]
    beyond += [n for n, x in options.items() if isinstance(x, Tensor) and n not in POSITIONS]
    if beyond or query.shape[0] != 1 or query.shape[3] != value.shape[3]:
        raise NotShareableError(", ".join(beyond) or "shape")
    return attend(module, query, key, value, options.get("scaling")), None
