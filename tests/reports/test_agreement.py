"""Retrieval against perplexity: the right points, the rank correlation by hand, clear refusals."""

import math
import re

import pandas as pd
import pytest

from ropewalk.harness.reports import agreement
from ropewalk.harness.reports.agreement import agreement as correlation
from ropewalk.harness.reports.agreement import interval

METHODS = ("none", "a", "b", "c", "d", "e")


def frame(kept: dict[str, float], lengths: tuple[int, ...] = (128, 512)) -> pd.DataFrame:
    """Return samples of a model of window 128: perplexity rises in the order of the methods."""
    rows = []
    for place, name in enumerate(METHODS):
        for length in lengths:
            beyond = length > 128
            cell = {
                "run": "r", "model": "m", "scaling": name, "length": length, "status": "ok",
                "trained_length": 128, "frequencies": f"{name}{length}" if beyond else "0",
            }  # fmt: skip
            score = math.exp(2 + place * beyond)
            tail = {
                "task": "perplexity", "metric": "perplexity", "score": score, "low": score * 0.9,
                "high": score * 1.1, "n": 3, "protocol": "tail", "value": 1.0, "weight": 1,
            }  # fmt: skip
            share = kept[name] if beyond else 1.0
            found = {
                "task": "passkey", "metric": "accuracy", "score": share, "low": share / 2,
                "high": (1 + share) / 2, "n": 3, "value": 1.0, "weight": 1,
            }  # fmt: skip
            rows += [{**cell, **task, "unit": unit} for task in (tail, found) for unit in "xyz"]
    return pd.DataFrame(rows)


def test_the_points_are_the_cells_beyond_the_window():
    kept = dict(zip(METHODS, (0.0, 1.0, 0.8, 0.6, 0.4, 0.2), strict=True))
    (axes,) = agreement.make(frame(kept)).axes
    points = {line.get_label(): line.get_xydata()[0] for line in axes.get_lines()}
    for place, name in enumerate(METHODS):
        assert points[name] == pytest.approx((math.exp(2 + place), kept[name]))
    # Ranks of perplexity 1…6 and of accuracy 1 6 5 4 3 2: rho = 1 - 6 * 40 / (6 * 35) = -1/7.
    assert "ρ = −0.14" in axes.get_title(loc="left").replace("\n", " ")


def test_the_interval_of_a_rank_correlation_by_hand():
    """Fisher's z of 0.5 is 0.549306; its error for 28 pairs is sqrt(1.125 / 25)."""
    half = 1.959964 * math.sqrt(1.125 / 25)
    low, high = interval(0.5, 28)
    assert low == pytest.approx(math.tanh(0.549306 - half), abs=1e-6)
    assert high == pytest.approx(math.tanh(0.549306 + half), abs=1e-6)


@pytest.mark.parametrize(("count", "said"), [(4, "too few"), (5, "ρ = −1.00")])
def test_few_methods_have_no_correlation(count, said):
    rows = pd.DataFrame({"score": range(count), "kept": range(count, 0, -1)})
    rows["frequencies"] = rows["score"].astype(str)
    assert said in correlation(rows)
    assert "all equal" in correlation(rows.assign(kept=1)) or count < 5


def test_methods_that_coincide_at_a_length_count_once_there():
    """YaRN and YaRN at factor 2 are one measurement at twice the window: five methods, not six."""
    made = frame(dict(zip(METHODS, (1.0, 0.8, 0.6, 0.4, 0.2, 0.2), strict=True)), (128, 256, 512))
    twin = (made["length"] == 256) & (made["scaling"] == "e")
    made.loc[twin, "frequencies"] = "d256"
    figure = agreement.make(made)
    at_2, at_4 = (axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes)
    assert at_2.endswith("ρ = −1.00")  # a perfect order has no interval
    assert re.search(r"ρ = −0\.99 \[−1\.00, −0\.\d+\]$", at_4)
    assert "Methods per panel: 5 to 6." in figure.get_label()
