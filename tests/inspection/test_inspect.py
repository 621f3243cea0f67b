"""What a method does to the channels: numbers worked by hand, tables and figures of them."""

import math
import re
import shutil
from dataclasses import fields

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from harness.inspection.inspect import channel_frame, decay_frame, draw_channels, inspect
from harness.inspection.scores import Curve
from harness.methods.channels import channels, decay
from harness.models.config import REFERENCE
from harness.sweep.spec import Spec, parse
from scaling import ntk, p_rope, pi
from scaling.types import Frequencies, Rope
from tests import ROOT

# Frequencies 1 and 1/10: 32 / 2π = 5.09 and 0.509 turns in the trained window.
SMALL = Rope(rotary_dim=4, base=100.0, trained_length=32)
PLAIN = Frequencies(SMALL.inv_freq())
FILES = [
    f"{name}.{end}"
    for name in ("channels", "decay", "scores", "wavelengths")
    for end in ("caption.md", "caption.tex", "caption.txt", "csv", "png")
    if (name, end) != ("wavelengths", "csv")  # its data are those of channels
]


def frames(*scaling: str, length: tuple[str, ...] = ("1x", "2x", "8x")) -> list[pd.DataFrame]:
    """Return both tables of the reference model (window 256, base 10000, 32 channel pairs)."""
    inspection = inspect(parse(None, {"scaling": scaling, "length": length}))
    return [channel_frame(inspection), decay_frame(inspection)]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


class TestChannels:
    """Every channel pair by hand, on a rope of two."""

    def test_turns_and_wavelengths(self):
        """A pair of frequency 1 turns every 2π tokens, one of 1/10 every 20π."""
        fast, slow = channels(SMALL, PLAIN, 32)
        assert (fast.pair, slow.pair) == (0, 1)
        assert fast.turns == pytest.approx(32 / (2 * math.pi))
        assert slow.turns == pytest.approx(3.2 / (2 * math.pi))
        assert fast.wavelength == fast.wavelength_unscaled == pytest.approx(2 * math.pi)
        assert slow.wavelength == slow.wavelength_unscaled == pytest.approx(20 * math.pi)

    def test_a_slow_pair_meets_new_angles_past_the_window(self):
        assert [channel.unseen for channel in channels(SMALL, PLAIN, 32)] == [False, False]
        assert [channel.unseen for channel in channels(SMALL, PLAIN, 33)] == [False, True]

    def test_interpolated_pairs_stay_inside_what_was_seen(self):
        for length in (33, 64, 100, 31 * 32):
            for channel in channels(SMALL, pi.frequencies(SMALL, length), length):
                assert (channel.change, channel.unseen) == ("in full", False)
                assert channel.ratio == pytest.approx(32 / length)

    def test_a_factor_below_the_stretch_is_not_enough(self):
        """PI by 2 at four windows: the slow pair turns 6.4 radians, and 3.2 were trained."""
        slow = channels(SMALL, pi.frequencies(SMALL, 128, factor=2.0), 128)[1]
        assert (slow.change, slow.unseen) == ("in part", True)

    def test_ntk_keeps_the_fastest_and_interpolates_the_slowest(self):
        """At stretch 4 the base is 100 * 4^2 and the slow frequency 1/40."""
        fast, slow = channels(SMALL, ntk.frequencies(SMALL, 128), 128)
        assert (fast.change, slow.change) == ("unchanged", "in full")
        assert slow.wavelength == pytest.approx(80 * math.pi)

    def test_what_goes_beyond_interpolation_is_told_apart(self):
        changed = Frequencies(torch.tensor([2.0, 0.1 / 5]))
        assert [c.change for c in channels(SMALL, changed, 128)] == ["faster", "beyond"]
        still = channels(SMALL, p_rope.frequencies(SMALL, 128, p=0.5), 128)[1]
        assert (still.wavelength, still.ratio, still.change) == (None, 0.0, "beyond")
        assert not still.unseen

    def test_faster_inside_the_window_is_unseen_too(self):
        """Three times as fast over half a window is half again the largest trained angle."""
        assert channels(SMALL, Frequencies(torch.tensor([1.0, 0.3])), 16)[1].unseen


