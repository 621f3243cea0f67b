"""Scaling methods against numbers worked by hand from the papers."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from scaling import (
    abf,
    cope,
    critical_ntk,
    dynamic_ntk,
    giraffe_power,
    giraffe_truncated,
    jet_long,
    llama3,
    longrope,
    mr_rope,
    native,
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
from scaling.types import Bands, Frequencies, Rope

LLAMA2 = Rope(128, 10000.0, 4096)
LLAMA3 = Rope(128, 500000.0, 8192)


def _same(one: Frequencies, other: Frequencies) -> bool:
    """Return whether two results are the same bits."""
    return one.fingerprint == other.fingerprint


def test_ntk_interpolates_the_slowest_channel_exactly() -> None:
    """NTK divides the slowest channel by the factor, and leaves the fastest one untouched."""
    got, plain = ntk.frequencies(LLAMA2, 1, factor=16.0).inv_freq, LLAMA2.inv_freq()
    assert got[0] == plain[0] == 1.0
    assert got[-1].item() == pytest.approx(plain[-1].item() / 16, rel=1e-6)


def test_ntk_base_by_hand() -> None:
    """NTK at factor 2 on Llama-2 is the plain embedding of base 10000 * 2^(128/126) = 20221.26."""
    # 128/126 = 1.0158730; 2^1.0158730 = 2 * 2^0.0158730 = 2 * 1.0110631 = 2.0221262
    got = ntk.frequencies(LLAMA2, 8192).inv_freq
    torch.testing.assert_close(got, LLAMA2.inv_freq(20221.262), rtol=1e-6, atol=0)


def test_ntk_takes_a_base_as_it_is() -> None:
    """A given base replaces the model's own at every length, also inside the window."""
    got = ntk.frequencies(LLAMA2, 100, base=500000.0)
    assert _same(got, none.frequencies(LLAMA3, 100))


def test_dynamic_ntk_with_factor_one_is_ntk() -> None:
    """With factor 1 dynamic NTK is NTK at the stretch, bit for bit."""
    for length in (100, 4096, 4097, 5000, 32768, 1_000_000):
        got = dynamic_ntk.frequencies(LLAMA2, length)
        assert _same(got, ntk.frequencies(LLAMA2, length))


@pytest.mark.parametrize(("factor", "scale"), [(1.0, 4.0), (2.0, 7.0), (4.0, 13.0)])
def test_dynamic_ntk_scale_by_hand(factor: float, scale: float) -> None:
    """At four windows factors 1, 2, 4 scale by factor * 4 - (factor - 1) = 4, 7, 13."""
    got = dynamic_ntk.frequencies(LLAMA2, 16384, factor=factor)
    assert _same(got, ntk.frequencies(LLAMA2, 1, factor=scale))


def test_dynamic_ntk_bases_named_in_its_docstring() -> None:
    """The bases of Llama-2 at 8192 and 32768 tokens are 20221 and 82685, as documented."""
    # 8^(128/126) = 8 * 8^(2/126) = 8 * 1.0335578 = 8.2684623
    for length, base in ((8192, 20221.26), (32768, 82684.62)):
        got = dynamic_ntk.frequencies(LLAMA2, length).inv_freq
        torch.testing.assert_close(got, LLAMA2.inv_freq(base), rtol=1e-6, atol=0)


def test_by_parts_keeps_the_fast_and_divides_the_slow() -> None:
    """Above 32 turns a channel is untouched to the bit; below 1 turn it is divided by 16."""
    got, plain = ntk_by_parts.frequencies(LLAMA2, 1, factor=16.0).inv_freq, LLAMA2.inv_freq()
    fast, slow = LLAMA2.turns() > 32, LLAMA2.turns() < 1
    assert (int(fast.sum()), int(slow.sum())) == (21, 18)
    assert torch.equal(got[fast], plain[fast])
    torch.testing.assert_close(got[slow], plain[slow] / 16, rtol=2e-7, atol=0)


def test_yarn_keeps_the_fast_and_divides_the_slow() -> None:
    """The code's ramp rounds outwards: channels 0 to 20 untouched to the bit, from 46 divided."""
    got, plain = yarn.frequencies(LLAMA2, 1, factor=16.0).inv_freq, LLAMA2.inv_freq()
    assert torch.equal(got[:21], plain[:21])
    assert bool((got[21:46] < plain[21:46]).all())
    torch.testing.assert_close(got[46:], plain[46:] / 16, rtol=2e-7, atol=0)


