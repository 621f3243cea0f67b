"""Scaling methods against transformers' own functions, on a grid with odd corners."""

from collections.abc import Iterator
from copy import copy
from itertools import product
from random import Random

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropewalk.scaling import dynamic_ntk, llama3, longrope, native, p_rope, pi, yarn
from ropewalk.scaling.types import Frequencies, Rope

ROTARY_DIMS = (16, 20, 128)
BASES = (1e3, 123456.7, 1e7)
WINDOWS = (256, 1000, 131072)
FACTORS = (1.0001, 3.7, 64.0)
CONFIG = LlamaConfig()
METHODS = {
    "linear": pi,
    "dynamic": dynamic_ntk,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}

Theirs = tuple[torch.Tensor, float]


def _theirs(rope: Rope, length: int | torch.Tensor | None = None, share: float = 1.0) -> Theirs:
    config = copy(CONFIG)
    config.head_dim = round(rope.rotary_dim / share)
    config.max_position_embeddings = rope.trained_length
    config.rope_parameters = {
        "rope_theta": rope.base,
        "partial_rotary_factor": share,
        **rope.shipped,
    }
    compute = ROPE_INIT_FUNCTIONS[rope.shipped["rope_type"]]  # this makes the parameters complete
    theirs: Theirs = compute(config, torch.device("cpu"), seq_len=length)
    return theirs


def _same(ours: Frequencies, theirs: Theirs) -> bool:
    inv_freq, attention_factor = theirs
    return torch.equal(ours.inv_freq, inv_freq) and ours.attention_factor == attention_factor


def _ships(kind: str, factor: float, window: int, dim: int, **more: object) -> dict[str, object]:
    """Return what a checkpoint ships; searched factors are two lists of a number per pair."""
    shipped: dict[str, object] = {"rope_type": kind, "factor": factor}
    if kind in ("yarn", "llama3", "longrope"):
        shipped["original_max_position_embeddings"] = window
    if kind == "llama3":
        shipped |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        draw = Random(dim)
        for name, top in (("short_factor", 2.0), ("long_factor", 64.0)):
            shipped[name] = [draw.uniform(1.0, top) for _ in range(dim // 2)]
    return {**shipped, **more}


def _grid(kind: str) -> Iterator[Rope]:
    for dim, base, window, factor in product(ROTARY_DIMS, BASES, WINDOWS, FACTORS):
        yield Rope(dim, base, window, _ships(kind, factor, window, dim))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "windows", "share"),
    [
        *((kind, 1.0, 1.0) for kind in METHODS),
        *((kind, windows, 1.0) for kind in ("dynamic", "longrope") for windows in (1.01, 7.3)),
        *((kind, 8.0, 0.25) for kind in METHODS),  # of a head a share is rotated
    ],
)
def test_a_method_has_the_bits_of_transformers(kind, windows, share):
    """On a fresh model and with the length an int; native reads the same from what is shipped."""
    for rope in _grid(kind):
        length = int(windows * rope.trained_length)
        theirs = _theirs(rope, length, share)
        options = {} if kind == "longrope" else {"factor": rope.shipped["factor"]}
        assert _same(METHODS[kind].frequencies(rope, length, **options), theirs), rope
        assert _same(native.frequencies(rope, length), theirs), rope


