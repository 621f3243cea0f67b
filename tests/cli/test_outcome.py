"""What a run shows at its end: one screen."""

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from ropewalk.harness.api.report import Reports
from ropewalk.harness.cli import outcome
from ropewalk.harness.reports._write import write_reports
from tests.frames import asked, sweep

pytestmark = pytest.mark.usefixtures("scored")


def shown(**changes: object) -> list[str]:
    return lines_of(sweep(**changes))


def lines_of(frame: pd.DataFrame) -> list[str]:
    """Return the lines of the last screen, 80 columns wide."""
    console = Console(width=80, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    page = Path("run/reports/index.html")
    reports = Reports(frame.assign(reason=None), write_reports(frame, None, ["best"]), page=page)
    outcome.print_brief(reports, [Path("run")], console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lengths": (256, 512, 768, 1024, 1536, 2048)},
        {"models": [f"model-{number}" for number in range(12)]},
    ],
)
def test_the_last_screen_is_the_recommendation_and_eight_lines(changes):
    lines = shown(**changes)
    assert lines[0].startswith("Use yarn")
    assert lines[0].endswith("at 8x (2,048 tokens): the best on every task")
    assert len(lines) <= 1 + 8
    assert max(map(len, lines)) <= 80
    assert lines[-2].endswith("run/reports/index.html")
    assert lines[-1] == "More tables and figures: ropewalk report run --report all"
    assert any("more models" in line for line in lines) == ("models" in changes)


def test_the_last_screen_names_a_winner_or_a_bound():
    """Eight of eight keys have a bound, 32 of 32 win, and of two that found all one is named."""
    hits = {"none": [0.0] * 8, "yarn": [1.0] * 8, "pi": [1.0, 0.0] * 4}
    rows = [row for name, hit in hits.items() for row in asked("passkey", name, 2048, hit)]
    text = " ".join(" ".join(lines_of(pd.DataFrame(rows))).split())
    assert text.startswith("Use yarn at 2x (2,048 tokens): at most")
    two = [row for name in ("yarn", "pi") for row in asked("passkey", name, 2048, [1.0] * 20)]
    text = " ".join(" ".join(lines_of(pd.DataFrame(two))).split())
    assert "Use pi at 2x (2,048 tokens): at most 13 pp worse" in text
    few = [row for name, hit in hits.items() for row in asked("passkey", name, 2048, hit * 4)]
    text = " ".join(" ".join(lines_of(pd.DataFrame(few))).split())
    assert "accuracy: 100 % [89, 100]; winner: 50 percentage points [" in text
