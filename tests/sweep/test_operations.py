"""The progress of a sweep runs over its counted operations, at the speed that it has."""

import io
import re
from pathlib import Path

from harness.cli.console import Lines
from harness.cli.progress import Measuring
from harness.sweep.backend import ThisProcess
from harness.sweep.measure import Session
from harness.sweep.plan import Plan, make_plan
from harness.sweep.spec import parse


def make(tiny: Path, docs: Path) -> Plan:
    """Return a sweep whose forwards are shared by many samples, and one whose are not."""
    given = {
        "scaling": ["none", "rerope"],
        "task": ["perplexity:protocol=prefix", "passkey:depths=2,trials=2"],
        "length": ["5x", "8x"],
    }
    return make_plan(parse(None, {**given, "model": str(tiny), "docs": str(docs)}))


def test_the_bar_ends_at_its_total_and_the_log_says_what_is_left(tiny, docs, tmp_path):
    plan = make(tiny, docs)
    console = Lines(file=io.StringIO(), width=100)
    progress = Measuring(console)
    session = Session(tmp_path / "run", ThisProcess(plan.checkpoint.device, progress.passing))
    samples = list(progress(plan, session.measure(plan)))
    assert progress.bar is not None
    (task,) = progress.bar.tasks
    assert samples
    assert task.completed == task.total
    lines = console.file.getvalue().splitlines()
    assert any(re.search(r"1/8 cells: .* tokens/s, time left \d:\d\d:\d\d", line) for line in lines)
    assert "8/8 cells" in lines[-1]