def test_dynamic_inside_a_model():
    """A model gives its length as a tensor, in float32: then dynamic NTK agrees to 4e-6."""
    for rope in _grid("dynamic"):
        length = 7 * rope.trained_length
        inv_freq, _ = _theirs(rope, torch.tensor(length))
        ours = native.frequencies(rope, length).inv_freq
        torch.testing.assert_close(ours, inv_freq, rtol=4e-6, atol=0)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("yarn", {"truncate": False}),
        ("yarn", {"beta_fast": 4, "beta_slow": 2.5}),
        ("yarn", {"beta_fast": 2.001, "beta_slow": 2.0, "truncate": False}),
        ("yarn", {"beta_fast": None, "beta_slow": 0}),
        ("yarn", {"beta_fast": 100000.0, "beta_slow": 50000.0}),
        ("yarn", {"attention_factor": 1.25}),
        ("yarn", {"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.5}),
        ("yarn", {"mscale": 0.707, "mscale_all_dim": 1.0}),
        ("yarn", {"mscale": 1.0, "mscale_all_dim": 0}),
        ("yarn", {"mscale_all_dim": 1.0}),
        ("llama3", {"low_freq_factor": 0.5, "high_freq_factor": 16}),
        ("longrope", {"attention_factor": 1.25}),
        ("longrope", {"factor": 0.5}),  # a factor of 1 or less gives an attention factor of 1
        ("longrope", {"factor": 1}),
    ],
    ids=str,
)
def test_every_shipped_option_is_read_as_transformers_reads_it(kind, more):
    for dim, base, window in product((16, 128), (1e3, 5e5), (256, 4096)):
        rope = Rope(dim, base, window, {**_ships(kind, 8.0, window, dim), **more})
        for length in (window, 2 * window):
            assert _same(native.frequencies(rope, length), _theirs(rope, length)), rope


@pytest.mark.parametrize("window", [1, 6, 7, 40])
def test_yarn_in_a_tiny_window(window):
    """Where no channel turns often enough the ramp is empty or reversed, as in transformers."""
    for dim, base, truncate in product((16, 128), (2.0, 1e3), (True, False)):
        rope = Rope(dim, base, window, _ships("yarn", 8.0, window, dim, truncate=truncate))
        assert _same(native.frequencies(rope, 1), _theirs(rope)), rope


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_factor_one_is_within_one_rounding(kind):
    """At factor 1 native is exactly plain, and at most one float32 step from transformers."""
    differ = 0
    for dim, base, window in product(ROTARY_DIMS, BASES, WINDOWS):
        rope = Rope(dim, base, window, _ships(kind, 1.0, window, dim))
        inv_freq, attention_factor = _theirs(rope)
        ours = native.frequencies(rope, 1)
        steps = ours.inv_freq.view(torch.int32) - inv_freq.view(torch.int32)
        assert int(steps.abs().max()) <= 1, rope
        assert torch.equal(ours.inv_freq, rope.inv_freq())
        assert ours.attention_factor == attention_factor == 1.0
        differ += int((steps != 0).any())
    assert differ > 0


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_longrope_as_phi_ships_it(share):
    """Phi keeps its window beside the lists and ships no factor: it is the ratio of the windows."""
    heads, window, most = 4, 4096, 131072
    dim = round(128 * share)
    lists = _ships("longrope", most / window, window, dim)
    del lists["factor"], lists["original_max_position_embeddings"]
    config = Phi3Config(
        hidden_size=128 * heads, num_attention_heads=heads, max_position_embeddings=most,
        original_max_position_embeddings=window, partial_rotary_factor=share,
        rope_parameters={**lists, "rope_theta": 10000.0},
    )  # fmt: skip
    rope = Rope(dim, 10000.0, window, {**config.rope_parameters, "factor": most / window})
    for length in (1, window, window + 1, most):
        theirs = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=length)
        assert _same(native.frequencies(rope, length), theirs), length


@pytest.mark.parametrize("p", [0.01, 0.25, 0.3, 0.75, 0.99, 1.0])
def test_proportional(p):
    """p-RoPE is transformers' proportional type to 2.4e-7, the channels at rest exactly.

    There powers are taken of the kept channels alone, and torch rounds a shorter row otherwise.
    """
    for dim, base in product(ROTARY_DIMS, BASES):
        parameters = {"rope_type": "proportional", "rope_theta": base, "partial_rotary_factor": p}
        config = LlamaConfig(head_dim=dim, rope_parameters=parameters)
        inv_freq, attention = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
        ours = p_rope.frequencies(Rope(dim, base, 4096), 1, p=p)
        torch.testing.assert_close(ours.inv_freq, inv_freq, rtol=2.4e-7, atol=0)
        assert torch.equal(ours.inv_freq == 0, inv_freq == 0)
        assert ours.attention_factor == attention
