"""RULER under one name: eleven of its tasks, thirteen with data given, and their mean (2404.06654).

The parts are the needle tests, variable tracking, common and frequent words, with equally many
trials. ``squad=`` and ``hotpotqa=`` add ``qa_1`` and ``qa_2``, with data as task qa reads them.
Without these two, the mean is not that of RULER's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ropewalk.tasks import _retrieval, common_words, frequent_words, niah, qa, variable_tracking
from ropewalk.tasks._prompt import Chat
from ropewalk.tasks._retrieval import score
from ropewalk.tasks.types import Count, Generate, Generated, Request, Sample, TaskContext

__all__ = ["METRIC", "VERSION", "about", "ask", "grade", "score"]
VERSION = 5
METRIC = "recall"
PARTS: dict[str, Callable[..., Iterator[Request]]] = {
    **{
        f"niah_{name}": partial(niah.ask, preset=name, depths=0)
        for name in niah.PRESETS
        if not name.endswith("_basic")  # of RULER v2
    },
    "vt": variable_tracking.ask,
    "cwe": common_words.ask,
    "fwe": frequent_words.ask,
}


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    squad: str = "",
    hotpotqa: str = "",
    trials: Count = 5,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``trials`` prompts of every part at every length, each of the exact length.

    Raises ValueError, with the name of the part, where one cannot fit.
    """
    parts = PARTS | {
        name: partial(qa.ask, data=data) for name, data in given(squad, hotpotqa).items()
    }
    for name, part in parts.items():
        try:
            for request in part(context, lengths, seed=seed, trials=trials, chat=chat):
                facts = {**request.metadata, "part": name}
                yield replace(request, doc_id=f"{name} {request.doc_id}", metadata=facts)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def given(squad: str, hotpotqa: str) -> dict[str, str]:
    """Return the data of the parts that need data, of those that have it."""
    return {name: data for name, data in (("qa_1", squad), ("qa_2", hotpotqa)) if data}


def about(
    requests: Sequence[Request], *, squad: str = "", hotpotqa: str = "", **options: Any
) -> Mapping[str, Any]:
    """Return what the record says of the data."""
    named = given(squad, hotpotqa).items()
    return {name: qa.read(data).facts for name, data in named}


def grade(request: Generate, response: Generated, context: TaskContext) -> Sample:
    """Return the share of the answers that occur in a text; of qa_1 and qa_2 any of them counts."""
    task = qa if "query" in request.metadata else _retrieval
    sample: Sample = task.grade(request, response, context)
    return sample
