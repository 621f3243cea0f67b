"""Determine which channels each layer rotates, and their pairs, by running the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.harness.engine.structure import attending
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.frequencies import as_is, placed, rotary_name
from ropewalk.scaling.types import Frequencies

NAME = "ropewalk"  # of the attention in transformers' registries; no kernel's name may be in it
TOLERANCE = 1e-2  # of the largest value: a quarter turn in bfloat16 is exact to 4e-3
UNDERSTOOD = ("s_aux", "position_ids", "cache_position")  # tensors that bias or select nothing
Attention = Callable[..., tuple[Tensor, None]]


@dataclass(frozen=True, eq=False)
class Layout:
    """How a layer rotates the channels of a head, all ``(head_dim,)``.

    ``pair`` is the index of a channel's frequency, or -1 if the channel is not rotated. ``partner``
    is the channel that it is rotated with, and ``sign`` is +1 or -1 in x' = x cos + sign *
    x[partner] sin. ``halves`` marks the common case: the whole head is rotated, one half with the
    other.
    """

    pair: Tensor
    partner: Tensor
    sign: Tensor
    halves: bool

    def tables(
        self,
        positions: Tensor,
        frequencies: Frequencies,
        device: torch.device,
        phase: Tensor | None = None,
        *,
        blended: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin ``(tokens, head_dim)`` as ``rotate`` takes them, float32.

        ``positions`` are ``(tokens,)``, or ``(tokens, pairs)`` where channel pairs differ. Several
        columns of positions, ``(tokens, columns, 1)``, give ``(tokens, columns, head_dim)``. Where
        ``blended``, a fractional one gives the blend of the two whole positions around it.
        ``phase`` is added to the angles, in radians, one value per channel pair. The angles are
        float64 products: two rotations then give the relative position up to the float32 rounding
        of cos and sin, at any distance from the beginning.

        Differs from transformers: its angles are float32, off by 5e-4 radians at 32768 tokens.
        """
        exact = device if device.type in ("cpu", "cuda") else "cpu"  # others may lack float64
        inv_freq = frequencies.inv_freq.to(exact, torch.float64)
        at = positions.to(exact)
        at = at[:, None] if at.dim() == 1 else at
        turned = partial(_turned, inv_freq=inv_freq, phase=phase)
        tables = turned(at)
        if blended and bool((part := at - at.floor()).any()):
            whole = zip(turned(at.floor()), turned(at.ceil()), strict=True)
            tables = tuple((1 - part) * low + part * high for low, high in whole)
        pair, sign = self.pair.to(device), self.sign.to(device)
        cos, sin = (x.float().to(device)[..., pair.clamp(min=0)] for x in tables)
        factor, at_rest = frequencies.attention_factor, pair < 0
        return (cos * factor).masked_fill_(at_rest, 1.0), (sin * sign * factor).masked_fill_(
            at_rest, 0.0
        )

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate ``(batch, heads, tokens, head_dim)``, in float32 whatever the dtype."""
        if self.halves:
            half = x.shape[-1] // 2
            partners = torch.cat((x[..., half:], x[..., :half]), -1)
        else:
            partners = x[..., self.partner.to(x.device)]
        return torch.addcmul(x * cos, partners, sin).to(x.dtype)


def _turned(positions: Tensor, inv_freq: Tensor, phase: Tensor | None) -> tuple[Tensor, ...]:
    """Return cos and sin of the angles at positions ``(tokens, 1 or pairs)``, float64."""
    angles = positions * inv_freq
    angles += 0.0 if phase is None else phase.to(angles.device)
    return angles.cos(), angles.sin()


@contextmanager
def runs(kind: str) -> Iterator[None]:
    """Turn the errors of a model whose attention was replaced into a UserError."""
    try:
        yield
    except (TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{kind} does not let its attention be replaced; positions cannot be moved in it."
        ) from error


def no_mask(
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> None:
    """Return no mask; raise UserError where rows are padded, or keys follow the last query."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise UserError("positions are moved for whole rows of tokens; padding is not supported.")
    if kv_offset + kv_length != int(q_offset) + q_length:
        raise UserError(
            "positions are moved with a cache that grows; a static one, as by"
            " cache_implementation='static', is not supported."
        )


def _window(*_: Any, local_size: int | None = None, device: Any = None, **__: Any) -> Tensor:
    """Return the window of a mask in tokens, in place of the mask; 0 for no window."""
    return torch.full((1, 1, 1, 1), float(local_size or 0), device=device)


