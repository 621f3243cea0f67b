"""Shares of which trials give parts, such as recall: every interval is that of a share."""

from collections.abc import Sequence
from math import hypot
from statistics import stdev

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.harness.reports import cells, seeds
from ropewalk.harness.reports._text import bound, rounded_up
from ropewalk.tasks._intervals import proportion
from tests.frames import Row, asked


def recall(scaling: str, values: Sequence[float], *, model: str = "m", gone: int = 0) -> list[Row]:
    """Return a cell of which trials found parts, and after them some that memory did not hold."""
    trials = [*values, *[None] * gone]
    rows = asked("niah", scaling, 1024, trials, status="out_of_memory")
    return [
        {**row, "model": model, "metric": "recall", "unit": f"t{n}"} for n, row in enumerate(rows)
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_means_over_seeds_are_shares_whichever_seed_is_first(order):
    """A seed whose trials are all whole changes no form of interval, and no end passes 0 or 1."""
    values = ([1, 0.75, 1, 1, 0.5], [1, 1, 1, 1, 0.5], [1.0] * 5)
    rows = [row for seed in order for row in recall("none", values[seed], model=f"t-seed{seed}")]
    [row] = seeds.make(pd.DataFrame(rows)).to_dict("records")
    mean = (4.25 + 4.5 + 5) / 3
    over_trials = proportion(mean, 5)[0]
    over_seeds = 4.302653 * stdev([0.85, 0.9, 1]) / 3**0.5
    assert row["low"] == pytest.approx(mean / 5 - hypot(mean / 5 - over_trials, over_seeds))
    assert row["high"] == 1


@pytest.mark.slow
def test_a_difference_of_shares_is_between_minus_1_and_1_and_never_sure():
    """By Bonett and Price with parts of trials, worked by hand; equal trials leave a doubt too."""
    none, yarn = recall("none", [0, 0, 0, 0.5, 1]), recall("yarn", [1, 1, 0.5, 1, 1])
    row = cells.make(pd.DataFrame(none + yarn)).iloc[1]
    # Gained 3 of 5, lost 0: shares of (3 + 1) / 7 and 1 / 7.
    half = 1.959964 * ((5 / 7 - (3 / 7) ** 2) / 7) ** 0.5
    assert row["difference"] == pytest.approx(0.6)
    ends = row[["difference_low", "difference_high"]].tolist()
    assert ends == pytest.approx([3 / 7 - half, min(1, 3 / 7 + half)])
    same = recall("none", [1, 1, 0.5]) + recall("yarn", [1, 1, 0.5])
    row = cells.make(pd.DataFrame(same)).iloc[1]
    assert -1 <= row["difference_low"] < 0 < row["difference_high"] <= 1


@pytest.mark.parametrize(
    ("regret", "relative", "text"),
    [
        (0.00999, False, "1 pp"),
        (0.02712, True, "2.8 %"),
        (0.05, True, "5 %"),
        (12.3401, True, "1,235 %"),
    ],
)
def test_a_bound_is_rounded_up(regret: float, relative: bool, text: str) -> None:
    assert bound(regret, relative=relative, metric="recall") == text


@given(st.floats(1e-6, 1e60))
def test_no_bound_is_written_below_its_value(value: float) -> None:
    """What is written is at least the value, but for rounding to nine digits, and close to it."""
    written = float(rounded_up(value).replace(",", ""))
    assert value * (1 - 1e-8) <= written <= value * 1.1 * (1 + 1e-8)
