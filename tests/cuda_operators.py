"""A GPU's operators without a GPU: those of attention computed densely, all of them counted."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ropewalk.harness.engine import sdpa

FLASH, EFFICIENT = "_flash_attention_forward", "_efficient_attention_forward"
SCHEMAS = {name: getattr(torch.ops.aten, name).default._schema for name in (FLASH, EFFICIENT)}
ATTENTION = "scaled_dot_product_attention"
WAITS = {"equal": True, "is_nonzero": False, "_local_scalar_dense": 0}  # and made-up results
FILLED = 32  # rows of the efficient kernel's log-sum-exp are whole ones


@dataclass(frozen=True)
class Call:
    """One call of an operator; ``stored`` are the numbers that its keys take in memory."""

    name: str
    rows: int
    keys: int
    stored: int


@dataclass
class Operators:
    """The operators in place of PyTorch's, which need a GPU, and their calls.

    If not ``dense``, their numbers are zeros, and they need no memory but for these.
    """

    flash: bool
    dense: bool = True
    calls: list[Call] = field(default_factory=list)

    @staticmethod
    def installed(monkeypatch: pytest.MonkeyPatch, *, flash: bool, dense: bool = True) -> Operators:
        """Let attention take this for a GPU whose flash kernel takes everything or nothing."""
        operators = Operators(flash, dense)
        monkeypatch.setattr(sdpa, "on_gpu", lambda _: True)
        monkeypatch.setattr(sdpa, "flash_takes", lambda *_: flash)
        for name in SCHEMAS:
            monkeypatch.setattr(torch.ops.aten, name, partial(operators.call, name))
        return operators

    def call(self, name: str, *given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        """Compute what the operator does of the arguments of its schema; others are an error."""
        arguments = [argument.name for argument in SCHEMAS[name].arguments]
        named = dict(zip(arguments, given, strict=False)) | named
        assert set(named) <= set(arguments)
        query, key, value = (named[part] for part in ("query", "key", "value"))
        # (batch, rows, heads, channels)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        left, right = named.get("window_size_left", -1), named.get("window_size_right", -1)
        causal = named.get("is_causal", False) or named.get("custom_mask_type") == 2
        if name == EFFICIENT:
            assert query.shape[1] == key.shape[1]
            assert named["compute_log_sumexp"]
        else:
            assert (named["max_q"], named["max_k"]) == (query.shape[2], key.shape[2])
            assert query.shape[3] <= 256
        assert query.shape[3] == key.shape[3] == value.shape[3]
        assert query.shape[3] % 8 == 0
        assert key.shape[:3] == value.shape[:3]
        assert all(part.stride(3) == 1 for part in (query, key, value))
        shared = key.untyped_storage().nbytes() // key.element_size()
        self.calls.append(Call(name, query.shape[2], key.shape[2], shared))
        if self.dense:
            out, lse = attention(query, key, value, named["scale"], left, 0 if causal else right)
        else:
            out, lse = torch.empty_like(query), query.new_empty(query.shape[:3])
        more = 0 if name == FLASH else -query.shape[2] % FILLED
        return out.transpose(1, 2), torch.nn.functional.pad(lse, (0, more))


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, left: int, right: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention in a window, as FlashAttention-2 documents it, and its log-sum-exp.

    Row i of R sees keys i + K - R - left to i + K - R + right of K, and -1 is no bound.
    """
    copies = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(copies, 1) for part in (key, value))
    place = torch.arange(query.shape[2])[:, None] + key.shape[2] - query.shape[2]
    behind = place - torch.arange(key.shape[2])
    seen = ((behind <= left) | (left < 0)) & ((-behind <= right) | (right < 0))
    assert seen.any(1).all()
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, seen, scale=scale)
    scores = (query @ key.mT * scale).masked_fill(~seen, -torch.inf)
    return out, scores.logsumexp(-1)


class Counted(TorchDispatchMode):
    """Count what runs on tensors of the device "meta", which have no data.

    ``waits`` are the times that the host reads numbers back, which of meta tensors are made up.
    ``peak`` is the largest number of bytes alive at once, without those of an ignored model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known = set[int]()
        self.waits = self.live = self.peak = 0

    def ignore(self, model: torch.nn.Module) -> None:
        self.known |= {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.partition(".")[0]
        if name not in (ATTENTION, "_to_copy") and func._can_decompose():
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self._there((args, kwargs)):
            to_host = name == "_to_copy" and str(kwargs.get("device")) == "cpu"
            self.waits += to_host or name in WAITS
            if to_host or name in WAITS:
                zeros = torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
                return WAITS.get(name, zeros)
        empty = name == ATTENTION  # else it makes all scores
        out = torch.empty_like(args[0]) if empty else func(*args, **kwargs)
        made = self._there(out)
        for storage in (tensor.untyped_storage() for tensor in made):
            place, size = storage._cdata, -(-storage.nbytes() // 512) * 512  # as allocated
            if place not in self.known:
                self.known.add(place)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._drop, place, size)
        return out

    def _there(self, value: Any) -> list[torch.Tensor]:
        tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
        return [tensor for tensor in tensors if tensor.device.type == "meta"]

    def _drop(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.live -= size
