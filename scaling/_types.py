"""Define the input and output of a method: a rotary geometry in, frequencies out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch


@dataclass(frozen=True)
class Range:
    """Where ``ropewalk tune`` looks for an option's value, beside its type: not what is allowed.

    ``low`` and ``high`` are in units of ``of``: 1, the stretch of the length or the trained window.
    ``log``: equal steps are equal ratios. Write ``kept: Annotated[float, Range(0.1, 0.9)] = 0.5``.
    """

    low: float
    high: float
    log: bool = False
    of: Literal["one", "stretch", "window"] = "one"


Factor = Annotated[float | None, Range(0.5, 4.0, log=True, of="stretch")]
Turns = Annotated[float, Range(4.0, 128.0, log=True)]  # above which channels are kept
FewTurns = Annotated[float, Range(0.1, 4.0, log=True)]  # below which they are divided in full
Window = Annotated[int | None, Range(1 / 64, 3 / 4, log=True, of="window")]  # in tokens


@dataclass(frozen=True)
class Rope:
    """The rotary embedding a model was trained with, before any scaling.

    ``rotary_dim`` counts rotated channels of one head (even); ``base`` is the rope theta;
    ``trained_length`` is one window of pretraining in tokens; ``shipped`` is the checkpoint's own
    scaling in Hugging Face's words (``rope_type`` and its parameters), empty for none; ``layers``
    is the number of decoder layers.
    """

    rotary_dim: int
    base: float
    trained_length: int
    shipped: Mapping[str, object] = field(default_factory=dict)
    layers: int = 1

    def stretch(self, length: int) -> float:
        """Return the stretch of a length, max(1, length / trained_length)."""
        return max(1.0, length / self.trained_length)

    def tokens_per_radian(self, base: float | None = None) -> torch.Tensor:
        """Return base^(2i/d), fastest first, float32 ``(rotary_dim // 2,)``.

        RoFormer, arXiv:2104.09864, section 3.2.2. The operations and their order are those of
        transformers, so that the plain frequencies are the same bits. Raises ValueError for a base
        that float32 does not hold.
        """
        base = self.base if base is None else base
        if base > torch.finfo(torch.float32).max:
            raise ValueError(f"base must be at most 3.4e38, which float32 holds, got {base:.3g}")
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64).to(torch.float32)
        powers: torch.Tensor = base ** (exponents / self.rotary_dim)
        return powers

    def inv_freq(self, base: float | None = None) -> torch.Tensor:
        """Return base^(-2i/d), radians per token, fastest first, float32 ``(rotary_dim // 2,)``."""
        return 1.0 / self.tokens_per_radian(base)

    def turns(self) -> torch.Tensor:
        """Return the full turns each channel pair makes in the trained window, float32."""
        return self.trained_length * self.inv_freq() / (2 * math.pi)


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The result of a method: one angular frequency per channel pair, and a factor.

    ``inv_freq`` is float32 ``(rotary_dim // 2,)``, radians per token, fastest first;
    ``attention_factor`` multiplies cos and sin, so attention logits by its square. Raises
    ValueError for anything that cannot be a rotary embedding.
    """

    inv_freq: torch.Tensor
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.inv_freq.dtype != torch.float32 or self.inv_freq.dim() != 1:
            kind = f"{self.inv_freq.dtype} {tuple(self.inv_freq.shape)}"
            raise ValueError(f"inv_freq must be one row of float32, got {kind}")
        if not bool(torch.isfinite(self.inv_freq).all()) or bool((self.inv_freq < 0).any()):
            raise ValueError(
                f"inv_freq must be finite and not negative, got {self.inv_freq.tolist()}"
            )
        if not (math.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise ValueError(f"attention_factor must be positive, got {self.attention_factor}")

    @property
    def fingerprint(self) -> str:
        """Return a hash of the numbers; equal numbers are measured once, whatever their names."""
        numbers = self.inv_freq.detach().cpu().contiguous().numpy().tobytes()
        factor = float(self.attention_factor).hex().encode()
        return hashlib.sha256(numbers + factor).hexdigest()[:16]


def factor_or_stretch(factor: float | None, rope: Rope, length: int) -> float:
    """Return the fixed factor, or the stretch of this length where it is unset."""
    if factor is None:
        return rope.stretch(length)
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(f"factor must be 1 or more, got {factor}")
    return float(factor)