def test_by_parts_middle_channel_by_hand() -> None:
    """Channel 32 of Llama-2 at factor 16 is 0.00229405 radians per token by definition 2."""
    # theta = 10000^(-64/128) = 0.01; wavelength = 2 pi / 0.01 = 628.31853
    # r = 4096 / 628.31853 = 6.5189865; gamma = (6.5189865 - 1) / 31 = 0.17803182
    # theta * ((1 - gamma) / 16 + gamma) = 0.01 * (0.05137301 + 0.17803182) = 0.0022940483
    got = ntk_by_parts.frequencies(LLAMA2, 65536).inv_freq[32].item()
    assert got == pytest.approx(0.0022940483, rel=1e-6)


def test_by_parts_has_no_attention_factor() -> None:
    """NTK-by-parts is YaRN with the ramp of the paper and an attention factor of 1."""
    parts = ntk_by_parts.frequencies(LLAMA2, 65536, alpha=2.0, beta=16.0)
    whole = yarn.frequencies(
        LLAMA2, 65536, ramp="paper", beta_slow=2.0, beta_fast=16.0, attention_factor=1.0
    )
    assert _same(parts, whole)
    assert parts.attention_factor == 1.0


def test_by_parts_of_the_code_in_its_four_regions_by_hand() -> None:
    """Llama-2 at 16: channels to 25 are plain, 41 is NTK-aware, from 48 on divided, 35 mixed."""
    # Channel of r turns: 128 ln(4096 / (2 pi r)) / (2 ln 10000) = 45.0267 - 6.948712 ln r.
    # 16, 2: 25.761, 40.210, outwards 25 and 41; 1.25, 0.75: 43.476, 47.026, outwards 43 and 48.
    got, plain = ntk_by_parts_code.frequencies(LLAMA2, 1, factor=16.0), LLAMA2.inv_freq()
    aware = ntk.frequencies(LLAMA2, 1, factor=16.0).inv_freq
    assert torch.equal(got.inv_freq[:26], plain[:26])
    torch.testing.assert_close(got.inv_freq[41:44], aware[41:44], rtol=2e-7, atol=0)
    torch.testing.assert_close(got.inv_freq[48:], plain[48:] / 16, rtol=2e-7, atol=0)
    # 35: theta = 10^-2.1875 = 0.0064938163; ntk: / 16^(35/63) = 16^(5/9) = 4.6661165, 0.0013917003
    # (41 - 35) / 16 = 0.375: 0.625 * 0.0013917003 + 0.375 * 0.0064938163 = 0.0033049938
    assert got.inv_freq[35].item() == pytest.approx(0.0033049938, rel=1e-6)
    # 45, between NTK-aware and divided: theta = 10^-2.8125 = 0.0015399265, / 16 = 9.6245408e-5
    # ntk: / 16^(45/63) = 16^(5/7) = 7.2457893, 0.00021252709; (48 - 45) / 5 = 0.6
    # 0.4 * 9.6245408e-5 + 0.6 * 0.00021252709 = 0.00016601442
    assert got.inv_freq[45].item() == pytest.approx(0.00016601442, rel=1e-6)
    assert got.attention_factor == 1.0


def test_by_parts_of_paper_and_code_differ_as_documented() -> None:
    """For Llama-2 at 16 the code gives up to 3.18 times the paper's frequencies, at channel 35."""
    # paper, channel 35: r = 4096 * 0.0064938163 / (2 pi) = 4.2333165; gamma = 3.2333165 / 31
    # = 0.10430053; theta * (gamma + (1 - gamma) / 16) = 0.0064938163 * 0.16028175 = 0.0010408402
    # 0.0033049938 / 0.0010408402 = 3.1753134
    paper = ntk_by_parts.frequencies(LLAMA2, 65536).inv_freq
    ratio = ntk_by_parts_code.frequencies(LLAMA2, 65536).inv_freq / paper
    assert int(ratio.argmax()) == 35
    assert ratio.max().item() == pytest.approx(3.1753, abs=1e-4)
    assert ratio.min().item() >= 1 - 1e-6


