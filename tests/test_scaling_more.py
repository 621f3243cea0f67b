"""Searched tables and methods on top of methods; values worked by hand from papers and code."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from scaling import (
    abf,
    giraffe_power,
    giraffe_truncated,
    longrope,
    mr_rope,
    none,
    ntk_mixed,
    p_rope,
    pi,
    resonance,
    yarn,
)
from scaling.types import Frequencies, Rope

LLAMA2 = Rope(128, 10000.0, 4096)
LLAMA3 = Rope(128, 500000.0, 8192)
TINY = Rope(4, 10000.0, 64)  # its two plain frequencies are 1 and 0.01


def _same(one: Frequencies, other: Frequencies) -> bool:
    """Return whether two results are the same bits."""
    return one.fingerprint == other.fingerprint


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
