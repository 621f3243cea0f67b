"""The time left: from what a sweep costs and a measured rate, shown before, during and after."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.console import Lines
from harness.cli.progress import Measuring
from harness.sweep import eta
from harness.sweep.backend import ThisProcess
from harness.sweep.eta import ETA, initial_eta, keep_rates
from harness.sweep.measure import Session
from harness.sweep.plan import Plan, make_plan
from harness.sweep.spec import parse

GIVEN: dict[str, Any] = {
    "scaling": ["none", "rerope"],
    "task": ["perplexity:protocol=prefix", "passkey:depths=2,trials=2"],
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
    monkeypatch.setattr(eta.time, "monotonic", lambda: now[0])
    return now


SLOWNESS = {"none": 2e-7, "rerope": 1e-6}  # seconds per operation on some machine


def seconds(eta: ETA) -> float:
    return sum(cost.total * SLOWNESS.get(method, 2e-7) for method, cost in eta.left.values())


def answered(eta: ETA, plan: Plan, clock: list[float]) -> Iterator[float]:
    """Answer every request of a plan on that machine; yield the seconds that are truly left."""
    eta.begin()
    for item in [item for batch in plan.work(set()) for item in batch.items]:
        method, cost = eta.left[item.key]
        clock[0] += SLOWNESS.get(method, 2e-7) * cost.total
        eta.answer(item, 0.0)
        yield seconds(eta)


def test_the_time_left_is_that_of_the_operations_left(plan, clock):
    """After every method was measured it is right, though one forward answers many samples."""
    eta = ETA(plan, plan.work(set()), {})
    whole = seconds(eta)
    for left in answered(eta, plan, clock):
        if "rerope" in eta.measured:
            assert eta.seconds_left() == pytest.approx(left, rel=0.25, abs=0.01 * whole)
    assert eta.share() == pytest.approx(1)


def test_speeds_are_kept_for_the_next_sweep(plan, clock):
    eta = ETA(plan, plan.work(set()), {})
    whole = seconds(eta)
    assert eta.seconds_left() is None
    clock[0] += 3.0  # the weights load
    list(answered(eta, plan, clock))
    keep_rates(plan, "this machine", eta)
    known = initial_eta(plan, plan.work(set()), "this machine")
    assert known.seconds_left() == pytest.approx(whole, rel=0.25)
    assert initial_eta(plan, plan.work(set()), "another machine").seconds_left() is None


def test_a_long_sample_has_a_time_left(plan, clock):
    eta = ETA(plan, plan.work(set()), {})
    eta.begin()
    clock[0] += 40
    eta.layers(next(iter(eta.left.values()))[1].forwarded / 2)
    left = eta.seconds_left()
    assert left > 40
    clock[0] += 5
    assert eta.seconds_left() == pytest.approx(left - 5)


@pytest.mark.slow
def test_a_log_has_times_and_a_repeat_is_complete(plan, tmp_path):
    for wanted in (r"^\d\d:\d\d:\d\d Loading the weights", r"^\d\d:\d\d:\d\d Complete: nothing"):
        text = io.StringIO()
        progress = Measuring(Lines(file=text, width=200), "test")
        session = Session(tmp_path / "run", ThisProcess("cpu", progress.passing))
        list(progress(plan, session.measure(plan)))
        lines = text.getvalue().splitlines()
        assert re.match(wanted, lines[0])
        if len(lines) > 1:
            assert len(lines) == 9
            assert all("tokens/s" in line and "left" in line for line in lines[1:])


@pytest.mark.slow
def test_a_dry_run_says_how_long(tiny, docs, tmp_path, ropewalk, monkeypatch):
    monkeypatch.setattr(eta.constants, "HF_ASSETS_CACHE", str(tmp_path / "no speeds"))
    words = f"run --model {tiny} --docs {docs} --length 1x --scaling none --task perplexity:tail=16"
    run = [*words.split(), "--out", tmp_path / "run"]
    assert "here, estimated from the speed of one matrix product" in " ".join(
        ropewalk(*run, "--dry-run").out.split()
    )
    done = ropewalk(*run)
    assert done.status == 0
    assert "left" in done.err.partition("\n")[0]  # told before the first sample
    assert "Complete: nothing to measure." in ropewalk(*run, "--dry-run").out
