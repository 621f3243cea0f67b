"""Methods against their papers' equations, a channel at a time in float64, on a grid.

For the methods that transformers does not have; test_reference.py has the others.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch

from ropewalk.scaling import (
    abf,
    critical_ntk,
    dynamic_ntk,
    giraffe_power,
    giraffe_truncated,
    mr_rope,
    none,
    ntk,
    ntk_by_parts,
    ntk_by_parts_code,
    ntk_mixed,
    p_rope,
    resonance,
    yarn,
)
from ropewalk.scaling.types import Frequencies, Rope

ROTARY_DIMS = (16, 20, 128)
BASES = (1e3, 123456.7, 1e7)
WINDOWS = (128, 1000, 131072)
FACTORS = (1.5, 3.7, 64.0)
# Of float32: powers with exponents to 1 lose a few units, those of factors to 64 a few more; near
# an edge of a ramp the turns' own rounding counts, which the ramp's slope makes no larger.
CLOSE = 3e-6

Naive = Callable[[Rope, float], Iterator[float]]


def plain(rope: Rope, base: float | None = None) -> list[float]:
    """Return base^(-2i/d) of every channel pair i."""
    d = rope.rotary_dim
    return [(base or rope.base) ** (-2 * i / d) for i in range(d // 2)]


def turns(rope: Rope, theta: float) -> float:
    return rope.trained_length / (2 * math.pi / theta)


def clip(value: float) -> float:
    return min(1.0, max(0.0, value))


def by_base(rope: Rope, factor: float) -> Iterator[float]:
    """NTK-aware: the base that divides the slowest frequency by exactly the factor."""
    d = rope.rotary_dim
    yield from plain(rope, rope.base * factor ** (d / (d - 2)))


def by_critical_base(rope: Rope, factor: float) -> Iterator[float]:
    """The base by which what turned once in the window turns once in the longer one."""
    once, longer = (math.log(s * rope.trained_length / (2 * math.pi)) for s in (1, factor))
    yield from plain(rope, rope.base ** (longer / once))


def by_critical_channel(rope: Rope, factor: float) -> Iterator[float]:
    """LongRoPE2: theta_c is 1 / (s base^(2c/d)), here of the middle channel."""
    d, c = rope.rotary_dim, rope.rotary_dim // 4
    yield from plain(rope, (factor * rope.base ** (2 * c / d)) ** (d / (2 * c)))


def by_parts_from(channel: int) -> Naive:
    """By parts, where the critical channel, not the one of a turn, is the first in full."""

    def naive(rope: Rope, factor: float) -> Iterator[float]:
        thetas = plain(rope)
        least = turns(rope, thetas[channel])
        for theta in thetas:
            gamma = clip((turns(rope, theta) - least) / (1e6 - least))
            yield (1 - gamma) * theta / factor + gamma * theta

    return naive


def by_parts(rope: Rope, factor: float) -> Iterator[float]:
    """YaRN's definition 2 and equation 13, alpha 1 and beta 32."""
    for theta in plain(rope):
        gamma = clip((turns(rope, theta) - 1) / 31)
        yield (1 - gamma) * theta / factor + gamma * theta


def by_parts_code(rope: Rope, factor: float) -> Iterator[float]:
    """The three kinds of frequency, joined along the index of the channel that makes r turns."""

    def channel(r: float) -> float:
        return rope.rotary_dim * math.log(turns(rope, 1.0) / r) / (2 * math.log(rope.base))

    def ramp(i: int, fast: float, slow: float) -> float:
        first = max(math.floor(channel(fast)), 0)
        last = min(math.ceil(channel(slow)), rope.rotary_dim - 1)
        return clip((i - first) / (last - first)) if first != last else float(i > first)

    pairs = zip(plain(rope), by_base(rope, factor), strict=True)
    for i, (theta, aware) in enumerate(pairs):
        down = ramp(i, 1.25, 0.75)
        slow = down * theta / factor + (1 - down) * aware
        down = ramp(i, 16, 2)
        yield down * slow + (1 - down) * theta


def mixed(rope: Rope, factor: float) -> Iterator[float]:
    """Su's mixed NTK: theta_i e^(-a (i+1)^0.75) with a (d/2)^0.75 = ln factor."""
    a = math.log(factor) / (rope.rotary_dim / 2) ** 0.75
    for i, theta in enumerate(plain(rope)):
        yield theta * math.exp(-a * (i + 1) ** 0.75)


def radix(kind: str) -> Naive:
    """MrRoPE: the factor's share grows channel by channel between 32 turns and 1."""

    def naive(rope: Rope, factor: float) -> Iterator[float]:
        # As many thetas as the head has channels, not pairs: the code looks so far for the slow.
        thetas = [rope.base ** (-2 * i / rope.rotary_dim) for i in range(rope.rotary_dim)]
        fast = [i for i, theta in enumerate(thetas) if turns(rope, theta) > 32]
        slow = [i for i, theta in enumerate(thetas) if turns(rope, theta) < 1]
        first = max(fast, default=0)
        n = min(slow, default=rope.rotary_dim - 1) - first
        shared = 0.0
        for i, theta in enumerate(plain(rope)):
            k = i - first
            if 1 <= k <= n:
                shared += 1 / n if kind == "uni" else 2 * k / (n * (n + 1))
            yield theta / factor**shared

    return naive


