"""What a run shows at its end: one screen."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from harness.cli import outcome
from harness.reports._write import write_reports
from tests.frames import asked, sweep

pytestmark = pytest.mark.usefixtures("scored")


def shown(**changes: object) -> list[str]:
    return lines_of(sweep(**changes))


def lines_of(frame: pd.DataFrame) -> list[str]:
    """Return the lines of the last screen, 80 columns wide."""
    console = Console(width=80, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    outcome.brief(frame, write_reports(frame, None, ["best"]), console)
    outcome.print_rest(Path("run/reports/index.html"), [Path("run")], console)
    return console.file.getvalue().splitlines()


@pytest.mark.slow
def test_the_last_screen_is_one() -> None:
    """The best method of every longer length, one table, and where the rest is, in 40 lines."""
    lines = shown()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 80
    [four] = [line for line in lines if line.startswith("At 4x (1,024 tokens)")]
    assert "on all tasks: use" in four
    assert lines[-2].endswith("run/reports/index.html")
    assert lines[-1] == "More tables and figures: ropewalk report run --report all"


@pytest.mark.slow
def test_the_last_screen_stays_one_of_many_methods_and_lengths() -> None:
    """The longest lengths and the best methods stay, and what is left out is counted."""
    names = ("none", *(f"mine{number}" for number in range(20)))
    lines = shown(scalings=names, lengths=(256, 512, 768, 1024, 1536, 2048))
    assert len(lines) < 40
    assert any("shorter lengths" in line for line in lines)
    assert any("more methods" in line for line in lines)


def test_the_last_screen_names_a_winner_or_a_bound() -> None:
    """Eight of eight keys have a bound, 32 of 32 win, and of two that found all one is named."""
    hits = {"none": [0.0] * 8, "yarn": [1.0] * 8, "pi": [1.0, 0.0] * 4}
    rows = [row for name, hit in hits.items() for row in asked("passkey", name, 2048, hit)]
    text = " ".join(" ".join(lines_of(pd.DataFrame(rows))).split())
    assert "use yarn 100% [68, 100]; at most" in text
    two = [row for name in ("yarn", "pi") for row in asked("passkey", name, 2048, [1.0] * 20)]
    text = " ".join(" ".join(lines_of(pd.DataFrame(two))).split())
    assert "use pi 100% [84, 100]; at most 13 percentage points worse than the best of 2" in text
    few = [row for name, hit in hits.items() for row in asked("passkey", name, 2048, hit * 4)]
    text = " ".join(" ".join(lines_of(pd.DataFrame(few))).split())
    assert "use yarn 100% [89, 100]; winner: 50 percentage points [" in text


def test_the_last_screen_tells_two_tasks_of_one_measure_apart() -> None:
    """Both lines are of passkey accuracy: each has its task's label."""
    rows = [
        row
        for task, count in (("passkey:trials=8", 8), ("passkey:trials=1", 1))
        for name, hit in (("none", 0.0), ("yarn", 1.0))
        for row in asked(task, name, 2048, [hit] * count)
    ]
    text = " ".join(" ".join(lines_of(pd.DataFrame(rows))).split())
    assert "passkey accuracy (passkey:trials=8): use yarn 100%" in text
    assert "passkey accuracy (passkey:trials=1): use yarn 100%" in text