def layouts_of(model: Any) -> dict[nn.Module, Layout | None]:
    """Return the layout of every layer's attention, None for a layer that is not rotated.

    The model runs two tokens with an attention that returns zeros, so that every layer has the
    same input in every run. The angles are zero or a quarter turn, and the bits of a pair's index
    say which in each run. Raises UserError naming the model if it does not rotate channel pairs
    before the attention.
    """
    name, kind = rotary_name(model), type(model).__name__
    pairs = len(as_is(model.get_submodule(name)).inv_freq)
    plain = _captured(model, name, torch.zeros(pairs))
    if not plain:
        raise UserError(
            f"{kind} does not let its attention be replaced; positions cannot be moved in it."
        )
    quarter = math.pi / 2
    turned = _captured(model, name, torch.full((pairs,), quarter))
    index = torch.arange(pairs)
    bits = [
        _captured(model, name, (index >> bit & 1) * quarter)
        for bit in range(max(1, (pairs - 1).bit_length()))
    ]
    layouts: dict[nn.Module, Layout | None] = {}
    different: dict[Any, Layout] = {}  # layers that rotate in the same way share its tables
    for layer, seen in plain.items():
        layout = _layout(kind, seen, turned[layer], [bit[layer] for bit in bits], pairs)
        if layout is not None:
            channels = (layout.pair, layout.partner, layout.sign)
            layout = different.setdefault(tuple(tuple(x.tolist()) for x in channels), layout)
        layouts[layer] = layout
    if not different:
        raise UserError(f"{kind}: no layer's queries depend on its rotary module; not supported.")
    return layouts


@torch.inference_mode()
def _captured(model: Any, name: str, inv_freq: Tensor) -> dict[nn.Module, Tensor]:
    """Return what every layer's attention sees of its second token, (heads, head_dim) float32."""
    seen: dict[nn.Module, Tensor] = {}
    kind = type(model).__name__

    def capture(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *,
        sliding_window: int | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        extra = [n for n, x in more.items() if isinstance(x, Tensor) and n not in UNDERSTOOD]
        if extra or (attention_mask is not None and attention_mask.numel() != 1):
            how = f" ({', '.join(extra)})" if extra else ""
            raise UserError(
                f"{kind} masks or biases its scores itself{how}; positions cannot be moved."
            )
        if (0 if attention_mask is None else int(attention_mask)) != (sliding_window or 0):
            raise UserError(
                f"{kind} does not pass its windows to attention; positions cannot be moved."
            )
        seen[module] = torch.cat((query[0, :, 1], key[0, :, 1])).float().cpu()
        shape = (len(query), query.shape[2], query.shape[1], value.shape[-1])
        return query.new_zeros(shape), None

    placing = placed(model, name, Frequencies(inv_freq.float()))
    with placing, attending(model, NAME, capture, _window), runs(kind):
        model(input_ids=torch.tensor([[1, 2]], device=model.device), use_cache=False)
    return seen


def _layout(
    kind: str, plain: Tensor, turned: Tensor, bits: list[Tensor], pairs: int
) -> Layout | None:
    """Return a layout from a layer's channels: unrotated, all rotated, and pair by pair."""
    size = plain.shape[-1]
    near = float(plain.abs().max()) * TOLERANCE
    if float((turned - plain).abs().max()) <= near:
        return None
    # (channel, candidate): the distance of the turned channel from ± the candidate, in any head
    both = [(turned[:, :, None] - sign * plain[:, None]).abs().amax(0) for sign in (1.0, -1.0)]
    errors = torch.stack(both)
    at_rest = errors[0].diagonal() <= near
    errors[:, range(size), range(size)] = torch.inf
    best, which = errors.amin(0), errors.argmin(0)
    partner = best.argmin(-1)
    sign = 1.0 - 2.0 * which.gather(1, partner[:, None])[:, 0]
    partner[at_rest] = torch.arange(size)[at_rest]
    pair = sum(
        ((bit - turned).abs().amax(0) < (bit - plain).abs().amax(0)).long() << position
        for position, bit in enumerate(bits)
    )
    assert isinstance(pair, Tensor)
    moved = ~at_rest
    paired = (
        torch.equal(partner[partner], torch.arange(size))
        and torch.equal(sign[partner][moved], -sign[moved])
        and torch.equal(pair[partner][moved], pair[moved])
        and float(best.amin(-1)[moved].max()) <= near
        and int(pair[moved].max()) < pairs
    )
    if not paired:
        raise UserError(
            f"{kind} does not rotate pairs of channels just before its attention; not supported."
        )
    swapped = torch.arange(size).roll(size // 2)
    halves = bool(moved.all()) and torch.equal(partner, swapped)
    return Layout(pair.masked_fill(at_rest, -1), partner, sign, halves)
