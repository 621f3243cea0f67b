"""What a user's file may do that no contract allows: told at once, or at the cost of its cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.command_line import Ropewalk, sweep, write_task

pytestmark = pytest.mark.usefixtures("scored")

SAMPLE = "Sample(request.doc_id, math.fsum(response.nll), len(response.nll), facts)"
SCORE = "    return Score(*ratio"
ASKS = "yield from make(documents, length, layout)"


@pytest.fixture
def run(
    tiny: Path, docs: Path, tmp_path: Path, ropewalk: Ropewalk, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return a small sweep by these tasks into the folder ``run``."""
    monkeypatch.chdir(tmp_path)
    return lambda *task: ropewalk(
        *sweep(tiny, docs, Path("run"), task=task, scaling=["none"], length=["5x"])
    )


@pytest.mark.slow
def test_a_grade_or_score_that_no_record_can_hold_fails_its_cells_alone(run, ropewalk):
    faults = {
        "a": (SAMPLE, "exit(0)", "failed: SystemExit: 0 at "),
        "h": (SAMPLE, SAMPLE.replace("math.fsum(response.nll)", "math.inf"), "with the value inf"),
        "k": (SCORE, f"    return None\n{SCORE}", "it scored with NoneType, not Score."),
    }
    for name, (before, after, _) in faults.items():
        write_task(lambda text, before=before, after=after: text.replace(before, after, 1))
        Path("mine.py").rename(f"{name}.py")
    tasks = [f"./{name}.py:tail=16" for name in faults]
    done = run(*tasks, "perplexity:tail=16")
    again = ropewalk("report", "run", "--task", *tasks, "--report", "cells")
    for ended, shown in ((done, done.err + done.out), (again, again.out)):
        assert ended.status == 1
        for name, (*_, message) in faults.items():
            told = [line for line in shown.splitlines() if message in line]
            assert any(f"task {name}:tail=16" in line for line in told), name
    table = pd.read_csv(Path("run") / "reports" / "cells.csv")
    statuses = dict(zip(table["task"].str.partition(":")[0], table["status"], strict=True))
    assert statuses == {**dict.fromkeys(faults, "failed"), "perplexity": "ok"}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "message"), [
    (ASKS, "yield 3", "task mine:tail=16: it yields int, not Request."),
    (ASKS, "yield Loglikelihood((-1,) * length, 1, doc_id='a')",
     "token -1 is not in the vocabulary"),
    (ASKS, "yield Loglikelihood((1,) * 9, 1, doc_id='a')",
     "a: its 9 tokens are not a length of the sweep."),
    (ASKS, "yield from ()", "ask yields no request, at no length of the sweep."),
    ("VERSION = 1", "VERSION = 'a'", "VERSION must be a whole number and METRIC a text."),
])  # fmt: skip
@pytest.mark.usefixtures("weightless")
def test_a_task_that_no_record_can_hold_is_refused(before, after, message, run):
    done = run(*write_task(lambda text: text.replace(before, after, 1)))
    assert (done.status, message in done.err) == (2, True)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("None", "it made NoneType, neither a DataFrame nor a figure"),
        ("pd.DataFrame()", "its table is empty"),
        ("exit(3)", "SystemExit"),
    ],
)
def test_a_report_that_makes_anything_is_a_sentence(made, told, small, tmp_path, ropewalk):
    own, out = tmp_path / "mine.py", tmp_path / "out"
    own.write_text(f"import pandas as pd\ndef make(frame):\n    return {made}\n")
    done = ropewalk("report", small, "--report", own, "cells", "--out", out)
    assert (done.status, told in " ".join(done.out.split())) == (1, True)
    assert {file.stem for file in out.iterdir()} == {"cells"}
