"""From hidden states to losses and argmaxes, in row chunks: logits of all rows never exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.modeling_outputs import MoeModelOutputWithPast

from harness.engine.sdpa import LEAST_ROWS
from harness.engine.trunk import trunk_name

BLOCK = 64  # logits whose largest is found first
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class _Stub(nn.Module):
    """Stands in for the trunk and returns hidden states computed before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> MoeModelOutputWithPast:
        # The one output that has what any head reads, mixtures of experts included.
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


@contextmanager
def _head_only(model: nn.Module) -> Iterator[_Stub]:
    """Take the trunk out, so that the model's forward is its own head and nothing else.

    A bare ``lm_head`` is wrong for a dozen families, which scale or cap their logits.
    """
    name = trunk_name(model)
    trunk, stub = getattr(model, name), _Stub()
    setattr(model, name, stub)
    try:
        yield stub
    finally:
        setattr(model, name, trunk)


def read(
    model: Any, hidden: torch.Tensor, rows: Ints, targets: Ints, chunk: int
) -> tuple[Floats, Ints]:
    """Return the loss of each target in nats, float32, and the argmax there, both (n,).

    ``hidden`` is (1, rows of a pack, width); target i is predicted by row ``rows[i]``. Losses are
    computed in float32, ``chunk`` rows at a time, in two buffers that are used again; at least 16
    rows, for fewer have other bits.
    """
    nll = np.empty(len(rows), np.float32)
    argmax = np.empty(len(rows), np.int64)
    buffers: list[torch.Tensor] = []
    with _head_only(model) as stub:
        for first in range(0, len(rows), chunk):
            count = min(chunk, len(rows) - first)
            few = max(0, LEAST_ROWS - count)
            index = np.append(rows[first : first + count], np.full(few, rows[first]))
            asked = torch.from_numpy(index).to(hidden.device)
            stub.hidden = hidden.index_select(1, asked)
            logits = model(input_ids=asked[None], use_cache=False).logits[0]
            exact, out = _in_float32(logits, buffers)
            argmax[first : first + count] = _argmax(exact[:count]).cpu().numpy()
            wanted = torch.from_numpy(targets[first : first + count]).to(hidden.device)
            losses = torch.log_softmax(exact, -1, out=out)[:count].gather(1, wanted[:, None])
            nll[first : first + count] = -losses[:, 0].cpu().numpy()
            del logits, exact, out  # else a chunk's are alive while the next one's are made
    return nll, argmax


def _in_float32(
    logits: torch.Tensor, buffers: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits in float32 and room for as many log-probabilities, in memory taken once."""
    size = len(logits)
    if not buffers or len(buffers[0]) < size:
        count = 1 if logits.dtype == torch.float32 else 2
        buffers[:] = [torch.empty_like(logits, dtype=torch.float32) for _ in range(count)]
    exact = logits if len(buffers) == 1 else buffers[1][:size].copy_(logits)
    return exact, buffers[0][:size]


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the first largest entry of each row, (rows,).

    By the maximum of each block first, which is vectorized on a CPU where argmax is not: three
    times as fast.
    """
    rows, size = logits.shape
    if size % BLOCK:
        return logits.argmax(-1)
    blocks = logits.view(rows, size // BLOCK, BLOCK)
    best = blocks.amax(-1).argmax(-1)
    within = blocks[torch.arange(rows, device=logits.device), best].argmax(-1)
    return best * BLOCK + within
