"""What a user's file may do that no contract allows: told at once, or at the cost of its cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.command_line import Ropewalk, sweep, write_task

pytestmark = pytest.mark.usefixtures("scored")

TASK = {"task": ["perplexity:tail=16"], "scaling": ["none"], "length": ["5x"]}
SAMPLE = "Sample(request.doc_id, math.fsum(response.nll), len(response.nll), facts)"


@pytest.fixture
def run(
    tiny: Path, docs: Path, tmp_path: Path, ropewalk: Ropewalk, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return a small sweep into the folder ``run``."""
    monkeypatch.chdir(tmp_path)
    return lambda **changes: ropewalk(*sweep(tiny, docs, Path("run"), **{**TASK, **changes}))


@pytest.fixture
def mine(run: Callable[..., Any]) -> Callable[[str, str], Any]:
    """Return a sweep of the built-in perplexity, and of a copy of it with one change."""

    def call(before: str, after: str) -> Any:
        return run(task=write_task(lambda text: text.replace(before, after, 1)))

    return call


def statuses() -> dict[str, str]:
    table = pd.read_csv(Path("run") / "reports" / "cells.csv")
    return dict(zip(table["task"].str.partition(":")[0], table["status"], strict=True))


def grading(answer: str) -> tuple[str, str]:
    """Return the grade of the built-in perplexity, and another."""
    return SAMPLE, answer


def scoring(line: str) -> tuple[str, str]:
    """Return a line of the built-in score, and another before it."""
    return "    return Score(*ratio", f"    {line}\n    return Score(*ratio"


FAULTS: dict[str, tuple[tuple[str, str], str]] = {
    "a": (grading("exit(0)"), "failed: SystemExit: 0 at "),
    "h": (grading(SAMPLE.replace("math.fsum(response.nll)", "math.inf")), "with the value inf"),
    "k": (scoring("return None"), "it scored with NoneType, not Score."),
}


@pytest.mark.slow
def test_a_grade_or_score_that_no_record_can_hold_fails_its_cells_alone(run):
    tasks = []
    for name, (change, _) in FAULTS.items():
        write_task(lambda text, change=change: text.replace(*change, 1))
        Path("mine.py").rename(f"{name}.py")
        tasks.append(f"./{name}.py:tail=16")
    done = run(task=[*tasks, "perplexity:tail=16"])
    assert done.status == 1
    for name, (_, message) in FAULTS.items():
        told = [line for line in (done.err + done.out).splitlines() if message in line]
        assert any(f"task {name}:tail=16" in line for line in told), name
    assert statuses() == {**dict.fromkeys(FAULTS, "failed"), "perplexity": "ok"}


ASKS = "Loglikelihood(window.tokens, window.start, doc_id=window.doc_id, metadata=facts)"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "message"), [
    (ASKS, "3", "task mine:tail=16: it yields int, not Request."),
    (ASKS, ASKS.replace("window.tokens", "(-1,) * length"), "token -1 is not in the vocabulary"),
    (ASKS, "Loglikelihood((1,) * 9, 1, doc_id='a')",
     "a: its 9 tokens are not a length of the sweep."),
    (f"yield {ASKS}", "yield from ()", "ask yields no request, at no length of the sweep."),
    ("VERSION = 1", "VERSION = 'a'", "VERSION must be a whole number and METRIC a text."),
])  # fmt: skip
@pytest.mark.usefixtures("weightless")
def test_a_task_that_no_record_can_hold_is_refused(before, after, message, mine):
    done = mine(before, after)
    assert done.status == 2
    assert done.err.startswith("ropewalk: ")
    assert message in done.err


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("None", "it made NoneType, neither a DataFrame nor a figure"),
        ("pd.DataFrame()", "its table is empty"),
        ("exit(3)", "SystemExit"),
    ],
)
def test_a_report_that_makes_anything_is_a_sentence(made, told, small, tmp_path, ropewalk):
    own = tmp_path / "mine.py"
    own.write_text(
        "import pandas as pd\nfrom matplotlib.figure import Figure\n"
        f"def make(frame):\n    return {made}\n"
    )
    out = tmp_path / "out"
    done = ropewalk("report", small, "--report", own, "cells", "--out", out)
    assert done.status == 1
    assert told in " ".join(done.out.split())
    assert {file.stem for file in out.iterdir()} == {"cells"}
