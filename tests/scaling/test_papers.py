"""Scaling methods against numbers worked by hand from the papers."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk.scaling import (
    abf,
    cope,
    critical_band,
    critical_ntk,
    dynamic_ntk,
    giraffe_power,
    giraffe_truncated,
    jet_long,
    longrope,
    mr_rope,
    none,
    ntk,
    ntk_by_parts,
    ntk_by_parts_code,
    ntk_mixed,
    p_rope,
    pi,
    resonance,
    yarn,
)
from ropewalk.scaling.types import Bands, Frequencies, Rope

LLAMA2 = Rope(128, 10000.0, 4096)
LLAMA3 = Rope(128, 500000.0, 8192)
TINY = Rope(4, 10000.0, 64)  # its two plain frequencies are 1 and 0.01


def _same(one: Frequencies, other: Frequencies) -> bool:
    return one.fingerprint == other.fingerprint


# One channel of Llama-2 (or another rope) by a method, worked by hand.
BY_HAND: list[tuple[Frequencies, int, float]] = [
    # by parts: theta = 10000^(-64/128) = 0.01; wavelength = 2 pi / 0.01 = 628.31853
    # r = 4096 / 628.31853 = 6.5189865; gamma = (6.5189865 - 1) / 31 = 0.17803182
    # theta * ((1 - gamma) / 16 + gamma) = 0.01 * (0.05137301 + 0.17803182)
    (ntk_by_parts.frequencies(LLAMA2, 65536), 32, 0.0022940483),
    # by parts of the code. Channel of r turns: 45.0267 - 6.948712 ln r.
    # 16, 2: 25.761, 40.210, outwards 25 and 41; 1.25, 0.75: 43.476, 47.026, outwards 43 and 48.
    # 35: theta = 10^-2.1875 = 0.0064938163; ntk: / 16^(35/63) = 16^(5/9) = 4.6661165, 0.0013917003
    # (41 - 35) / 16 = 0.375: 0.625 * 0.0013917003 + 0.375 * 0.0064938163
    (ntk_by_parts_code.frequencies(LLAMA2, 1, factor=16.0), 35, 0.0033049938),
    # 45, between NTK-aware and divided: theta = 10^-2.8125 = 0.0015399265, / 16 = 9.6245408e-5
    # ntk: / 16^(45/63) = 16^(5/7) = 7.2457893, 0.00021252709; (48 - 45) / 5 = 0.6
    # 0.4 * 9.6245408e-5 + 0.6 * 0.00021252709
    (ntk_by_parts_code.frequencies(LLAMA2, 1, factor=16.0), 45, 0.00016601442),
    # resonance: wavelengths of 6.28 and 628.32 tokens become 6 and 628; on pi at 4, 25.13 is 25
    (resonance.frequencies(LLAMA2, 1), 0, 2 * math.pi / 6),
    (resonance.frequencies(LLAMA2, 1), 32, 2 * math.pi / 628),
    (resonance.frequencies(LLAMA2, 16384, on=pi.frequencies), 0, 2 * math.pi / 25),
    # Giraffe's power 1/2: 1 - 48 / 64 = 1/4, its root 1/2; 10000^(-96/128) = 0.001
    (giraffe_power.frequencies(LLAMA2, 1), 48, 0.0005),
    # mixed: share = (16 / 64)^0.75 = 0.35355339; 16^share = exp(2.7725887 * 0.35355339) = 2.6651441
    # theta = 10000^(-30/128) = 10^-0.9375 = 0.11547820; / 2.6651441
    (ntk_mixed.frequencies(LLAMA2, 65536), 15, 0.043329063),
    # at exponent 1 half of the channels share half of the factor's logarithm: 4 of 16
    (ntk_mixed.frequencies(LLAMA2, 1, factor=16.0, exponent=1.0), 31, 10000 ** (-62 / 128) / 4),
    # MrRoPE, channel 33 is 13 of 26 steps down: theta = 10^-2.0625 = 0.0086596432; / 16^(13/26) = 4
    (mr_rope.frequencies(LLAMA2, 65536, kind="uni"), 33, 0.0021649108),
    # pro: 13 * 14 / (26 * 27) = 0.25925926; 16^0.25925926 = exp(0.7188193) = 2.052009
    (mr_rope.frequencies(LLAMA2, 65536), 33, 0.0042200806),
    # the slowest channels of the NTK-aware methods: divided by the factor
    (ntk.frequencies(LLAMA2, 1, factor=16.0), -1, 10000 ** (-126 / 128) / 16),
    (ntk_mixed.frequencies(LLAMA2, 65536), -1, 10000 ** (-126 / 128) / 16),
]


@pytest.mark.parametrize(("frequencies", "channel", "value"), BY_HAND)
def test_a_channel_by_hand(frequencies, channel, value):
    assert frequencies.inv_freq[channel].item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ntk.frequencies(LLAMA2, 100, base=500000.0), none.frequencies(LLAMA3, 100)),
        *((abf.frequencies(LLAMA2, n), none.frequencies(LLAMA3, n)) for n in (100, 65536)),
        *(
            (dynamic_ntk.frequencies(LLAMA2, n), ntk.frequencies(LLAMA2, n))
            for n in (100, 4096, 4097, 5000, 32768, 1_000_000)
        ),
        # At four windows factors 1, 2, 4 scale by factor * 4 - (factor - 1) = 4, 7, 13.
        *(
            (
                dynamic_ntk.frequencies(LLAMA2, 16384, factor=factor),
                ntk.frequencies(LLAMA2, 1, factor=scale),
            )
            for factor, scale in ((1.0, 4.0), (2.0, 7.0), (4.0, 13.0))
        ),
        # NTK-by-parts is YaRN with the ramp of the paper and an attention factor of 1.
        (
            ntk_by_parts.frequencies(LLAMA2, 65536, alpha=2.0, beta=16.0),
            yarn.frequencies(
                LLAMA2, 65536, ramp="paper", beta_slow=2.0, beta_fast=16.0, attention_factor=1.0
            ),
        ),
        (Frequencies(LLAMA2.inv_freq() / 4), pi.frequencies(LLAMA2, 16384)),
        (giraffe_power.frequencies(LLAMA2, 1, power=0.0), none.frequencies(LLAMA2, 1)),
        (ntk_mixed.frequencies(LLAMA2, 1, factor=1.0), none.frequencies(LLAMA2, 1)),
        (
            giraffe_truncated.frequencies(LLAMA2, 1, cutoff=512),
            giraffe_truncated.frequencies(Rope(128, 10000.0, 512), 1),
        ),
        (p_rope.frequencies(LLAMA2, 1, p=1.0), none.frequencies(LLAMA2, 1)),
    ],
)
def test_two_settings_are_one(one, other):
    assert _same(one, other)


def test_attention_factors_by_hand():
    """0.1 ln 16 + 1 = 1.2772589 for both ramps and MrRoPE; a ratio from two mscale values."""
    by_ramp = [yarn.frequencies(LLAMA2, 65536, ramp=ramp) for ramp in ("code", "paper")]
    by_kind = [mr_rope.frequencies(LLAMA2, 65536, kind=kind) for kind in ("uni", "pro")]
    for one in (*by_ramp, *by_kind):
        assert one.attention_factor == pytest.approx(1.2772589, rel=1e-7)
    # ln 40 = 3.6888795; 0.1 * 0.707 * 3.6888795 + 1 = 1.2608038
    got = yarn.frequencies(LLAMA2, 1, factor=40.0, mscale=1.0, mscale_all_dim=0.707)
    assert got.attention_factor == pytest.approx(1.3688879 / 1.2608038, rel=1e-7)
    equal = yarn.frequencies(LLAMA2, 1, factor=40.0, mscale=0.707, mscale_all_dim=0.707)
    assert equal.attention_factor == 1.0
    for length in (100, 65536):  # a given one holds everywhere
        assert yarn.frequencies(LLAMA2, length, attention_factor=1.5).attention_factor == 1.5


def test_resonance_stands_on_another_method():
    """Its attention factor stays, and what is no wavelength is kept."""
    scaled = resonance.frequencies(LLAMA2, 65536, on=yarn.frequencies)
    assert scaled.attention_factor == yarn.frequencies(LLAMA2, 65536).attention_factor
    assert not bool(resonance.frequencies(LLAMA2, 1, on=p_rope.frequencies).inv_freq[48:].any())


def test_mr_rope_where_a_side_is_missing():
    """The fastest channel is kept in any window; steps may lead past the last channel."""
    fast, slow, between = Rope(8, 2.0, 4096), Rope(8, 2.0, 4), Rope(8, 2.0, 64)
    plain = fast.inv_freq()
    assert torch.equal(mr_rope.frequencies(fast, 1, factor=16.0).inv_freq, plain)
    got = mr_rope.frequencies(slow, 1, factor=16.0).inv_freq
    assert (plain / got).tolist() == [1.0, 16.0, 16.0, 16.0]
    # 10.2 turns and 1 turn are at channels 0 and 14, which the code holds to rotary_dim - 1 = 7
    got = mr_rope.frequencies(between, 1, factor=128.0, kind="uni").inv_freq
    assert (plain / got).tolist() == pytest.approx([1.0, 2.0, 4.0, 8.0], rel=1e-6)


def _table(folder: Path, **more: object) -> str:
    """Write a factor file for the tiny geometry and return its path."""
    path = folder / "factors.json"
    lists = {"short_factor": [1.0, 2], "long_factor": [2, 8.0]}
    path.write_text(json.dumps({**lists, **more}), encoding="utf-8")
    return str(path)


# ln 4 / ln 64 = 1/3, sqrt(4/3) = 1.1547005; ln 16 / ln 64 = 2/3, sqrt(5/3) = 1.2909944
@pytest.mark.parametrize(("table", "length", "options", "wanted"), [
    ({}, 64, {}, 1.0), ({}, 256, {}, 1.1547005), ({}, 1024, {}, 1.2909944),
    ({}, 1, {"factor": 16.0}, 1.2909944), ({}, 256, {"factor": 16.0}, 1.2909944),
    ({"factor": 4.0}, 1, {}, 1.1547005), ({"factor": 4.0}, 1, {"factor": 16.0}, 1.2909944),
    ({"factor": 4.0, "attention_factor": 1.5}, 1, {"factor": 16.0}, 1.5),
])  # fmt: skip
def test_longrope_attention_factor_by_hand(tmp_path, table, length, options, wanted):
    """It is sqrt(1 + ln s / ln L0): of the user's factor, the table's, or the stretch."""
    got = longrope.frequencies(TINY, length, factors=_table(tmp_path, **table), **options)
    assert got.attention_factor == pytest.approx(wanted, rel=1e-7)


def test_a_factor_file_replaces_what_is_shipped(tmp_path):
    """With a file nothing of the shipped table is read, not even its factor."""
    shipped = {"factor": 99.0, "short_factor": [9, 9], "long_factor": [9, 9]}
    factors = _table(tmp_path)
    got = longrope.frequencies(Rope(4, 10000.0, 64, shipped), 256, factors=factors)
    assert _same(got, longrope.frequencies(TINY, 256, factors=factors))


PHI3 = Rope(96, 10_000.0, 2048)
ROPE = Rope(16, 10_000.0, 48)


@pytest.mark.parametrize(("rope", "first"), [(LLAMA3, 35), (PHI3, 31)])
def test_the_critical_channel_is_that_of_the_paper(rope, first):
    """LongRoPE2's theoretical critical dimension, 35 for Llama 3 and 31 for Phi-3-mini: from it on
    channels are slowed by the factor or more, before it by less (arXiv:2502.20082, figure 4).
    """
    slowed = rope.inv_freq() / critical_ntk.frequencies(rope, 1, factor=16.0).inv_freq
    assert bool((slowed[first:] >= 16).all())
    assert bool((slowed[:first] < 16).all())
    exactly = critical_ntk.frequencies(rope, 1, factor=16.0, critical=30).inv_freq[30]
    assert float(rope.inv_freq()[30] / exactly) == pytest.approx(16, rel=1e-5)


def test_yarn_divides_from_the_critical_channel_on():
    """Ramp of the code: channel 30 is the first that is divided in full, 18 the last that is kept.

    18 is Llama 3's last channel of 32 turns or more; between them the share falls by a 12th.
    """
    got = yarn.frequencies(LLAMA3, 1, factor=8.0, critical=30).inv_freq.double().numpy()
    theta = LLAMA3.inv_freq().double().numpy()
    kept = np.clip((30 - np.arange(64)) / 12, 0, 1)
    np.testing.assert_allclose(got, theta * (kept + (1 - kept) / 8), rtol=1e-6)


def test_cope_is_its_authors_mask():
    """hrlics/CoPE: of 64 frequencies the last 20 times 0.5 (1 + cos(linspace(0, pi, 20)))."""
    rope = Rope(128, 1e7, 8192)
    theta, mask = rope.inv_freq().double().numpy(), np.ones(64)
    mask[44:] = 0.5 * (1 + np.cos(np.linspace(0, np.pi, 20)))
    soft = cope.frequencies(rope, 1, onset=44).inv_freq.numpy()
    np.testing.assert_allclose(soft, theta * mask, rtol=1e-5, atol=1e-12)
    hard = cope.frequencies(rope, 1, clip="hard", onset=44).inv_freq.numpy()
    np.testing.assert_allclose(hard, theta * (np.arange(64) < 44), rtol=1e-6)


@pytest.mark.parametrize(("rope", "first"), [(LLAMA3, 35), (Rope(64, 1e7, 262_144), 22)])
def test_cope_begins_where_a_wavelength_exceeds_the_window(rope, first):
    """Llama 3: 2 pi 500000^(i/64) > 8192 from 35 on; a head of 64 at base 1e7 and 262144: 22."""
    stopped = cope.frequencies(rope, 1, clip="hard").inv_freq == 0
    assert stopped.tolist() == [i >= first for i in range(rope.rotary_dim // 2)]


def test_cope_stands_on_another_method():
    """The authors use yarn below it beyond 64k: its frequencies and its attention factor."""
    below = yarn.frequencies(LLAMA3, 1, factor=4.0)
    on = partial(yarn.frequencies, factor=4.0)
    got = cope.frequencies(LLAMA3, 1, clip="hard", on=on)
    assert torch.equal(got.inv_freq[:35], below.inv_freq[:35])
    assert got.attention_factor == below.attention_factor


def phases(found: Bands) -> np.ndarray:
    """Return the angle between every query and key, (length, length, pairs), NaN where none is."""
    pairs = len(found.last.inv_freq)
    angles = np.full((found.length, found.length, pairs), np.nan)
    for band in found.bands:
        theta = band.frequencies.inv_freq.double().numpy()
        phase = 0.0 if band.phase is None else band.phase.numpy()
        for row, (first, end) in enumerate(zip(band.first, band.end, strict=True)):
            at = slice(int(first), int(end))
            apart = (band.query[row] - band.key[at]).numpy()
            angles[band.start + row, at] = apart[:, None] * theta + phase
    return angles


def test_jet_long_has_a_fixed_group_as_it_is_served():
    """What a server reads of a short input is cut from the long one; group 1 is the model."""
    served = jet_long.bands(ROPE, 150, window=7)
    for length in (20, 49, 150):
        fixed = jet_long.bands(ROPE, length, window=7, group=4)
        assert fixed.fingerprint == served.upto(length).fingerprint
    alone = jet_long.bands(ROPE, 150, group=1)
    assert alone.fingerprint == none.frequencies(ROPE, 150).fingerprint
    with pytest.raises(ValueError, match="group must be 1 or more, got 0"):
        jet_long.bands(ROPE, 150, group=0)
    with pytest.raises(ValueError, match="leave out on and group"):
        jet_long.bands(ROPE, 150, far="ramped", group=2)


def test_jet_long_goes_on_at_yarns_frequencies():
    """jetlong_freq: the query is turned back by (m - w0) and the key by n times theta ramp (1-1/s).

    As in the authors' code, channel by channel in float64; the logits are scaled by 0.1 ln s + 1.
    """
    length, near, rope = 150, 7, Rope(32, 10_000.0, 96)
    s = (length - near) / (96 - near)
    theta = 10_000.0 ** (-np.arange(16) / 16)

    def channel(turns: float) -> float:
        return 32 * math.log(96 / (turns * 2 * math.pi)) / (2 * math.log(10_000))

    low, high = max(math.floor(channel(32)), 0), min(math.ceil(channel(1)), 15)
    delta = -theta * np.clip((np.arange(16) - low) / (high - low), 0, 1) * (1 - 1 / s)
    m, n = np.meshgrid(np.arange(length), np.arange(length), indexing="ij")
    wanted = (m - n)[..., None] * theta
    far = np.clip(m - near, 0, None)[..., None] * delta - n[..., None] * delta
    wanted += np.where((m - n > near)[..., None], far, 0)
    wanted[m < n] = np.nan
    found = jet_long.bands(rope, length, window=near, far="ramped")
    np.testing.assert_allclose(phases(found), wanted, atol=2e-5)  # 150 times float32's rounding
    assert found.query_scale.tolist() == pytest.approx([0.1 * math.log(s) + 1] * length)


def test_a_critical_band_divides_its_channels_alone():
    """theta_i / s for a <= i < b, worked by hand; unset, from 32 turns on (YaRN's bound)."""
    rope = Rope(8, 10_000.0, 48)
    found = critical_band.frequencies(rope, 96, factor=2.0, start=0.25, end=0.75)
    assert found.inv_freq.tolist() == pytest.approx([1.0, 0.05, 0.005, 0.001])
    rope = Rope(8, 10_000.0, 2048)  # 326, 32.6, 3.3 and 0.3 turns
    found = critical_band.frequencies(rope, 4096)
    assert found.inv_freq.tolist() == pytest.approx([1.0, 0.1, 0.005, 0.0005])
