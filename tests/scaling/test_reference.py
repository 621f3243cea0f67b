"""Scaling methods against transformers' own functions, on a grid with odd corners."""

from collections.abc import Iterator
from copy import copy
from itertools import product
from random import Random

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from scaling import dynamic_ntk, llama3, longrope, native, p_rope, pi, yarn
from scaling.types import Frequencies, Rope

ROTARY_DIMS = (16, 20, 128)
BASES = (1e3, 123456.7, 1e7)
WINDOWS = (256, 1000, 131072)
FACTORS = (1.0001, 3.7, 64.0)
CONFIG = LlamaConfig()
LLAMA3_BOUNDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}

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


def _ships(kind: str, factor: float, window: int, **more: object) -> dict[str, object]:
    scaled = kind in ("yarn", "llama3", "longrope")
    where = {"original_max_position_embeddings": window} if scaled else {}
    return {"rope_type": kind, "factor": factor, **where, **more}


def _grid(kind: str, **more: object) -> Iterator[Rope]:
    for dim, base, window, factor in product(ROTARY_DIMS, BASES, WINDOWS, FACTORS):
        yield Rope(dim, base, window, _ships(kind, factor, window, **more))


def test_linear_is_pi():
    """Position interpolation has the bits of transformers' linear type."""
    for rope in _grid("linear"):
        theirs = _theirs(rope)
        assert _same(pi.frequencies(rope, 1, factor=_factor(rope)), theirs), rope
        assert _same(native.frequencies(rope, 1), theirs), rope


@pytest.mark.slow
@pytest.mark.parametrize("windows", [1.0, 1.01, 7.3])
def test_dynamic(windows):
    """Dynamic NTK has the bits of transformers' dynamic type on a fresh model, length an int."""
    for rope in _grid("dynamic"):
        length = int(windows * rope.trained_length)
        theirs = _theirs(rope, length)
        assert _same(dynamic_ntk.frequencies(rope, length, factor=_factor(rope)), theirs), rope
        assert _same(native.frequencies(rope, length), theirs), rope


def test_dynamic_inside_a_model():
    """A model gives its length as a tensor, in float32: then dynamic NTK agrees to 4e-6."""
    for rope in _grid("dynamic"):
        length = 7 * rope.trained_length
        inv_freq, _ = _theirs(rope, torch.tensor(length))
        ours = native.frequencies(rope, length).inv_freq
        torch.testing.assert_close(ours, inv_freq, rtol=4e-6, atol=0)


@pytest.mark.slow
def test_yarn():
    """YaRN has the bits of transformers' yarn type, attention factor included."""
    for rope in _grid("yarn"):
        theirs = _theirs(rope)
        assert _same(yarn.frequencies(rope, 1, factor=_factor(rope)), theirs), rope
        assert _same(native.frequencies(rope, 1), theirs), rope