class TestDecay:
    """The bound of RoFormer's section 3.4.3."""

    def test_at_distance_0_it_is_half_of_pairs_and_one(self):
        """All terms of S_j are 1, so abs(S_j) = j, and the mean of 1 to 32 is 16.5."""
        assert decay(Frequencies(Rope(64, 1e4, 256).inv_freq()), [0]) == [16.5]

    def test_two_pairs_by_hand(self):
        """abs(e^(im) + e^(im/10)) is 2 abs(cos(0.45 m)), so the mean is (1 + that) / 2."""
        distances = [0, 1, 3, 7, 100]
        wanted = [(1 + 2 * abs(math.cos(0.45 * m))) / 2 for m in distances]
        assert decay(PLAIN, distances) == pytest.approx(wanted, abs=1e-5)

    def test_pi_stretches_the_curve(self):
        """Interpolated by 4, a distance of 4 m has the bound that m had."""
        found = decay(pi.frequencies(SMALL, 128), [0, 4, 12, 28, 400])
        assert found == pytest.approx(decay(PLAIN, [0, 1, 3, 7, 100]), abs=1e-5)

    def test_the_attention_factor_counts_twice(self):
        """It multiplies queries and keys, so the score by its square."""
        found = decay(Frequencies(SMALL.inv_freq(), 1.5), [0, 3])
        assert found == pytest.approx([2.25 * bound for bound in decay(PLAIN, [0, 3])])


class TestTables:
    """Tidy rows of the reference model."""

    def test_one_row_per_scaling_length_and_pair(self):
        """Pairs from 13 on are slower than a turn: 2π * 10000^(13/32) is 265 tokens, over 256."""
        table, _ = frames("none", "pi")
        assert len(table) == 2 * 3 * 32
        unseen = table[table["unseen"]].groupby(["scaling", "length"])["pair"]
        assert unseen.agg(["min", "count"]).to_dict("index") == {
            ("none", length): {"min": 13, "count": 19} for length in (512, 2048)
        }

    def test_bins_of_distances_leave_none_out(self):
        """Bins join from 0 to the last distance, and the first are single distances."""
        _, table = frames("yarn", length=("1", "2", "3", "300", "8x"))
        for length, rows in table.groupby("length"):
            first, last = rows["distance"].tolist(), rows["distance_last"].tolist()
            assert first[:3] == list(range(min(3, int(str(length)))))
            assert first[1:] == [end + 1 for end in last[:-1]]
            assert last[-1] == int(str(length)) - 1
        start = table[table["distance"] == 0]
        assert start["bound_unscaled"].tolist() == [16.5] * 5
        factor = start["attention_factor"]
        assert start["bound"].tolist() == pytest.approx((16.5 * factor**2).tolist())

    def test_a_bin_holds_the_mean_of_its_distances(self):
        _, table = frames("none", length=("1x",))
        row = table[table["distance_last"] > table["distance"]].iloc[0]
        inside = range(int(row["distance"]), int(row["distance_last"]) + 1)
        bounds = decay(Frequencies(Rope(64, 1e4, 256).inv_freq()), inside)
        assert row["bound"] == pytest.approx(sum(bounds) / len(bounds))


def test_every_column_is_in_the_schema():
    """results/README.md tells of each column of the three tables, and of no other."""
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## `channels.csv` and `decay.csv`")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    channel, curve = frames("none")
    assert len(named) == len(set(named))
    assert set(named) == {*channel.columns, *curve.columns}
    section = text.partition("## `scores.csv`")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", "".join(cells)) == [field.name for field in fields(Curve)]


class TestFigures:
    """What is drawn, by its data."""

    def test_lines_are_the_rows_of_the_table(self):
        table, _ = frames("pi", "yarn")
        rows = table[(table["scaling"] == "yarn") & (table["length"] == 2048)]
        [line] = [drawn for drawn in draw_channels(table).axes[-1].lines
                  if drawn.get_label() == "yarn"]  # fmt: skip
        assert list(line.get_xdata()) == rows["turns"].tolist()
        assert list(line.get_ydata()) == rows["ratio"].tolist()

    def test_the_shaded_field_holds_the_unseen_pairs(self):
        """At length L it is what is left of one turn and above trained_length / L."""
        table, _ = frames("ntk", "yarn", "abf:base=1000", length=("128", "8x"))
        figure = draw_channels(table)
        for axes, length in zip(figure.axes, (128, 2048), strict=True):
            [field] = axes.collections
            box = field.get_paths()[0].get_extents()
            assert (box.x1, box.y0) == (1, 256 / length)
            rows = table[table["length"] == length]
            inside = (rows["turns"] < 1) & (rows["ratio"] > 1.00001 * box.y0)
            assert inside.tolist() == rows["unseen"].tolist()


