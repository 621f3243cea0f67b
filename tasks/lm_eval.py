"""A task of lm-evaluation-harness: its prompts, metrics and versions (EleutherAI, 0.4.13 on).

A document is one sample. Its requests are answered one by one and graded together by the task's own
filters and metric. ``tasks=a+b`` measures both, each with its own score.

The length of a cell is the available space. A task that generates its documents (RULER's) gets the
length. A document whose prompt and answer do not fit has the status too_long. Differs from lm-eval,
which truncates such a prompt on the left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any

from tasks._intervals import proportion, ratio
from tasks._lm_eval import Wanted, graded, opened, targets
from tasks.types import CodeFolder, Group, GroupResponse, Sample, Score, TaskContext, no_template

VERSION = 1
EXAMPLE_OPTIONS = "tasks=hellaswag,limit=50"
METRIC = "recall"  # of RULER's tasks, whose metrics are named for lengths; else the task's own
FACTS = {"doc": int, "doc_hash": str, "prompt_hash": str, "target_hash": str, "made": str}


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    tasks: str = "",
    limit: int = 0,
    num_fewshot: int | None = None,
    metric: str = "",
    filter: str = "",
    include: CodeFolder = CodeFolder(""),  # noqa: B008  # a text
    chat: bool = False,
) -> Iterator[Group]:
    """Yield the first ``limit`` documents of a task at every length, 0 for all.

    ``metric`` is one of the task's metrics, by default its first; its score must be made of one
    value per document. ``filter`` is one of the task's filters, by default the first. ``include``
    is a folder with YAML files of your own tasks, whose functions are executed. ``chat`` applies
    the chat template as lm-eval does. Seed 0 draws like lm-eval's default. Raises ValueError for
    tasks that cannot run.
    """
    for name, count in (("limit", limit), ("num_fewshot", num_fewshot or 0)):
        if count < 0:
            raise ValueError(f"{name}={count} is not 0 or more")
    if chat and not getattr(context.tokenizer, "chat_template", None):
        no_template("")
    wanted = Wanted(tasks, limit, num_fewshot, metric, filter, include, chat)
    for length in lengths:
        for document in opened(context, wanted).documents(length, seed):
            yield document.request


def about(context: TaskContext, **options: Any) -> Mapping[str, Any]:
    """Return what the record says of the task: its metric, versions and hashes."""
    return opened(context, Wanted(**options)).about(METRIC)


def answers(request: Group, context: TaskContext) -> list[str | int]:
    """Return what lm-eval compares a text with; of choices, the place of the right one."""
    return targets(context, request)


def grade(request: Group, response: GroupResponse, context: TaskContext) -> Sample:
    """Grade a document by the task's own filters and metric."""
    value, weight, facts = graded(context, request, response)
    return Sample(request.doc_id, value, weight, {**request.metadata, **facts})


def score(samples: Sequence[Sample]) -> Score:
    """Return the mean over documents, or the perplexity, with its 95 % interval.

    For values from 0 to 1, the interval is Wilson's.
    """
    values, weights = [s.value for s in samples], [s.weight for s in samples]
    if samples[0].metadata["made"] == "exp":
        return Score(*ratio(values, weights).exp(), len(samples))
    if 0 <= min(values) <= max(values) <= 1 and set(weights) == {1}:
        hits = fsum(values)
        return Score(hits / len(values), *proportion(hits, len(values)), len(values))
    mean = ratio(values, weights)
    return Score(mean.value, *mean.interval(), len(samples))
