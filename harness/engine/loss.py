"""Compute losses and argmaxes from hidden states, in row chunks: never the logits of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.memory import BLOCK, Sizes
from ropewalk.harness.engine.sdpa import LEAST_ROWS, sent
from ropewalk.harness.engine.structure import trunk_name

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
PARTS = 4  # of the rows that the head computes at once: float64, and two predictions


class _Hidden(BaseModelOutput):  # type: ignore[misc]  # its type is Any here
    """Hidden states, and None for every other output of a trunk that a head hands on."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Stub(nn.Module):
    """Replaces the trunk and returns hidden states computed before.

    A head may read other attributes of the trunk, such as a multiplier of its logits.
    """

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.__dict__["trunk"] = trunk  # no child, so that the model's modules stay the same
        self.hidden: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["trunk"], name)

    @property
    def decoder(self) -> _Stub:
        """The trunk of OPT, whose head calls the decoder inside it."""
        return self

    def forward(self, *_: Any, **__: Any) -> _Hidden:
        return _Hidden(last_hidden_state=self.hidden)


@contextmanager
def _head_only(model: nn.Module) -> Iterator[_Stub]:
    """Replace the trunk, so that the model's forward is its own head and nothing else.

    A bare ``lm_head`` is wrong for a dozen families, which scale or cap their logits.
    """
    name = trunk_name(model)
    trunk = getattr(model, name)
    stub = _Stub(trunk)
    setattr(model, name, stub)
    try:
        yield stub
    finally:
        setattr(model, name, trunk)


def target_losses(
    model: Any, hidden: Tensor, rows: Ints, targets: Ints, sizes: Sizes
) -> tuple[Floats, Ints]:
    """Return the loss of each target in nats, float32, and the argmax there, both (n,).

    ``hidden`` is (1, rows of a pack, width); target i is predicted by row ``rows[i]``. Losses are
    computed in float32, some rows at a time, in place of the logits; at least 16 rows, because
    fewer have other bits.

    Differs from ``log_softmax`` in float32 on a CPU, whose sum over the vocabulary is too low: by
    8e-6 nats per token at 49k tokens, 2e-5 at 262k.
    """
    if not len(rows):
        return np.empty(0, np.float32), np.empty(0, np.int64)
    # A device is sent everything at the beginning and read once at the end: it need not wait.
    filled = np.append(rows, np.full(LEAST_ROWS, rows[-1]))
    places, wanted = (sent(torch.from_numpy(x), hidden.device) for x in (filled, targets))
    chunk = _chunk(model, sizes)
    losses: list[Tensor] = []
    likeliest: list[Tensor] = []
    buffer = torch.empty(0)
    with _head_only(model) as stub:
        for first in range(0, len(rows), chunk):
            count = min(chunk, len(rows) - first)
            place = places[first : first + max(count, LEAST_ROWS)]
            stub.hidden = hidden.index_select(1, place)
            logits = model(input_ids=torch.zeros_like(place)[None], use_cache=False).logits[0]
            if logits.dtype != torch.float32:  # in memory that is allocated once
                if len(buffer) < len(logits):
                    buffer = torch.empty_like(logits, dtype=torch.float32)
                logits = buffer[: len(logits)].copy_(logits)
            exact = logits[:count]
            best = most_likely(exact)
            losses.append(nll_of(exact, best, wanted[first : first + count]))
            likeliest.append(best)
            del logits, exact  # else they use memory while those of the next chunk are computed
    return torch.cat(losses).cpu().numpy(), torch.cat(likeliest).cpu().numpy()


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """Return the logits of hidden states (1, rows, width) by the model's own head, in float32."""
    with _head_only(model) as stub:
        stub.hidden = hidden
        inputs = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        logits: Tensor = model(input_ids=inputs, use_cache=False).logits[0].float()
    return logits


def _chunk(model: Any, sizes: Sizes) -> int:
    vocabulary = model.config.get_text_config().vocab_size
    return sizes.head_rows(vocabulary, gpu=sdpa.on_gpu(model.device))


@torch.inference_mode()
def divergences(model: Any, own: Tensor, other: Tensor, sizes: Sizes) -> list[float]:
    """Return the Kullback-Leibler divergence of every row's prediction, in nats, in float64.

    ``own`` and ``other`` are hidden states of the same positions, (1, rows, width); the mean is
    over the prediction of ``own``. Equal logits give exactly 0.
    """
    results: list[Tensor] = []
    chunk = max(_chunk(model, sizes) // PARTS, LEAST_ROWS)
    for first in range(0, own.shape[1], chunk):
        rows = slice(first, first + chunk)
        logs = [logits_of(model, x[:, rows]).double().log_softmax(-1) for x in (own, other)]
        difference = torch.where(logs[0].isneginf(), 0.0, logs[0] - logs[1])
        results.append((logs[0].exp() * difference).sum(-1).clamp_(min=0))
    every: list[float] = torch.cat(results).tolist()
    return every


def nll_of(logits: Tensor, best: Tensor, targets: Tensor) -> Tensor:
    """Return -log softmax at the targets, (rows,), and write over the logits."""
    largest = logits.gather(1, best[:, None])
    below = largest - logits.gather(1, targets[:, None])
    return logits.sub_(largest).exp_().sum(-1).log() + below[:, 0]


def most_likely(logits: Tensor) -> Tensor:
    """Return the first largest entry of each row, (rows,).

    It takes the maximum of each block first, which is vectorized on a CPU where argmax is not:
    three times as fast.
    """
    rows, size = logits.shape
    if size % BLOCK:
        return logits.argmax(-1)
    blocks = logits.view(rows, size // BLOCK, BLOCK)
    best = blocks.amax(-1).argmax(-1)
    within = blocks[torch.arange(rows, device=logits.device), best].argmax(-1)
    return best * BLOCK + within
