"""What a method does to the channels: numbers worked by hand, tables and figures of them."""

import math
import shutil

import pandas as pd
import pytest
import torch

from ropewalk.harness.reports._inspection import (
    Inspection,
    angles_of,
    channels,
    inspect,
    scores,
)
from ropewalk.harness.sweep.spec import parse
from ropewalk.scaling import jet_long, ntk, p_rope
from ropewalk.scaling.types import Frequencies, Rope

# Frequencies 1 and 1/10: 32 / 2π = 5.09 and 0.509 turns in the trained window.
SMALL = Rope(rotary_dim=4, base=100.0, trained_length=32)
PLAIN = Frequencies(SMALL.inv_freq())
ROPE = Rope(64, 10_000.0, 256)  # of the reference model


def inspected(*scaling: str, length: tuple[str, ...] = ("8x",)) -> Inspection:
    return inspect(parse(None, {"scaling": scaling, "length": length}))


class TestChannels:
    """Every channel pair by hand, on a rope of two."""

    def test_turns_and_wavelengths(self):
        """A pair of frequency 1 turns every 2π tokens, one of 1/10 every 20π."""
        pairs = channels(SMALL, PLAIN, 32)
        assert pairs["turns"] * 2 * math.pi == pytest.approx([32, 3.2])
        assert pairs["wavelength"] / math.pi == pytest.approx([2, 20])

    def test_ntk_keeps_the_fastest_and_interpolates_the_slowest(self):
        """At stretch 4 the base is 100 * 4^2 and the slow frequency 1/40."""
        pairs = channels(SMALL, ntk.frequencies(SMALL, 128), 128)
        assert pairs["change"].tolist() == ["unchanged", "in full"]
        assert pairs["wavelength"][1] == pytest.approx(80 * math.pi)

    def test_slower_than_interpolated_and_faster_than_plain(self):
        changed = Frequencies(torch.tensor([2.0, 0.1 / 5]))
        assert channels(SMALL, changed, 128)["change"].tolist() == ["faster", "beyond"]
        assert channels(SMALL, Frequencies(torch.tensor([1.0, 0.3])), 16)["unseen"][1]
        pairs = channels(SMALL, p_rope.frequencies(SMALL, 128, p=0.5), 128)
        assert (pairs["ratio"][1], pairs["change"][1], pairs["unseen"][1]) == (0, "beyond", False)
        assert math.isnan(pairs["wavelength"][1])

    def test_moved_positions_count_by_their_angles(self):
        """LM-Infinite never rotates past the window; Jet-Long's far channels turn slower."""
        assert not inspected("lm_infinite").channels["unseen"].any()
        found = jet_long.bands(ROPE, 2048, far="ramped")
        pairs = channels(ROPE, found, 2048)
        assert not pairs["unseen"].any()
        slower = (2048 - 16) / (256 - 16)
        assert pairs["ratio"][-1] == pytest.approx(1 / slower)
        wanted = torch.tensor([16.0, 16 + (2047 - 16) / slower]).double()[:, None]
        angles = angles_of(found, torch.tensor([16, 2047]))[:, 13:]
        assert angles.allclose(wanted * ROPE.inv_freq()[13:])


def test_the_score_of_equal_contents_is_a_sum_of_cosines():
    """In the mean over many contents 2 Σ cos(m θ) / sqrt(d); interpolated, that of m / s."""
    table = scores(inspected("none", "pi", "yarn"))
    curves = {name: rows.set_index("distance") for name, rows in table.groupby("scaling")}
    plain = curves["none"]["mean"]
    turned = torch.outer(torch.tensor(plain.index), ROPE.inv_freq().double())
    wanted = 2 * turned.cos().sum(1) / 8
    assert torch.tensor(plain.to_numpy()).allclose(wanted, atol=0.6)  # of 64 contents
    slow = curves["pi"]["mean"]
    same = [at for at in plain.index if 8 * at in slow.index]
    assert len(same) > 10
    assert slow[[8 * at for at in same]].tolist() == pytest.approx(plain[same].tolist(), abs=1e-4)
    factor = 1 + 0.1 * math.log(8)  # multiplies queries and keys
    assert curves["yarn"]["mean"][0] == pytest.approx(factor**2 * plain[0])
    assert (table["low"] <= table["high"]).all()


def test_moved_positions_have_the_scores_of_the_last_query():
    """Past its window LM-Infinite meets no key but the first; log-n multiplies queries."""
    table = scores(inspected("lm_infinite", "rerope", "log_n:on=rerope", length=("4x",)))
    curves = {name: rows.set_index("distance")["mean"] for name, rows in table.groupby("scaling")}
    far = curves["lm_infinite"]
    assert far[(far.index > 256) & (far.index < 1000)].isna().all()
    ratio = curves["log_n:on=rerope"] / curves["rerope"]
    assert ratio.tolist() == pytest.approx([math.log(1024) / math.log(256)] * len(ratio))


class TestCommand:
    @pytest.mark.slow
    def test_a_config_is_enough(self, tiny, tmp_path, ropewalk):
        (tmp_path / "model").mkdir()
        shutil.copy(tiny / "config.json", tmp_path / "model")
        words = (tmp_path / "model", "--scaling", "none", "yarn", "--length", "4x", "--out")
        status, out, _ = ropewalk("inspect", *words, tmp_path / "figures")
        assert not status
        # 64 / 2π = 10.2 turns, a tenth, 1.02, for pair 2, and 10.2 * 10000^(-7/8) for the last
        assert " ".join(out.split()).startswith(
            "model: trained window 64 tokens, base 10000, 8 channel pairs of 10.2 to 0.0032 turns "
            "in the window, 5 of less than one "
        )
        written = {path.name for path in (tmp_path / "figures").iterdir()}
        assert {"channels.csv", "scores.csv", "wavelengths.png", "scores.png"} <= written
        assert all(name in out for name in written)
        assert len(pd.read_csv(tmp_path / "figures" / "channels.csv")) == 2 * 8