def test_yarn_middle_channel_by_hand() -> None:
    """Channel 33 of Llama-2 at factor 16 is halfway down the code's ramp: 17/32 of the plain."""
    # 32 turns: 128 ln(4096 / (32 * 2 pi)) / (2 ln 10000) = 128 * 3.0141532 / 18.420681 = 20.944
    # 1 turn:   128 ln(4096 / (2 pi)) / (2 ln 10000) = 128 * 6.4798891 / 18.420681 = 45.027
    # rounded outwards 20 and 46: (33 - 20) / 26 = 1/2; 1/2 + 1/2 / 16 = 17/32 = 0.53125
    # theta = 10000^(-66/128) = 10^-2.0625 = 0.0086596432; * 0.53125 = 0.0046004355
    got = yarn.frequencies(LLAMA2, 65536).inv_freq[33].item()
    assert got == pytest.approx(0.0046004355, rel=1e-6)


def test_yarn_attention_factor_by_hand() -> None:
    """YaRN's attention factor at 16 is 0.1 ln 16 + 1 = 1.2772589, for both ramps."""
    for ramp in ("code", "paper"):
        got = yarn.frequencies(LLAMA2, 65536, ramp=ramp)
        assert got.attention_factor == pytest.approx(1.2772589, rel=1e-7)


def test_yarn_attention_factor_from_mscale() -> None:
    """The two mscale values give a ratio: at 40, 1 over 0.707 is 1.3688879 / 1.2608038."""
    # ln 40 = 3.6888795; 0.1 * 0.707 * 3.6888795 + 1 = 1.2608038
    got = yarn.frequencies(LLAMA2, 1, factor=40.0, mscale=1.0, mscale_all_dim=0.707)
    assert got.attention_factor == pytest.approx(1.3688879 / 1.2608038, rel=1e-7)
    equal = yarn.frequencies(LLAMA2, 1, factor=40.0, mscale=0.707, mscale_all_dim=0.707)
    assert equal.attention_factor == 1.0


def test_a_given_attention_factor_holds_everywhere() -> None:
    """A given attention factor is not changed by the length, not even inside the window."""
    for length in (100, 65536):
        got = yarn.frequencies(LLAMA2, length, attention_factor=1.5)
        assert got.attention_factor == 1.5


def test_the_ramps_of_yarn_differ_as_documented() -> None:
    """For Llama-2 at 16 the code's ramp is up to 3.04 times the paper's, at channel 38."""
    # channel 38: theta = 10^-2.375 = 0.0042169650, r = 4096 theta / (2 pi) = 2.7490338
    # paper: gamma = 1.7490338 / 31 = 0.05642045, kept 0.05642045 + 0.94357955 / 16 = 0.11539417
    # code: (46 - 38) / 26 = 0.30769231, kept 0.30769231 + 0.69230769 / 16 = 0.35096154
    # ratio 0.35096154 / 0.11539417 = 3.0414
    code = yarn.frequencies(LLAMA2, 65536).inv_freq
    paper = yarn.frequencies(LLAMA2, 65536, ramp="paper").inv_freq
    ratio = code / paper
    assert int(ratio.argmax()) == 38
    assert ratio.max().item() == pytest.approx(3.0414, abs=1e-4)


def test_llama3_by_hand() -> None:
    """Llama 3.1 keeps 4 turns and more, divides 1 and fewer by 8, and mixes channel 30."""
    # theta = 500000^(-60/128) = exp(-6.1511078) = 0.0021311195
    # turns = 8192 theta / (2 pi) = 2.7785479; kept = 1.7785479 / 3 = 0.59284930
    # theta * (0.40715070 / 8 + 0.59284930) = theta * 0.64374313 = 0.0013718936
    got, plain = llama3.frequencies(LLAMA3, 1, factor=8.0).inv_freq, LLAMA3.inv_freq()
    turns = LLAMA3.turns()
    assert torch.equal(got[turns > 4], plain[turns > 4])
    assert torch.equal(got[turns < 1], plain[turns < 1] / 8)
    assert got[30].item() == pytest.approx(0.0013718936, rel=1e-6)


def test_pi_by_hand() -> None:
    """Position interpolation divides every frequency by the factor."""
    assert torch.equal(pi.frequencies(LLAMA2, 16384).inv_freq, LLAMA2.inv_freq() / 4)