class TestCommand:
    """``ropewalk inspect``."""

    @pytest.mark.slow
    def test_a_config_is_enough(self, tiny, tmp_path, ropewalk):
        """Neither weights nor tokenizer are needed; the same question gives the same tables."""
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
        assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == FILES
        assert all(name in out for name in FILES)
        table = pd.read_csv(tmp_path / "figures" / "channels.csv")
        assert len(table) == 2 * 8
        ropewalk("inspect", *words, tmp_path / "again")
        one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.csv")}
                    for name in ("figures", "again"))  # fmt: skip
        assert one == two

    def test_without_out_nothing_is_written(self, tmp_path, monkeypatch, ropewalk):
        monkeypatch.chdir(tmp_path)
        words = ("--scaling", "none", "yarn", "p_rope:p=0.75", "--length", "8x")
        status, out, _ = ropewalk("inspect", *words)
        assert not status
        rows = [line.split() for line in out.splitlines() if "(8x)" in line]
        assert rows == [
            ["none", "2048", "(8x)", "1", "32", "0", "0", "0", "19", "(13–31)", "47,117"],
            ["yarn", "2048", "(8x)", "1.208", "1", "12", "19", "0", "0", "376,938"],
            ["p_rope:p=0.75", "2048", "(8x)", "1", "24", "0", "0", "8", "11", "(13–23)", "∞"],
        ]
        assert "--out" not in out
        assert list(tmp_path.iterdir()) == []

    def test_a_base_without_a_figure_is_said_to_need_one(self, ropewalk):
        """It is drawn in the figure alone: the table would be the same without a word."""
        out = ropewalk("inspect", "--scaling", "none", "--length", "2x", "--base", "500").out
        assert "drawn in a figure: add --out FOLDER." in " ".join(out.split())

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("--scaling", "pi", "pi"), "--scaling names 'pi' twice"),
            (("--length", "1", "--out", "here"), "need a --length of 2 tokens or more"),
            (("--base", "0"), "--base must be a number from 1 to 3.4e38, got 0."),
            (("--encoding", str(REFERENCE)), "is a model of type llama; name an encoding"),
            (("--out", "taken/here"), "taken/here cannot be made: Not a directory."),
        ],
    )
    def test_a_users_error_is_one_sentence(self, words, told, tmp_path, monkeypatch, ropewalk):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "taken").touch()
        status, _, err = ropewalk("inspect", *words)
        assert (status, err.count("\n"), told in err) == (2, 1, True)


def test_queries_of_their_own_base_are_shown_by_the_last_one():
    """per_query at 4x: the last query has the frequencies of the whole length, as frozen has."""
    methods = ("dynamic_ntk", "dynamic_ntk:mode=per_query", "rerope", "log_n:on=rerope")
    found = inspect(Spec(model="reference", scaling=methods, length=("4x",)))
    frozen, own, _, _ = found.readings
    assert frozen.channels == own.channels
    bounds = decay_frame(found).groupby("scaling", sort=False)["bound"].agg(list)
    assert bounds["dynamic_ntk"] == bounds["dynamic_ntk:mode=per_query"]
    ratio = [b / a for a, b in zip(bounds["rerope"], bounds["log_n:on=rerope"], strict=True)]
    assert ratio == pytest.approx([math.log(1024) / math.log(256)] * len(ratio))


def test_a_distance_that_is_capped_at_the_window_is_seen():
    """LM-Infinite never rotates past the trained window: no pair meets an angle it never had."""
    (reading,) = inspect(Spec(model="reference", scaling=("lm_infinite",), length=("8x",))).readings
    assert not any(channel.unseen for channel in reading.channels)
