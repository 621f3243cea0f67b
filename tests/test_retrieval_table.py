"""The table of retrieval: means and intervals by hand, effective lengths by RULER's rule."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from harness.reports import retrieval_table
from tasks._intervals import proportion


def frame(hits: dict[tuple[str, int], int], *, n: int = 10, **changes: Any) -> pd.DataFrame:
    """Return trials of parts at lengths, of which so many are hits."""
    return pd.DataFrame([
        {
            "model": "m", "trained_length": 1024, "task": "ruler", "metric": "recall",
            "scaling": "yarn", "length": length, "part": part, "unit": f"{part} {trial}",
            "value": float(trial < count), "weight": 1, "status": "ok", **changes,
        }
        for (part, length), count in hits.items()
        for trial in range(n)
    ])  # fmt: skip


HITS = {
    ("a", 1024): 10, ("b", 1024): 9, ("a", 2048): 10, ("b", 2048): 8, ("a", 4096): 7,
    ("b", 4096): 5, ("a", 8192): 10, ("b", 8192): 10,
}  # fmt: skip


def test_means_average_and_effective_length_by_hand() -> None:
    """95, 90, 60 and 100 % on average: a length counts only with all shorter ones."""
    table = retrieval_table.make(frame(HITS))
    mean = table[table["part"] == "mean"].set_index("length")
    assert mean["score"].to_dict() == pytest.approx({1024: 0.95, 2048: 0.9, 4096: 0.6, 8192: 1.0})
    assert mean["average"].unique() == pytest.approx([(0.95 + 0.9 + 0.6 + 1.0) / 4])
    assert set(mean["effective_length"]) == {2048}
    strict = retrieval_table.make(frame(HITS), threshold=0.96)
    assert strict["effective_length"][strict["part"] == "mean"].isna().all()
    (title, *others) = retrieval_table.readable(strict)
    assert title.startswith("mean of all tasks")
    assert len(others) == 2
    assert list(retrieval_table.readable(strict)[title]["effective length"]) == ["< 1k"]


def test_the_interval_of_a_mean_is_made_of_those_of_its_parts() -> None:
    """Of two parts it lies half the root of the summed squares of their distances away."""
    table = retrieval_table.make(frame(HITS))
    mean = table[(table["part"] == "mean") & (table["length"] == 2048)].iloc[0]
    (_, high_a), (_, high_b) = proportion(10, 10), proportion(8, 10)
    (low_a, _), (low_b, _) = proportion(10, 10), proportion(8, 10)
    above = math.sqrt((high_a - 1.0) ** 2 + (high_b - 0.8) ** 2) / 2
    below = math.sqrt((1.0 - low_a) ** 2 + (0.8 - low_b) ** 2) / 2
    assert mean["high"] == pytest.approx(0.9 + above)
    assert mean["low"] == pytest.approx(0.9 - below)


def test_a_failed_trial_leaves_no_number() -> None:
    """Neither its part nor the mean nor the average counts without it; the others do."""
    trials = frame(HITS)
    trials.loc[(trials["part"] == "b") & (trials["length"] == 4096), "status"] = "out_of_memory"
    table = retrieval_table.make(trials).set_index(["part", "length"])
    assert math.isnan(table.loc[("b", 4096), "score"])
    assert math.isnan(table.loc[("mean", 4096), "score"])
    assert table.loc[("a", 4096), "score"] == pytest.approx(0.7)
    assert math.isnan(table.loc[("mean", 1024), "average"])
    assert "out of memory" in retrieval_table.readable(table.reset_index())[
        "mean of all tasks, accuracy [95 % interval], m"
    ]["4096 (4×)"].tolist()  # fmt: skip


def test_without_retrieval_the_report_says_so() -> None:
    with pytest.raises(ValueError, match="no task of retrieval"):
        retrieval_table.make(frame(HITS, metric="perplexity"))