def test_native_is_the_shipped_method() -> None:
    """Native is the named method with the shipped numbers, whatever the length."""
    shipped = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
    ships = Rope(128, 10000.0, 4096, shipped)
    for length in (100, 65536):
        got = native.frequencies(ships, length)
        assert _same(got, yarn.frequencies(LLAMA2, 1, factor=16.0))


def test_native_scales_from_the_shipped_window() -> None:
    """A shipped original window is what native scales from, whatever window is measured."""
    shipped = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    got = native.frequencies(Rope(128, 500000.0, 131072, shipped), 100)
    assert _same(got, llama3.frequencies(LLAMA3, 1, factor=8.0))


def test_native_of_a_plain_model_is_none() -> None:
    """A model that ships nothing, or the default type, is read plain."""
    for shipped in ({}, {"rope_type": "default", "rope_theta": 10000.0}):
        rope = Rope(128, 10000.0, 4096, shipped)
        assert _same(native.frequencies(rope, 65536), none.frequencies(rope, 65536))


TINY = Rope(4, 10000.0, 64)  # its two plain frequencies are 1 and 0.01


def test_abf_is_the_plain_embedding_of_another_base() -> None:
    """Llama-2 at ABF's 500000 is Llama 3's plain embedding, inside the window too."""
    for length in (100, 65536):
        assert _same(abf.frequencies(LLAMA2, length), none.frequencies(LLAMA3, length))
    # channel 32 of 64: 500000^(-1/2) = 0.0014142136
    got = abf.frequencies(LLAMA2, 1).inv_freq[32].item()
    assert got == pytest.approx(0.0014142136, rel=1e-6)


def test_p_rope_stops_the_slowest_channels() -> None:
    """Of 64 channel pairs three quarters keep every bit, and the last 16 are not rotated."""
    got, plain = p_rope.frequencies(LLAMA2, 65536).inv_freq, LLAMA2.inv_freq()
    assert torch.equal(got[:48], plain[:48])
    assert not bool(got[48:].any())


def test_p_rope_rounds_down() -> None:
    """Of 10 channel pairs three quarters are 7; all are the plain embedding, and 0 is none."""
    rope = Rope(20, 10000.0, 4096)
    assert int(p_rope.frequencies(rope, 1).inv_freq.count_nonzero()) == 7
    assert _same(p_rope.frequencies(rope, 1, p=1.0), none.frequencies(rope, 1))
    assert int(p_rope.frequencies(rope, 1, p=0.0).inv_freq.count_nonzero()) == 0


def test_resonance_by_hand() -> None:
    """Llama-2's wavelengths of 6.28 and 628.32 tokens become 6 and 628."""
    # 2 pi / 6 = 1.0471976; 2 pi / 628 = 0.010005073
    got = resonance.frequencies(LLAMA2, 1).inv_freq
    assert got[0].item() == pytest.approx(1.0471976, rel=1e-6)
    assert got[32].item() == pytest.approx(0.010005073, rel=1e-6)


def test_resonance_stands_on_another_method() -> None:
    """On position interpolation at 4 the first wavelength, 25.13 tokens, becomes 25."""
    # 2 pi / 25 = 0.25132741
    got = resonance.frequencies(LLAMA2, 16384, on=pi.frequencies).inv_freq
    assert got[0].item() == pytest.approx(0.25132741, rel=1e-6)
    wavelengths = 2 * math.pi / got.double()
    torch.testing.assert_close(wavelengths, wavelengths.round(), rtol=2e-7, atol=0)
    before = 2 * math.pi / pi.frequencies(LLAMA2, 16384).inv_freq.double()
    assert bool(((wavelengths - before).abs() <= 0.5 + 1e-6 * before).all())


def test_resonance_keeps_what_is_not_a_wavelength() -> None:
    """The attention factor of the method below is kept, and a channel at rest stays at rest."""
    got = resonance.frequencies(LLAMA2, 65536, on=yarn.frequencies)
    assert got.attention_factor == yarn.frequencies(LLAMA2, 65536).attention_factor
    assert not bool(resonance.frequencies(LLAMA2, 1, on=p_rope.frequencies).inv_freq[48:].any())


