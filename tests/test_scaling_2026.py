"""CoPE, critical channels and Jet-Long against their papers' numbers and their authors' code."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from scaling import cope, critical_ntk, jet_long, none, ntk, ntk_by_parts, yarn
from scaling.types import Bands, Frequencies, Rope

LLAMA3 = Rope(128, 500_000.0, 8192)
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
