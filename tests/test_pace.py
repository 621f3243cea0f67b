"""The time left: from what a sweep costs and a measured rate, shown before, during and after."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cli.progress import Measuring
from harness.sweep import pace as module
from harness.sweep.backend import ThisProcess
from harness.sweep.measure import measure
from harness.sweep.pace import Pace
from harness.sweep.parse import parse
from harness.sweep.plan import Plan, make_plan
from tests.command_line import Ropewalk

GIVEN: dict[str, Any] = {
    "scaling": ["none", "rerope"],
    "task": ["perplexity:tail=16,protocol=prefix", "passkey:depths=2,trials=2"],
    "length": ["5x", "8x"],
}


@pytest.fixture(scope="module")
def plan(tiny: Path, docs: Path) -> Plan:
    """Return a sweep whose forwards are shared by many samples, and one whose are not."""
    return make_plan(parse(None, {**GIVEN, "model": str(tiny), "docs": str(docs)}))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time in seconds, which stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def begun(plan: Plan, known: dict[str, float] | None = None) -> tuple[Pace, list[Any]]:
    work = plan.work(set())
    pace = Pace.of(plan, work, known or {})
    pace.begin()
    return pace, [item for batch in work for item in batch.items]


def test_the_time_left_is_that_of_the_cost_left(plan: Plan, clock: list[float]) -> None:
    """At a steady rate every estimate is right, though one forward answers many samples."""
    pace, items = begun(plan)
    whole = sum(part.cost for part in pace.parts)
    for item in items:
        before = sum(part.cost for part in pace.parts)
        part = pace.part_of[item.key]
        needed = part.needs[item.key]
        clock[0] += sum(part.left[s].operations for s in needed if s in part.left) / whole * 60
        pace.answer(item, 0.0)
        left = sum(part.cost for part in pace.parts)
        assert left <= before
        assert pace.seconds_left() == pytest.approx(60 * left / whole, abs=1e-6)
    assert pace.share() == pytest.approx(1)


def test_a_long_sample_has_a_time_left(plan: Plan, clock: list[float]) -> None:
    """Before the first answer the layers that are done tell the rate, and time runs down."""
    pace, _ = begun(plan)
    assert pace.seconds_left() is None
    first = pace.parts[0].steps.steps[0]
    clock[0] += 40
    pace.layers(first.tokens / 2)
    whole = sum(part.cost for part in pace.parts)
    expected = 40 * (whole / (first.operations / 2) - 1)
    assert pace.seconds_left() == pytest.approx(expected)
    clock[0] += 5
    assert pace.seconds_left() == pytest.approx(expected - 5)


def test_a_rate_is_kept_for_the_next_sweep(plan: Plan, clock: list[float]) -> None:
    """On a machine that measured this model the time is known before; on another it is not."""
    pace, items = begun(plan)
    clock[0] += 50
    for item in items:
        pace.answer(item, 0.0)
    module.keep_rates(plan, "this machine", pace)
    again, _ = begun(plan, module.known_rates(plan, "this machine"))
    assert again.seconds_left() == pytest.approx(50, rel=0.2)
    assert module.known_rates(plan, "another machine") == {}


def test_a_log_has_times_and_a_repeat_is_complete(plan: Plan, tmp_path: Path) -> None:
    """Lines say what goes on first, each cell with the clock, the rate and the time left."""
    for wanted in (r"^\d\d:\d\d:\d\d Loading the weights", r"^\d\d:\d\d:\d\d Complete: nothing"):
        told = io.StringIO()
        watching = Measuring(Console(file=told, width=200), plan, "test")
        measure(plan, tmp_path / "run", watching, ThisProcess("cpu", watching.passing))
        lines = told.getvalue().splitlines()
        assert re.match(wanted, lines[0])
        if len(lines) > 1:
            assert len(lines) == 9
            assert all("tokens/s" in line and "left" in line for line in lines[1:])


def test_a_dry_run_says_how_long(
    tiny: Path, docs: Path, tmp_path: Path, ropewalk: Ropewalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a rate of this machine it says so; where all is measured, that there is nothing."""
    monkeypatch.setattr(module.constants, "HF_ASSETS_CACHE", str(tmp_path / "no rates"))
    words = ["run", "--model", tiny, "--docs", docs, "--length", "1x", "--scaling", "none",
             "--task", "perplexity:tail=16", "--out", tmp_path / "run"]  # fmt: skip
    assert "time unknown on this machine yet" in " ".join(ropewalk(*words, "--dry-run").out.split())
    assert ropewalk(*words).status == 0
    assert "Complete: nothing to measure." in ropewalk(*words, "--dry-run").out