def test_giraffe_power_by_hand() -> None:
    """At power 1/2 channel 48 of 64 has half its frequency of 0.001, channel 0 its own."""
    # 1 - 48 / 64 = 1/4, its root 1/2; 10000^(-96/128) = 0.001
    got = giraffe_power.frequencies(LLAMA2, 1).inv_freq
    assert got[0].item() == 1.0
    assert got[48].item() == pytest.approx(0.0005, rel=1e-6)
    assert _same(giraffe_power.frequencies(LLAMA2, 1, power=0.0), none.frequencies(LLAMA2, 1))


def test_giraffe_truncated_by_hand() -> None:
    """Llama-2 keeps channels 0 to 45, slows 46 to 59 to one speed and stops 60 to 63."""
    # kept from 2 pi / 4096 = 0.0015339808: i <= 16 * -log10(0.0015339808) = 45.03
    # moving from 0.0015339808 / 8 = 0.00019174760: i <= 16 * 3.7172700 = 59.48
    # their speed: 0.0015339808 / 16 = 9.5873799e-5
    got, plain = giraffe_truncated.frequencies(LLAMA2, 65536).inv_freq, LLAMA2.inv_freq()
    assert torch.equal(got[:46], plain[:46])
    assert got[46:60].tolist() == pytest.approx([9.5873799e-5] * 14, rel=1e-6)
    assert not bool(got[60:].any())


def test_giraffe_truncated_at_a_cutoff() -> None:
    """A cutoff of 512 tokens keeps the wavelengths up to 512, whatever was trained."""
    got = giraffe_truncated.frequencies(LLAMA2, 1, cutoff=512).inv_freq
    assert _same(Frequencies(got), giraffe_truncated.frequencies(Rope(128, 10000.0, 512), 1))
    assert torch.equal(got == LLAMA2.inv_freq(), 2 * math.pi / LLAMA2.inv_freq() <= 512)


def test_ntk_mixed_by_hand() -> None:
    """At factor 16 channel 15 of 64 is 2.6651441 times slower, and the slowest one 16 times."""
    # share = (16 / 64)^0.75 = 0.35355339; 16^share = exp(2.7725887 * 0.35355339) = 2.6651441
    # theta = 10000^(-30/128) = 10^-0.9375 = 0.11547820; / 2.6651441 = 0.043329063
    got, plain = ntk_mixed.frequencies(LLAMA2, 65536).inv_freq, LLAMA2.inv_freq()
    assert got[15].item() == pytest.approx(0.043329063, rel=1e-6)
    assert got[-1].item() == pytest.approx(plain[-1].item() / 16, rel=1e-6)


def test_ntk_mixed_in_equal_steps() -> None:
    """At exponent 1 half of the channels share half of the factor's logarithm: 4 of 16."""
    got = ntk_mixed.frequencies(LLAMA2, 1, factor=16.0, exponent=1.0).inv_freq
    assert got[31].item() == pytest.approx(LLAMA2.inv_freq()[31].item() / 4, rel=1e-6)


def test_mr_rope_keeps_the_fast_and_divides_the_slow() -> None:
    """For Llama-2 channels 0 to 20 are untouched to the bit, and those from 46 on divided."""
    plain = LLAMA2.inv_freq()
    for kind in ("uni", "pro"):
        got = mr_rope.frequencies(LLAMA2, 65536, kind=kind).inv_freq
        assert torch.equal(got[:21], plain[:21])
        assert bool((got[21:46] < plain[21:46]).all())
        assert bool((got[21:46] > plain[21:46] / 16).all())
        torch.testing.assert_close(got[46:], plain[46:] / 16, rtol=2e-7, atol=0)


def test_mr_rope_middle_channel_by_hand() -> None:
    """Channel 33 of Llama-2 is 13 of 26 steps down: divided by 4 (uni) or 2.0520 (pro)."""
    # theta = 10^-2.0625 = 0.0086596432; uni: 16^(13/26) = 4, 0.0021649108
    # pro: 13 * 14 / (26 * 27) = 0.25925926; 16^0.25925926 = exp(0.7188193) = 2.052009; 0.0042200806
    uni = mr_rope.frequencies(LLAMA2, 65536, kind="uni")
    pro = mr_rope.frequencies(LLAMA2, 65536)
    assert uni.inv_freq[33].item() == pytest.approx(0.0021649108, rel=1e-6)
    assert pro.inv_freq[33].item() == pytest.approx(0.0042200806, rel=1e-6)
    # 0.1 ln 16 + 1 = 1.2772589
    assert uni.attention_factor == pro.attention_factor == pytest.approx(1.2772589, rel=1e-7)


