"""What a rotation must keep, each as a number: norms, relative positions, and the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console

from harness.reports.writing.sentences import counted
from scaling.types import Frequencies, Rope

DRAWS = 256  # pairs of a query and a key, at random positions
Rotate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Identity:
    """The largest error of an equation, relative to the norms, in two precisions."""

    about: str
    float32: float
    float64: float


def identities(found: Frequencies, length: int) -> tuple[Identity, ...]:
    """Return the errors at random positions below a length; angles are of the same precision."""
    single, double = (_errors(found, length, dtype) for dtype in (torch.float32, torch.float64))
    return tuple(Identity(about, single[about], double[about]) for about in single)


def show(rope: Rope, length: int, console: Console) -> None:
    """Print what a model's plain rotation keeps, with the error in both precisions."""
    found = identities(Frequencies(rope.inv_freq()), length)
    width = max(len(one.about) for one in found)
    console.print(
        f"Largest relative errors up to {counted(length, 'tokens')}, in float32 and in float64:",
        *(f"  {one.about:<{width}}  {one.float32:.1e}  {one.float64:.1e}" for one in found),
        sep="\n",
        highlight=False,
    )


def _errors(found: Frequencies, length: int, dtype: torch.dtype) -> dict[str, float]:
    draw = torch.Generator().manual_seed(0)
    size, inv_freq = 2 * len(found.inv_freq), found.inv_freq.to(dtype)
    query, key = (
        torch.randn(DRAWS, size, generator=draw, dtype=torch.float64).to(dtype) for _ in range(2)
    )
    at, other = (torch.randint(0, length, (DRAWS,), generator=draw) for _ in range(2))
    shift = torch.minimum(at, other)  # to the beginning, so that no position leaves the length
    halves, neighbours = (_rotation(inv_freq, split=split) for split in (True, False))
    norms = query.norm(dim=-1) * key.norm(dim=-1)
    score = (halves(query, at) * halves(key, other)).sum(-1)
    moved = (halves(query, at - shift) * halves(key, other - shift)).sum(-1)
    order = torch.arange(size).view(2, -1).mT.flatten()  # channel i beside i + d/2
    beside = neighbours(query[:, order], at) * neighbours(key[:, order], other)
    turned = halves(query, at).norm(dim=-1) / query.norm(dim=-1)
    return {
        "a rotation keeps the norm": float((turned - 1).abs().max()),
        "a shift of both positions keeps the score": float(((moved - score) / norms).abs().max()),
        "half-split and interleaved layouts agree": float(
            ((beside.sum(-1) - score) / norms).abs().max()
        ),
    }


def _rotation(inv_freq: torch.Tensor, *, split: bool) -> Rotate:
    """Return a rotation of channels i and i + d/2, or of neighbours."""

    def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None].to(inv_freq.dtype) * inv_freq
        one, other = x.chunk(2, -1) if split else (x[:, ::2], x[:, 1::2])
        both = (
            one * angles.cos() - other * angles.sin(),
            other * angles.cos() + one * angles.sin(),
        )
        return torch.cat(both, -1) if split else torch.stack(both, -1).flatten(-2)

    return rotate
