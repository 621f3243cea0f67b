"""Race methods from Python: which one to use at a length."""

from __future__ import annotations

from typing import Any

from harness.cli.recommend import answered
from harness.select.recommend import Recommendation
from ropewalk._run import opened


def recommend(
    model: Any = "reference",
    *,
    tokenizer: Any = None,
    to: str | None = None,
    tolerance: float = 1.0,
    margin: float = 1.0,
    budget: str | int | None = None,
    **settings: Any,
) -> Recommendation:
    """Race the candidates for one length, or continue the race, and return the recommendation.

    ``model`` and ``tokenizer`` are those of ``run``; ``to`` is the engine that will serve the
    method. The settings are those of the command line (``ropewalk recommend --help``):
    ``scaling``, the candidates, ``length``, the target, ``docs``, ``out``, … Progress is shown on
    stderr. Raises UserError before any weight is read.
    """
    name, loaded = opened(model, tokenizer, settings)
    spent = None if budget is None else str(budget)
    found = answered({"model": name, **settings}, tolerance, margin, spent, to=to, loaded=loaded)
    assert found is not None  # only a dry run has no answer
    return found
