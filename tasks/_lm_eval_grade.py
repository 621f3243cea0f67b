"""Grade a document of lm-evaluation-harness by its task's own filters and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks._lm_eval_load import Wanted, working
from tasks.types import (
    Fact,
    Generated,
    Group,
    GroupResponse,
    LoglikelihoodResponse,
    ModelRequest,
    ModelResponse,
)

# Metrics of which less is better, as the reports know them; more is better of all others.
LOWER = {
    "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter",
}  # fmt: skip


@dataclass(frozen=True)
class Doc:
    """One document of a task, with its requests in lm-eval's order and the question of all."""

    task: Any
    requests: tuple[Any, ...]
    metric: str
    filter: str
    question: Group


def grade(document: Doc, answer: GroupResponse) -> tuple[float, int, dict[str, Fact]]:
    answers, parts = iter(answer.parts), iter(document.question.parts)
    asked = []
    for request, count in document.requests:
        taken = [(next(parts), next(answers)) for _ in range(count)]
        response = _response(request.request_type, taken)
        asked.append(replace(request, resps=[response] * (request.repeats or 1), filtered_resps={}))
    task = document.task
    facts: dict[str, Fact] = {}
    for one in task._filters:
        one.apply(asked)
        results = [request.filtered_resps[one.name] for request in asked]
        with working(task.task_name, "grade"):
            metrics = task.process_results(asked[0].doc, results)
        facts |= {f"{metric},{one.name}": _fact(value) for metric, value in metrics.items()}
        if one.name == document.filter:
            value = _value(document, metrics)
    facts["said"] = _said(asked)
    return *value, facts


def _response(kind: str, taken: Sequence[tuple[ModelRequest, ModelResponse]]) -> Any:
    """Return the answer to a request as lm-eval's models give it."""
    question, answer = taken[0]
    if isinstance(answer, Generated):
        return answer.text
    scored = [answer for _, answer in taken if isinstance(answer, LoglikelihoodResponse)]
    logprob = -math.fsum(loss for answer in scored for loss in answer.nll)
    if kind == "loglikelihood_rolling":
        return logprob
    return logprob, scored[0].argmax[:-1] == tuple(question.tokens[question.start :])


def _said(requests: Sequence[Any]) -> str | list[float]:
    """Return the text, or the log-probability of every request."""
    responses = [request.resps[0] for request in requests]
    if isinstance(responses[0], str):
        return responses[0]
    return [one[0] if isinstance(one, tuple) else one for one in responses]


def _value(document: Doc, metrics: dict[str, Any]) -> tuple[float, int]:
    metric = document.metric
    if metric not in metrics:
        raise ValueError(f"the task gives {', '.join(metrics)}, and no {metric}")
    given, made = metrics[metric], document.question.metadata["made"]
    if made == "mean":
        return float(given), 1
    logprob, weight = given if isinstance(given, tuple) else (given, 1)
    return -float(logprob) / (math.log(2) if made == "bits" else 1), int(weight)


def _fact(value: Any) -> Fact:
    """Return a metric of a document as a record holds it."""
    if isinstance(value, tuple) and all(isinstance(part, int | float) for part in value):
        return [float(part) for part in value]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)


def chosen_metric(task: Any, wanted: Wanted, length: int) -> str:
    """Return the metric that is the score; raise ValueError for one that is no sum over documents.

    Of metrics that are named for lengths, as RULER's are, it is that of the cell's.
    """
    every = [str(name) for name in task.aggregation()]
    lengths = bool(every) and all(name.isdigit() for name in every)
    metric = wanted.metric or (str(length) if lengths else every[0])
    if not lengths and metric not in every:
        raise ValueError(f"{wanted.tasks} has no metric {metric}; it has {', '.join(every)}")
    known = task.higher_is_better().get(metric, True) or metric in LOWER
    if not known or not made_of(task, metric):
        can = [name for name in every if name != metric and made_of(task, name)]
        raise ValueError(
            f"{metric} of {wanted.tasks} is not made of one value a document, or less of it is"
            f" better in a way reports do not know; choose another with metric={'|'.join(can)}"
        )
    return metric


def made_of(task: Any, metric: str) -> str:
    """Return what a metric makes of its documents: mean, exp, bits, or "" for anything else."""
    from lm_eval.api.registry import get_aggregation

    aggregate = task.aggregation().get(metric, get_aggregation("mean"))
    if aggregate in (get_aggregation("perplexity"), get_aggregation("weighted_perplexity")):
        return "exp"
    if aggregate is get_aggregation("bits_per_byte"):
        return "bits"
    try:
        return "mean" if aggregate([0.0, 1.0, 1.0, 0.25]) == 0.5625 else ""
    except Exception:  # noqa: BLE001  # it takes something else than numbers
        return ""


def chosen_filter(task: Any, wanted: Wanted) -> str:
    names = [one.name for one in task._filters]
    if wanted.filter and wanted.filter not in names:
        raise ValueError(f"{wanted.tasks} has no filter {wanted.filter}; it has {', '.join(names)}")
    return wanted.filter or names[0]