def test_mr_rope_steps_are_those_of_the_equations() -> None:
    """Each step down scales by 16^(1/n) evenly, and by 16^(2k / (n(n+1))) progressively."""
    plain, n = LLAMA2.inv_freq().double(), 26
    even = [1 / n] * n
    rising = [2 * k / (n * (n + 1)) for k in range(1, n + 1)]
    for kind, exponents in (("uni", even), ("pro", rising)):
        got = mr_rope.frequencies(LLAMA2, 1, factor=16.0, kind=kind).inv_freq.double()
        steps = (plain / got).log().diff()[20:46] / math.log(16)
        assert steps.tolist() == pytest.approx(exponents, abs=1e-6)


def test_mr_rope_where_a_side_is_missing() -> None:
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


def test_longrope_takes_the_short_list_up_to_the_window(tmp_path: Path) -> None:
    """The short list holds up to the trained length, the long one from the next token on."""
    factors = _table(tmp_path)
    for length, wanted in ((1, [1.0, 0.005]), (64, [1.0, 0.005]), (65, [0.5, 0.00125])):
        got = longrope.frequencies(TINY, length, factors=factors).inv_freq.tolist()
        assert got == pytest.approx(wanted, rel=1e-6)


def test_longrope_attention_factor_by_hand(tmp_path: Path) -> None:
    """The attention factor is sqrt(1 + ln s / ln L0), of the stretch where no factor is set."""
    # ln 4 / ln 64 = 1/3, sqrt(4/3) = 1.1547005; ln 16 / ln 64 = 2/3, sqrt(5/3) = 1.2909944
    unset = _table(tmp_path)
    for length, wanted in ((64, 1.0), (256, 1.1547005), (1024, 1.2909944)):
        got = longrope.frequencies(TINY, length, factors=unset).attention_factor
        assert got == pytest.approx(wanted, rel=1e-7)
    for length in (1, 256):
        got = longrope.frequencies(TINY, length, factors=unset, factor=16.0).attention_factor
        assert got == pytest.approx(1.2909944, rel=1e-7)


def test_longrope_reads_the_factors_beside_the_lists(tmp_path: Path) -> None:
    """A table's factor counts at every length, the user's goes over it, a given one over both."""
    shipped = _table(tmp_path, factor=4.0)
    got = longrope.frequencies(TINY, 1, factors=shipped).attention_factor
    assert got == pytest.approx(1.1547005, rel=1e-7)
    got = longrope.frequencies(TINY, 1, factors=shipped, factor=16.0).attention_factor
    assert got == pytest.approx(1.2909944, rel=1e-7)
    given = _table(tmp_path, factor=4.0, attention_factor=1.5)
    assert longrope.frequencies(TINY, 1, factors=given, factor=16.0).attention_factor == 1.5


def test_longrope_of_phi_3_by_hand() -> None:
    """Phi-3's factor of 32 on 4096 tokens gives sqrt(1 + 5/12) = 1.1902381."""
    ones: list[float] = [1.0] * 48
    shipped = {"factor": 32.0, "short_factor": ones, "long_factor": ones}
    phi = Rope(96, 10000.0, 4096, shipped)
    got = longrope.frequencies(phi, 131072)
    assert torch.equal(got.inv_freq, phi.inv_freq())
    assert got.attention_factor == pytest.approx(1.1902381, rel=1e-7)


