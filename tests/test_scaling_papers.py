"""Scaling methods against numbers worked by hand from the papers."""

from __future__ import annotations

import pytest
import torch

from scaling import (
    dynamic_ntk,
    llama3,
    native,
    none,
    ntk,
    ntk_by_parts,
    ntk_by_parts_code,
    pi,
    yarn,
)
from scaling.types import Frequencies, Rope

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
