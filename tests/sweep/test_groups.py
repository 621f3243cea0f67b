"""What is given out to workers apart has the bits of what is computed together."""

from pathlib import Path
from typing import Any

import pytest

from harness.backends.workers import split
from harness.engine import DEFAULT
from harness.sweep.backend import ThisProcess, ready, replies
from harness.sweep.plan import Plan, make_plan
from harness.sweep.spec import parse

Answers = dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def plan(tiny: Path, docs: Path) -> Plan:
    """Return a sweep of questions that share much, some and nothing, with bands and without."""
    given = {
        "model": str(tiny),
        "docs": str(docs),
        "scaling": ["none", "yarn", "rerope"],
        "task": ["perplexity:tail=16", "passkey:depths=2,trials=1"],
        "length": ["5x", "8x"],
        "device": "cpu",
    }
    return make_plan(parse(None, given))


@pytest.fixture(scope="module")
def together(plan: Plan) -> Answers:
    """Return every answer of one process that has all questions at once."""
    found = ThisProcess("cpu").answers(plan, plan.work(set()), DEFAULT)
    return {item.key: reply.outcome for item, reply in found}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, 100])
def test_batches_change_no_bit(workers, plan, together):
    """Few batches or many: every question has one answer, and it is the same bit for bit."""
    model, apart = ready(plan.checkpoint), {}
    for batch in split(plan.work(set()), workers):
        for key, reply in replies(model, plan.checkpoint, batch.rotation, batch.questions, DEFAULT):
            assert key not in apart
            apart[key] = reply.outcome
    assert apart == together
