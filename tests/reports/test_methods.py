"""What must hold for methods in figures: one look per method, and the numbers of the table."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from ropewalk.harness.reports import answer, cells
from ropewalk.harness.reports._style import COLOURS, PLAIN, methods
from tests.frames import PASSKEY, PERPLEXITY, TWELVE, sweep


def test_a_method_has_its_colour_in_every_run():
    """Whatever else a run has, and with options where the plain method is not there."""
    few, many = methods(sweep()).look, methods(sweep(scalings=TWELVE)).look
    assert few["pi"] == many["pi"]
    assert few["none"] == many["none"] == PLAIN
    assert few["yarn"] == many["yarn:factor=8,beta_fast=16,beta_slow=2"]
    looks = [(look.color, look.marker) for look in many.values()]
    assert len(set(looks)) == len(looks) == 11  # ntk and dynamic_ntk are one


def seen(color: str, kind: str) -> np.ndarray:
    """Return a colour as a dichromat sees it (Viénot, Brettel and Mollon 1999), in linear RGB."""
    rgb = np.array(to_rgb(color)) ** 2.2
    red, green, blue = {"deuteranopia": (0.29275, 0.70725, -0.02234),
                        "protanopia": (0.11238, 0.88762, 0.00401)}[kind]  # fmt: skip
    same = red * rgb[0] + green * rgb[1]
    return np.array([same, same, blue * rgb[0] - blue * rgb[1] + rgb[2]])


@pytest.mark.parametrize("kind", ["deuteranopia", "protanopia"])
def test_the_colours_differ_for_the_colour_blind(kind):
    known = [seen(color, kind) for color in COLOURS]
    apart = [np.abs(one - other).max() for i, one in enumerate(known) for other in known[:i]]
    assert min(apart) > 0.05


def marks(axes: Axes) -> dict[str, float]:
    """Return the place of every method's mark, and under "_bound" those of the bounds."""
    drawn = [(str(line.get_label()), np.asarray(line.get_xdata(), float))
             for line in axes.get_lines()]  # fmt: skip
    return {name.removeprefix("→ "): float(x[0]) for name, x in drawn if len(x) == 1}


def test_the_answer_has_every_mark_at_its_difference_from_the_best():
    """With its interval and its bound; what is far off is text at the edge."""
    frame = sweep()
    table = cells.make(frame).set_index(["task", "length", "scaling"])
    read, keys = answer.make(frame).axes
    pi = table.loc[(PERPLEXITY, 2048, "pi")]
    assert marks(read)["pi"] == pytest.approx(pi["above"])
    bars = [segment for made in read.collections for segment in made.get_segments()]
    ends = [bar[:, 0].tolist() for bar in bars]
    assert pytest.approx([pi["above_low"], pi["above_high"]]) in ends
    assert pytest.approx([pi["above"], pi["regret"]]) in ends
    assert "none" not in marks(read)
    assert any("▸" in text.get_text() for text in read.texts)
    mine = table.loc[(PASSKEY, 2048, "mine")]
    assert marks(keys)["mine"] == pytest.approx(-mine["above"])  # fewer keys are worse
    names = [label.get_text() for label in read.get_yticklabels()]
    assert names == ["→ yarn", "truncation", "ntk = dynamic_ntk", "pi", "none"]
    level = table.loc[(PERPLEXITY, 2048, "yarn")]
    assert marks(read)["truncation"] == pytest.approx(1 / (1 + level["change"]) - 1)