@pytest.mark.parametrize(
    "more",
    [
        {"truncate": False},
        {"beta_fast": 4, "beta_slow": 2.5},
        {"beta_fast": 2.001, "beta_slow": 2.0, "truncate": False},
        {"beta_fast": None, "beta_slow": 0},
        {"beta_fast": 100000.0, "beta_slow": 50000.0},
        {"attention_factor": 1.25},
        {"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 0.707, "mscale_all_dim": 1.0},
        {"mscale": 1.0, "mscale_all_dim": 0},
        {"mscale_all_dim": 1.0},
    ],
    ids=str,
)
def test_yarn_with_options(more):
    """Every option a checkpoint may ship is read as transformers reads it, bit for bit."""
    for dim, base, window in product((16, 128), (1e3, 5e5), (256, 4096)):
        rope = Rope(dim, base, window, _ships("yarn", 8.0, window, **more))
        assert _same(native.frequencies(rope, 1), _theirs(rope)), rope


@pytest.mark.parametrize("window", [1, 6, 7, 40])
def test_yarn_in_a_tiny_window(window):
    """Where no channel turns often enough the ramp is empty or reversed, as in transformers."""
    for dim, base, truncate in product((16, 128), (2.0, 1e3), (True, False)):
        rope = Rope(dim, base, window, _ships("yarn", 8.0, window, truncate=truncate))
        assert _same(native.frequencies(rope, 1), _theirs(rope)), rope


@pytest.mark.slow
def test_llama3():
    """Llama 3's scaling has the bits of transformers' llama3 type."""
    for rope in _grid("llama3", **LLAMA3_BOUNDS):
        theirs = _theirs(rope)
        assert _same(llama3.frequencies(rope, 1, factor=_factor(rope)), theirs), rope
        assert _same(native.frequencies(rope, 1), theirs), rope


def test_llama3_with_other_bounds():
    """Other bounds of the mix are read as transformers reads them, bit for bit."""
    for dim, base, window in product(ROTARY_DIMS, BASES, WINDOWS):
        shipped = _ships("llama3", 32, window, low_freq_factor=0.5, high_freq_factor=16)
        rope = Rope(dim, base, window, shipped)
        assert _same(native.frequencies(rope, 1), _theirs(rope)), rope


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_factor_one_is_within_one_rounding(kind):
    """At factor 1 native is exactly plain, and at most one float32 step from transformers."""
    differ = 0
    for dim, base, window in product(ROTARY_DIMS, BASES, WINDOWS):
        more = LLAMA3_BOUNDS if kind == "llama3" else {}
        rope = Rope(dim, base, window, _ships(kind, 1.0, window, **more))
        inv_freq, attention_factor = _theirs(rope)
        ours = native.frequencies(rope, 1)
        steps = ours.inv_freq.view(torch.int32) - inv_freq.view(torch.int32)
        assert int(steps.abs().max()) <= 1, rope
        assert torch.equal(ours.inv_freq, rope.inv_freq())
        assert ours.attention_factor == attention_factor == 1.0
        differ += int((steps != 0).any())
    assert differ > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3", "longrope"])
def test_partial_rotary(kind):
    """Where only a share of a head is rotated, the rotated channels count, bit for bit."""
    for dim, share in ((16, 0.25), (32, 0.5), (48, 0.75), (96, 0.75), (128, 0.5), (16, 0.0625)):
        more = {"llama3": LLAMA3_BOUNDS, "longrope": _lists(dim)}.get(kind, {})
        for base, window, factor in product((1e3, 5e5, 1e7), (256, 131072), (1.5, 64.0)):
            rope = Rope(dim, base, window, _ships(kind, factor, window, **more))
            for length in (window, 8 * window):
                ours = native.frequencies(rope, length)
                assert _same(ours, _theirs(rope, length, share)), rope


def _lists(rotary_dim: int) -> dict[str, object]:
    """Return searched factors as a checkpoint ships them: two lists of a number per pair."""
    draw = Random(rotary_dim)
    return {
        name: [draw.uniform(1.0, top) for _ in range(rotary_dim // 2)]
        for name, top in (("short_factor", 2.0), ("long_factor", 64.0))
    }


@pytest.mark.slow
@pytest.mark.parametrize("windows", [1.0, 1.01, 7.3])
def test_longrope(windows):
    """LongRoPE has the bits of transformers' longrope type, short list, long list and factor."""
    for dim, base, window, factor in product(ROTARY_DIMS, BASES, WINDOWS, FACTORS):
        rope = Rope(dim, base, window, _ships("longrope", factor, window, **_lists(dim)))
        length = int(windows * window)
        theirs = _theirs(rope, length)
        assert _same(longrope.frequencies(rope, length), theirs), rope
        assert _same(native.frequencies(rope, length), theirs), rope


@pytest.mark.parametrize("more", [{"attention_factor": 1.25}, {"factor": 0.5}, {"factor": 1}])
def test_longrope_attention_factor(more):
    """A shipped attention factor is taken as it is, and a factor of 1 or less gives 1."""
    for dim, window in product((16, 128), (256, 4096)):
        shipped = {**_ships("longrope", 8.0, window, **_lists(dim)), **more}
        rope = Rope(dim, 10000.0, window, shipped)
        for length in (window, 2 * window):
            assert _same(native.frequencies(rope, length), _theirs(rope, length)), rope


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_longrope_as_phi_ships_it(share):
    """Phi keeps its window beside the lists and ships no factor: it is the ratio of the windows."""
    heads, window, most = 4, 4096, 131072
    dim = round(128 * share)
    lists = {"rope_type": "longrope", "rope_theta": 10000.0, **_lists(dim)}
    config = Phi3Config(
        hidden_size=128 * heads,
        num_attention_heads=heads,
        max_position_embeddings=most,
        original_max_position_embeddings=window,
        partial_rotary_factor=share,
        rope_parameters=lists,
    )
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


def _factor(rope: Rope) -> float:
    factor = rope.shipped["factor"]
    assert isinstance(factor, int | float)
    return factor
