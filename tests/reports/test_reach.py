"""How far a method reads where runs are joined, cut short, or out of memory."""

import pandas as pd
import pytest

from ropewalk.harness.reports import effective_length
from tests.frames import Row, asked


def reach(*cells: list[Row]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table by method, and the form of it for people."""
    table = effective_length.make(pd.DataFrame([row for rows in cells for row in rows]))
    [shown] = effective_length.display(table).values()
    return table.set_index("scaling"), shown.set_index("scaling")


def found(scaling: str, *lengths: int) -> list[Row]:
    return [row for length in lengths for row in asked("passkey", scaling, length, [1.0] * 20)]


@pytest.mark.parametrize("status", ["out_of_memory", "not_measured"])
def test_what_was_not_measured_is_no_proof_of_failure(status):
    """All keys found to 2048 and a lost cell at 4096: at most 4096 or more; a failure ends it."""
    inside = [found("none", 1024), asked("passkey", "none", 2048, [0.0] * 20)]
    inside += [found("yarn", 1024, 2048)]
    table, shown = reach(*inside, asked("passkey", "yarn", 4096, [None] * 20, status=status))
    assert table.loc["yarn", ["effective_length", "high"]].tolist() == [2048, 4096]
    assert shown.loc["yarn", "at most (95 %)"] == "≥ 4096 (4×)"
    table, _ = reach(*inside, asked("passkey", "yarn", 4096, [None] * 20, status="failed"))
    assert table.loc["yarn", "high"] == 2048


def test_a_method_without_a_score_where_reach_begins_is_left_out():
    cells = [found("none", 512, 1024, 2048), found("yarn", 512)]
    table, _ = reach(*cells)
    assert table["effective_length"].to_dict() == {"none": 2048}


def test_a_score_of_just_the_share_to_keep_holds():
    """119 of 250 are 85 % of 140, though 0.85 x 0.56 is more than 0.476 in floats."""
    cells = [
        asked("passkey", "none", length, [1.0] * hits + [0.0] * (250 - hits))
        for length, hits in ((1024, 140), (2048, 119), (4096, 118))
    ]
    table, _ = reach(*cells)
    assert table.loc["none", "effective_length"] == 2048


def test_a_score_lost_inside_the_window_ends_no_reach_and_the_note_says_so():
    """Only the lengths past the window decide, so a method that misses inside may reach 4096."""
    inside = [found("none", 1024), asked("passkey", "yarn", 1024, [0.0] * 20)]
    table, _ = reach(*inside, found("yarn", 2048, 4096))
    assert table.loc["yarn", "effective_length"] == 4096
    [note] = effective_length.notes(table.reset_index())
    assert "the cost inside the window does not" in note


def test_a_divergence_has_no_reach():
    """Under `none` it is not 0 where the model ships a scaling, and no score to keep anywhere."""
    cell = {
        "run": "a", "model": "m", "task": "window_kl", "metric": "window_kl", "length": 1024,
        "trained_length": 1024, "status": "ok", "score": 0.1, "low": 0.09, "high": 0.11, "n": 3.0,
        "value": 1.0, "weight": 10.0,
    }  # fmt: skip
    rows = [
        {**cell, "scaling": name, "frequencies": name, "unit": unit}
        for name in ("none", "yarn")
        for unit in "abc"
    ]
    with pytest.raises(ValueError, match="no length can be judged"):
        effective_length.make(pd.DataFrame(rows))
