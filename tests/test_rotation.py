"""The rotation of a patched model's own queries and keys: norms kept, differences alone counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface

from harness.patching.config import rope_of
from harness.patching.patch import patched
from scaling import none, pi, yarn
from scaling.types import Frequencies, Rope
from tests.families import build, each, tiny

Pair = tuple[torch.Tensor, torch.Tensor]
Heads = Callable[[int, int], Pair]

FARTHEST = 1_000_000
POSITIONS = st.integers(0, FARTHEST)
# How cos and sin meet the channels: halves, interleaved pairs, a share of either, half-size cos.
LAYOUTS = {
    "llama": "halves, all channels",
    "phi3": "halves, all channels, queries and keys of one projection",
    "gpt_neox": "halves, a quarter of the channels",
    "stablelm": "halves, a quarter of the channels, grouped",
    "cohere": "interleaved pairs, all channels",
    "glm": "interleaved pairs, half of the channels",
    "gpt_oss": "halves, cos and sin of half the size",
    "deepseek_v3": "the last channels of a head",
}
METHODS: dict[str, Callable[[Rope], Frequencies]] = {
    "none": lambda rope: none.frequencies(rope, FARTHEST),
    "pi": lambda rope: pi.frequencies(rope, FARTHEST, factor=3.7),
    "yarn": lambda rope: yarn.frequencies(rope, FARTHEST, factor=16.0),
}
EPSILON = 2.0**-24  # of float32: the largest relative error of one rounding
ROUNDINGS = 24 * EPSILON  # cos, sin, two products and a sum a channel, then sums over a head


HALVING = Frequencies(2.0 ** -torch.arange(8, dtype=torch.float32))


@contextmanager
def heads(family: str, method: Callable[[Rope], Frequencies]) -> Iterator[Heads]:
    """Yield what gives the first layer's query at one position and its key at another, float32.

    They are taken where the model hands them to its attention: after its own rotation, inside the
    patch. Two different tokens stand at the two positions, the same two in every call.
    """
    caught: list[Pair] = []

    def catch(module: Any, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> Any:
        caught.append((query, key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)))
        width = getattr(module, "v_head_dim", query.shape[-1])
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], width), None

    @torch.inference_mode()
    def at(first: int, second: int) -> Pair:
        caught.clear()
        tokens, positions = torch.tensor([[5, 77]]), torch.tensor([[first, second]])
        model(input_ids=tokens, position_ids=positions, use_cache=False)
        query, key = caught[0]
        assert query.dtype == key.dtype == torch.float32
        return query[0, :, 0], key[0, :, 1]

    AttentionInterface.register("catch_heads", catch)
    model = build(tiny(family))
    with patched(model, method(rope_of(model.config))):
        model.set_attn_implementation("catch_heads")  # after the patch has looked at real output
        yield at


def score(pair: Pair) -> torch.Tensor:
    """Return query times key of each head, in units of their norms: from -1 to 1."""
    query, key = (part.double() for part in pair)
    return (query * key).sum(-1) / (query.norm(dim=-1) * key.norm(dim=-1))


def angle_error(frequencies: Frequencies, *positions: int) -> float:
    """Return by how many radians float32 angles at these positions are off in sum, at most.

    An angle is position * frequency, rounded once to float32: by up to half the distance of two
    neighbouring numbers of its size, most for the fastest channel pair. At a million tokens and
    one radian a token that is 2^(19 - 24) = 1/32 radian. It is the model's own rounding, with and
    without a patch: transformers makes its angles so.
    """
    angles = (position * float(frequencies.inv_freq.max()) for position in positions if position)
    return sum(2.0 ** (math.floor(math.log2(angle)) - 24) for angle in angles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [*((family, "yarn") for family in LAYOUTS), ("llama", "none"), ("llama", "pi")],
)
def test_a_rotation_keeps_norms_and_the_score_of_a_difference(family: str, method: str) -> None:
    """Norms are those of position 0, and query times key is the same wherever the two stand.

    The latter within what float32 angles allow: one off by e moves a pair's share of the score by
    at most e times its norms, so the whole score, in units of the norms, by at most the sum of the
    errors at the four positions.
    """
    frequencies = METHODS[method](rope_of(tiny(family)))
    with heads(family, METHODS[method]) as at:
        start = [part.norm(dim=-1) for part in at(0, 0)]

        @settings(max_examples=6)
        @given(first=POSITIONS, second=POSITIONS, shift=POSITIONS)
        def hold(first: int, second: int, shift: int) -> None:
            shift = min(shift, FARTHEST - max(first, second))
            there = (first + shift, second + shift)
            allowed = ROUNDINGS + angle_error(frequencies, first, second, *there)
            here, moved = at(first, second), at(*there)
            for part, norm in zip((*here, *moved), (*start, *start), strict=True):
                torch.testing.assert_close(part.norm(dim=-1), norm, rtol=ROUNDINGS, atol=0)
            assert float((score(here) - score(moved)).abs().max()) <= allowed

        hold()


@pytest.mark.parametrize("family", each(LAYOUTS, "llama", "cohere"))
def test_where_angles_are_exact_a_score_is_too(family: str) -> None:
    """With frequencies 1, 1/2, 1/4, … no angle is rounded, and a million tokens out nothing is.

    A position below 2^24 times a power of two is a float32 number; what is left is the rounding of
    cosine, sine, products and sums.
    """
    with heads(family, lambda rope: Frequencies(HALVING.inv_freq[: rope.rotary_dim // 2])) as at:

        @settings(max_examples=5)
        @given(first=POSITIONS, second=POSITIONS, shift=POSITIONS)
        def hold(first: int, second: int, shift: int) -> None:
            shift = min(shift, FARTHEST - max(first, second))
            found, moved = score(at(first, second)), score(at(first + shift, second + shift))
            assert float((found - moved).abs().max()) <= ROUNDINGS

        hold()


@pytest.mark.parametrize("family", each(LAYOUTS, "llama", "cohere"))
def test_another_difference_is_another_score(family: str) -> None:
    """The scores compared above are not the same for every difference: a rotation takes place."""
    with heads(family, METHODS["none"]) as at:
        here, near, far = (score(at(1000 + gap, 1000)) for gap in (0, 1, 7))
    assert float((near - here).abs().max()) > 1e-2
    assert float((far - near).abs().max()) > 1e-2
