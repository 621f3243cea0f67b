"""The answer figure and the names at the ends of lines: what is drawn is what the table says."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from harness.reports import best, regret
from tests.frames import PERPLEXITY, sweep

FRAME = sweep()


@pytest.fixture(scope="module")
def figure() -> Figure:
    return best.draw(FRAME, best.make(FRAME))


def marks(figure: Figure, panel: int) -> dict[str, float]:
    """Return where the methods of a panel have their marks."""
    lines = figure.axes[panel].get_lines()
    drawn = {str(line.get_label()): np.asarray(line.get_xdata(), float) for line in lines}
    return {name: float(x[0]) for name, x in drawn.items() if name[0] != "_" and len(x) == 1}


def test_every_mark_is_at_its_difference_from_the_best(figure: Figure) -> None:
    table = regret.make(FRAME)
    here = (table["task"] == PERPLEXITY) & (table["length"] == 2048) & (table["scaling"] == "yarn")
    [row] = table[here].to_dict("records")
    assert marks(figure, 0)["yarn"] == pytest.approx(100 * row["difference"])
    lines = [line for line in figure.axes[0].get_lines() if line.get_label() == "_bound"]
    bounds = [np.asarray(line.get_xdata(), float)[0] for line in lines]
    assert pytest.approx(100 * row["regret"]) in bounds


def test_what_is_far_off_is_text_at_the_edge(figure: Figure) -> None:
    assert "none" not in marks(figure, 0)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert any("▸" in text for text in texts)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[-1] == "none"
    assert "→ yarn" in names
    assert "truncation" in names
