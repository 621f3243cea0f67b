"""What must hold for every scaling method in the folder."""

import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load, names
from ropewalk.scaling import none
from ropewalk.scaling.types import Frequencies, Rope

MODULES = {name: vars(load("method", name).module) for name in names("method")}
METHODS: dict[str, Callable[..., Frequencies]] = {
    name: module["frequencies"] for name, module in MODULES.items() if "frequencies" in module
}
# What these differ in by definition, and why; every other method is held to it.
NOT_PLAIN_INSIDE = {
    "abf": "its base is the same at every length",
    "cope": "its onset is the same at every length",
    "giraffe_power": "its power is the same at every length",
    "giraffe_truncated": "its cutoff is the same at every length",
    "longrope": "its short list holds inside the window",
    "native": "what a checkpoint ships holds inside the window",
    "p_rope": "its share is the same at every length",
    "resonance": "wavelengths are rounded at every length",
}
OTHER_FACTOR = {"dynamic_ntk": "its factor is not the ratio of target to trained length"}
SCALED = tuple(name for name in METHODS if name not in NOT_PLAIN_INSIDE)
FIXABLE = tuple(
    name
    for name in SCALED
    if name not in OTHER_FACTOR and "factor" in inspect.signature(METHODS[name]).parameters
)
SHIPPED: tuple[dict[str, object], ...] = (
    {},
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16, "truncate": False},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
)


@st.composite
def ropes(draw: st.DrawFn) -> Rope:
    """Draw a rotary geometry, odd corners included."""
    return Rope(
        rotary_dim=2 * draw(st.integers(8, 128)),
        base=draw(st.floats(1e3, 1e7)),
        trained_length=draw(st.integers(256, 131072)),
        shipped=draw(st.sampled_from(SHIPPED)),
    )


def _fit(name: str, rope: Rope) -> Rope:
    """Return the geometry, with the searched table that longrope cannot do without."""
    if name != "longrope":
        return rope
    ramp = [1 + index / rope.rotary_dim for index in range(rope.rotary_dim // 2)]
    table = {"short_factor": ramp, "long_factor": [8 * value for value in ramp]}
    return replace(rope, shipped={"rope_type": "longrope", **table})


def _same(one: Frequencies, other: Frequencies) -> bool:
    return one.fingerprint == other.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_built_in_method_passes_what_a_users_is_held_to(name):
    plain = name in SCALED or name == "native"  # this rope ships nothing
    rope = _fit(name, Rope(64, 1e4, 256, layers=4))
    rw.testing.check_method(METHODS[name], rope, [128, 256, 512, 4096], plain_inside=plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALED)
@settings(max_examples=10)
@given(rope=ropes(), share=st.floats(0.0, 1.0))
def test_inside_the_window_all_methods_are_plain(name, rope, share):
    """At stretch 1 the numbers are those of none, bit for bit, so that they are measured once."""
    length = max(1, int(share * rope.trained_length))
    plain = none.frequencies(rope, length)
    assert _same(METHODS[name](rope, length), plain)
    assert _same(METHODS[name](rope, rope.trained_length), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXABLE)
@settings(max_examples=10)
@given(rope=ropes(), windows=st.integers(1, 64), length=st.integers(1, 10**7))
def test_a_fixed_factor_ignores_the_length(name, rope, windows, length):
    """A fixed factor is the unset one where the stretch equals it; 1 leaves every bit as it is."""
    fixed = METHODS[name](rope, length, factor=float(windows))
    assert _same(fixed, METHODS[name](rope, windows * rope.trained_length))
    assert _same(METHODS[name](rope, length, factor=1.0), none.frequencies(rope, length))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("pi:factor=0.5", "factor must be 1 or more, got 0.5"),
        ("ntk:factor=2,base=5e5", "give factor or base, not both"),
        ("ntk_by_parts:alpha=32", "beta must be above alpha"),
        ("yarn:ramp=paper,truncate=false", "truncate=False for code only"),
        ("yarn:mscale=1", "give attention_factor, or mscale and mscale_all_dim"),
        ("p_rope:p=1.01", "p must be from 0 to 1, got 1.01"),
        ("longrope", "give factors=PATH, a JSON file with short_factor and long_factor"),
        ("native", "the shipped low_freq_factor must be a number"),
        ("rerope:window=0", "must be"),
        ("leaky_rerope:window=5000", "set factor"),
        ("self_extend:window=4000", "must be|set "),
        ("dual_chunk:chunk=4000", "must be|set "),
        ("string:shift=4,local=5", "must be"),
        ("lm_infinite:sinks=-1", "must be"),
        ("temperature:floor=0", "must be"),
        ("dynamic_ntk:mode=per_query,block=0", "must be"),
        ("rerope:on=self_extend", "moved positions"),
        ("rerope:on=dynamic_ntk:mode=transformers", "follow the text"),
    ],
)
def test_bad_options_are_refused(method, words):
    rope = Rope(128, 10000.0, 4096, {"rope_type": "llama3", "factor": 8.0})
    with pytest.raises(UserError, match=words):
        resolve(load("method", method), rope, 8192)


SCALES = """
import torch
from ropewalk.scaling import Bands, Frequencies, by_distance

def bands(rope, length, *, scale: float = 2.0):
    whole = Bands(length, (by_distance(length, Frequencies(rope.inv_freq()), 0),))
    return whole.scaled(torch.full((length,), scale, dtype=torch.float64))
"""
OUTSIDE = """
from ropewalk.scaling import Frequencies

def frequencies(rope, length):
    return Frequencies(rope.inv_freq(), logit_scale=2.0)
"""


def test_a_model_without_rotary_takes_every_method_that_scales_queries_alone(tmp_path):
    """A user's own too; one that would turn a rotary model otherwise is refused at any length."""
    alone, found = Rope(0, 1.0, 64), list[str]()
    for name, code in (("scales", SCALES), ("outside", OUTSIDE)):
        (tmp_path / f"{name}.py").write_text(code)
        rotation = resolve(load("method", str(tmp_path / f"{name}.py")), alone, 80)
        assert rotation.as_bands(80).query_scale.tolist() == [2.0] * 80
        found.append(rotation.fingerprint)
    assert found[0] == found[1]
    (tmp_path / "slow.py").write_text(OUTSIDE.replace("(), logit_scale=2.0", "() / 2"))
    for method in (str(tmp_path / "slow.py"), "yarn", "rerope", "lm_infinite", "layerwise"):
        with pytest.raises(UserError, match="no rotary embedding that .* could change"):
            resolve(load("method", method), alone, 32)