def test_a_factor_file_replaces_what_is_shipped(tmp_path: Path) -> None:
    """With a file nothing of the shipped table is read, not even its factor."""
    shipped = {"factor": 99.0, "short_factor": [9, 9], "long_factor": [9, 9]}
    factors = _table(tmp_path)
    got = longrope.frequencies(Rope(4, 10000.0, 64, shipped), 256, factors=factors)
    assert _same(got, longrope.frequencies(TINY, 256, factors=factors))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the factors file {path} cannot be read as JSON: Expecting property name"),
        ("[1.0, 2.0]", "the factors file {path} must hold one JSON object"),
        (
            '{"short_factor": [1, 1]}',
            "longrope needs a searched table, and {path} has none: "
            "give factors=PATH, a JSON file with short_factor and long_factor",
        ),
        (
            '{"short_factor": [1, 1], "long_factor": [1, 1, 1]}',
            "long_factor must be a list of 2 numbers, one per channel pair, got 3 values",
        ),
        (
            '{"short_factor": 1.0, "long_factor": [1, 1]}',
            "short_factor must be a list of 2 numbers, one per channel pair, got 1.0",
        ),
        (
            '{"short_factor": [1, 0], "long_factor": [1, 1]}',
            "short_factor must be positive numbers, got 0",
        ),
        (
            '{"short_factor": [1, NaN], "long_factor": [1, 1]}',
            "short_factor must be positive numbers, got nan",
        ),
        (
            '{"short_factor": [1, 1], "long_factor": ["2", 1]}',
            "long_factor must be positive numbers, got '2'",
        ),
        (
            '{"short_factor": [1, 1], "long_factor": [2, 1], "factor": "4"}',
            "factor must be a number, got '4'",
        ),
    ],
)
def test_longrope_refuses_a_table_it_cannot_use(tmp_path: Path, text: str, message: str) -> None:
    """A factor file is checked as a whole, also the list that the length does not ask for."""
    path = tmp_path / "factors.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^{re.escape(message.replace('{path}', str(path)))}"):
        longrope.frequencies(Rope(4, 10000.0, 64), 32, factors=str(path))


def test_longrope_names_a_file_that_is_missing() -> None:
    """A factor file that does not exist is named."""
    with pytest.raises(ValueError, match=r"^the factors file no.json cannot be read as JSON: "):
        longrope.frequencies(LLAMA2, 8192, factors="no.json")


PHI3 = Rope(96, 10_000.0, 2048)
ROPE = Rope(16, 10_000.0, 48)


@pytest.mark.parametrize(("rope", "first"), [(LLAMA3, 35), (PHI3, 31)])
def test_the_critical_channel_is_that_of_the_paper(rope: Rope, first: int) -> None:
    """LongRoPE2's theoretical critical dimension, 35 for Llama 3 and 31 for Phi-3-mini: from it on
    channels are slowed by the factor or more, before it by less (arXiv:2502.20082, figure 4).
    """
    slowed = rope.inv_freq() / critical_ntk.frequencies(rope, 1, factor=16.0).inv_freq
    assert bool((slowed[first:] >= 16).all())
    assert bool((slowed[:first] < 16).all())
    exactly = critical_ntk.frequencies(rope, 1, factor=16.0, critical=30).inv_freq[30]
    assert float(rope.inv_freq()[30] / exactly) == pytest.approx(16, rel=1e-5)


def test_the_slowest_channel_as_the_critical_one_is_ntk() -> None:
    """The two NTK methods are one formula, of two channels."""
    got = critical_ntk.frequencies(LLAMA3, 1, factor=4.0, critical=63).inv_freq
    torch.testing.assert_close(got, ntk.frequencies(LLAMA3, 1, factor=4.0).inv_freq, rtol=1e-6,
                               atol=0)  # fmt: skip


def test_yarn_divides_from_the_critical_channel_on() -> None:
    """Ramp of the code: channel 30 is the first that is divided in full, 18 the last that is kept.

    18 is Llama 3's last channel of 32 turns or more; between them the share falls by a 12th.
    """
    got = yarn.frequencies(LLAMA3, 1, factor=8.0, critical=30).inv_freq.double().numpy()
    theta = LLAMA3.inv_freq().double().numpy()
    kept = np.clip((30 - np.arange(64)) / 12, 0, 1)
    np.testing.assert_allclose(got, theta * (kept + (1 - kept) / 8), rtol=1e-6)


@pytest.mark.parametrize("critical", [0, 64, 18, 5])
def test_a_critical_channel_that_is_none_is_refused(critical: int) -> None:
    """One outside the head, and for a ramp one that is not slower than what is kept."""
    with pytest.raises(ValueError, match="critical must be"):
        yarn.frequencies(LLAMA3, 1, factor=8.0, critical=critical)
    if critical in (0, 64):
        with pytest.raises(ValueError, match="critical must be a channel"):
            critical_ntk.frequencies(LLAMA3, 1, critical=critical)
    if critical == 5:
        with pytest.raises(ValueError, match="critical must be slower"):
            ntk_by_parts.frequencies(LLAMA3, 1, critical=critical)


def test_a_window_without_a_turn_has_no_critical_base() -> None:
    """Of 6 tokens no channel turns once."""
    with pytest.raises(ValueError, match="7 tokens"):
        critical_ntk.frequencies(Rope(16, 10_000.0, 6), 12)