SCALED: dict[str, tuple[Callable[[Rope, float], Frequencies], Naive]] = {
    "ntk": (lambda rope, s: ntk.frequencies(rope, 1, factor=s), by_base),
    "dynamic_ntk": (
        lambda rope, s: dynamic_ntk.frequencies(rope, 3 * rope.trained_length, factor=s),
        lambda rope, s: by_base(rope, 3 * s - (s - 1)),
    ),
    "critical_ntk": (
        lambda rope, s: critical_ntk.frequencies(rope, 1, factor=s), by_critical_base,
    ),
    "critical_ntk of a channel": (
        lambda rope, s: critical_ntk.frequencies(
            rope, 1, factor=s, critical=rope.rotary_dim // 4
        ),
        by_critical_channel,
    ),
    "ntk_by_parts of a channel": (
        lambda rope, s: ntk_by_parts.frequencies(rope, 1, factor=s, beta=1e6, critical=5),
        by_parts_from(5),
    ),
    "yarn_paper of a channel": (
        lambda rope, s: yarn.frequencies(
            rope, 1, factor=s, beta_fast=1e6, ramp="paper", critical=5
        ),
        by_parts_from(5),
    ),
    "ntk_by_parts": (lambda rope, s: ntk_by_parts.frequencies(rope, 1, factor=s), by_parts),
    "yarn_paper": (lambda rope, s: yarn.frequencies(rope, 1, factor=s, ramp="paper"), by_parts),
    "ntk_by_parts_code": (
        lambda rope, s: ntk_by_parts_code.frequencies(rope, 1, factor=s), by_parts_code,
    ),
    "ntk_mixed": (lambda rope, s: ntk_mixed.frequencies(rope, 1, factor=s), mixed),
    "mr_rope_uni": (lambda rope, s: mr_rope.frequencies(rope, 1, factor=s, kind="uni"),
                    radix("uni")),
    "mr_rope_pro": (lambda rope, s: mr_rope.frequencies(rope, 1, factor=s), radix("pro")),
}  # fmt: skip


def grid() -> Iterator[Rope]:
    for dim, base, window in product(ROTARY_DIMS, BASES, WINDOWS):
        yield Rope(dim, base, window)


def near(found: Frequencies, wanted: list[float], what: object, rtol: float = CLOSE) -> None:
    """Compare every channel, and say at which geometry."""
    expected = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(
        found.inv_freq.double(), expected, rtol=rtol, atol=0, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", SCALED)
def test_a_method_is_its_papers_equations(method):
    ours, naive = SCALED[method]
    for rope, factor in product(grid(), FACTORS):
        near(ours(rope, factor), list(naive(rope, factor)), (rope, factor))


@pytest.mark.slow
def test_what_has_no_factor_is_its_equations():
    """The plain embedding, another base, a share at rest, a power, on every geometry."""
    for rope in grid():
        thetas, pairs = plain(rope), rope.rotary_dim // 2
        near(none.frequencies(rope, 1), thetas, rope)
        near(abf.frequencies(rope, 1, base=2e6), plain(rope, 2e6), rope)
        kept = math.floor(0.3 * pairs)
        stopped = thetas[:kept] + [0.0] * (pairs - kept)
        near(p_rope.frequencies(rope, 1, p=0.3), stopped, rope)
        powered = [theta * (1 - i / pairs) ** 1.7 for i, theta in enumerate(thetas)]
        near(giraffe_power.frequencies(rope, 1, power=1.7), powered, rope)


def test_giraffe_truncated_is_its_three_pieces():
    """Kept, at one speed, at rest: by the plain frequency against 2 pi over the cutoff."""
    for rope in grid():
        edge = 2 * math.pi / rope.trained_length
        wanted = [
            theta if theta >= edge else edge / 16 if theta >= edge / 8 else 0.0
            for theta in plain(rope)
        ]
        near(giraffe_truncated.frequencies(rope, 1), wanted, rope)


@pytest.mark.slow
def test_resonance_rounds_every_wavelength_of_the_grid():
    """A wavelength is the nearest whole number; past 2^24 tokens float32 has no others."""
    for rope, factor in product(grid(), (1.0, 8.0)):
        length = int(factor) * rope.trained_length
        below = ntk.frequencies(rope, length).inv_freq.double().tolist()
        found = resonance.frequencies(rope, length, on=ntk.frequencies)
        for theta, rounded in zip(below, found.inv_freq.double().tolist(), strict=True):
            wave, whole = 2 * math.pi / theta, 2 * math.pi / rounded
            assert whole == pytest.approx(round(whole), rel=2e-7)
            assert abs(whole - wave) <= 0.5 + 3e-7 * wave, (rope, factor)
