"""Losses by position: what a sample keeps of them, and how they are drawn."""

import math

import numpy as np
import pytest

from ropewalk.harness.reports.position import positions
from ropewalk.harness.runs.frame import make_frame
from ropewalk.tasks.perplexity import by_position
from tests.small_runs import sweep as run_sweep


def test_positions_by_hand():
    """70 targets from position 10: runs of 3 of which the last holds one."""
    facts = by_position(10, [float(i) for i in range(70)])
    assert (facts["start"], facts["bucket"]) == (10, 3)
    losses = facts["losses"]
    assert losses[:2] == [1.0, 4.0]
    assert losses[-1] == 69.0
    assert by_position(1, [2.0, 3.0])["losses"] == [2.0, 3.0]
    each = by_position(10, [float(i) for i in range(70)], each=True)
    assert (each["bucket"], each["losses"]) == (1, [float(i) for i in range(70)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol", ["sliding,stride=24", "overlapping,stride=24", "disjoint", "prefix"]
)
def test_the_mean_over_all_positions_is_the_score(protocol, tiny, docs, tmp_path):
    """Every scored token of every window is at its position: together they are the perplexity."""
    task = f"perplexity:protocol={protocol}"
    frame = make_frame([
        run_sweep(tiny, docs / "document-0.txt", tmp_path / "run", "--task", task)
    ])  # fmt: skip
    sums: dict[int, list[float]] = {}
    for row in frame.to_dict("records"):
        for index, loss in enumerate(row["losses"]):
            held = min(row["bucket"], row["tokens"] - index * row["bucket"])
            place = int(row["start"] + index * row["bucket"] + (held - 1) / 2 - 1) // 4
            found = sums.setdefault(place, [0.0, 0])
            found[0] += loss * held
            found[1] += held
    table = positions(frame)
    assert table["position"].tolist() == [min(128, 1 + 4 * (i + 0.5)) for i in sorted(sums)]
    expected = [sums[index][0] / sums[index][1] for index in sorted(sums)]
    assert table["score"].tolist() == pytest.approx(expected)
    weights = [sums[index][1] for index in sorted(sums)]
    assert sum(weights) == frame["weight"].sum()
    mean = np.average(table["score"], weights=weights)
    assert mean == pytest.approx(math.log(frame["score"].iloc[0]), abs=1e-4)