def test_cope_is_its_authors_mask() -> None:
    """hrlics/CoPE: of 64 frequencies the last 20 times 0.5 (1 + cos(linspace(0, pi, 20)))."""
    rope = Rope(128, 1e7, 8192)
    theta, mask = rope.inv_freq().double().numpy(), np.ones(64)
    mask[44:] = 0.5 * (1 + np.cos(np.linspace(0, np.pi, 20)))
    soft = cope.frequencies(rope, 1, onset=44).inv_freq.numpy()
    np.testing.assert_allclose(soft, theta * mask, rtol=1e-5, atol=1e-12)
    hard = cope.frequencies(rope, 1, clip="hard", onset=44).inv_freq.numpy()
    np.testing.assert_allclose(hard, theta * (np.arange(64) < 44), rtol=1e-6)


@pytest.mark.parametrize(("rope", "first"), [(LLAMA3, 35), (Rope(64, 1e7, 262_144), 22)])
def test_cope_begins_where_a_wavelength_exceeds_the_window(rope: Rope, first: int) -> None:
    """Llama 3: 2 pi 500000^(i/64) > 8192 from 35 on; a head of 64 at base 1e7 and 262144: 22."""
    stopped = cope.frequencies(rope, 1, clip="hard").inv_freq == 0
    assert stopped.tolist() == [i >= first for i in range(rope.rotary_dim // 2)]


def test_cope_stands_on_another_method() -> None:
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


@pytest.mark.parametrize(("length", "group"), [(49, 2), (96, 2), (97, 3), (150, 4)])
def test_jet_long_groups_what_is_far(length: int, group: int) -> None:
    """Distances up to the window are true, others floor(m/G) - floor(n/G), G = ceil(L / w)."""
    found = jet_long.bands(ROPE, length, window=7)
    assert isinstance(found, Bands)
    for m in range(length):
        wanted = [m - n if m - n <= 7 else m // group - n // group for n in range(m + 1)]
        assert found.relative(m).tolist() == wanted
    assert found.reach < ROPE.trained_length


def test_jet_long_has_a_fixed_group_as_it_is_served() -> None:
    """A group is G at every length: what a server reads of a short input is cut from the long one.

    Group 1 is the model; one below is an error, as is one of the branch without groups.
    """
    served = jet_long.bands(ROPE, 150, window=7)
    assert isinstance(served, Bands)
    for length in (20, 49, 150):
        fixed = jet_long.bands(ROPE, length, window=7, group=4)
        assert fixed.fingerprint == served.upto(length).fingerprint
    alone = jet_long.bands(ROPE, 150, group=1)
    assert alone.fingerprint == none.frequencies(ROPE, 150).fingerprint
    with pytest.raises(ValueError, match="group must be 1 or more, got 0"):
        jet_long.bands(ROPE, 150, group=0)
    with pytest.raises(ValueError, match="leave out on and group"):
        jet_long.bands(ROPE, 150, far="ramped", group=2)


def test_jet_long_goes_on_at_yarns_frequencies() -> None:
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
    assert isinstance(found, Bands)
    np.testing.assert_allclose(phases(found), wanted, atol=2e-5)  # 150 times float32's rounding
    assert found.query_scale is not None
    assert found.query_scale.tolist() == pytest.approx([0.1 * math.log(s) + 1] * length)


@pytest.mark.parametrize("far", ["grouped", "ramped"])
def test_jet_long_is_the_model_inside_its_window(far: str) -> None:
    """Up to the trained length both branches are plain frequencies, measured once with none."""
    for length in (1, 40, 48):
        found = jet_long.bands(ROPE, length, far=far)  # type: ignore[arg-type]
        assert isinstance(found, Frequencies)
        assert found.fingerprint == none.frequencies(ROPE, length).fingerprint
    assert isinstance(jet_long.bands(ROPE, 49, far=far), Bands)  # type: ignore[arg-type]


def test_a_phase_is_a_part_of_what_is_measured() -> None:
    """Two attentions that differ in it alone have two fingerprints, and neither is plain."""
    near, farther = (jet_long.bands(ROPE, 96, window=w, far="ramped") for w in (7, 8))
    assert near.fingerprint != farther.fingerprint
