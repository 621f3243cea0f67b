"""RULER's questions on paragraphs, of SQuAD or HotpotQA, among other paragraphs (arXiv:2404.06654).

``data`` is a JSON file as its authors publish it, or a data set. A text of ``new`` tokens counts
where any of the answers occurs in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from tasks._paragraphs import filled, listed, others, read
from tasks._prompt import around, continued
from tasks._retrieval import check_trials, make_request, new_tokens, room, score, shown
from tasks.types import Fact, Generate, Generated, Request, Sample, TaskContext

__all__ = ["FACTS", "METRIC", "VERSION", "about", "answers", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
EXAMPLE_OPTIONS = "data=rajpurkar/squad_v2"
FACTS = {"trial": int, "query": str, "answer": str, "said": str}
TOLD = (
    "Answer the question based on the given documents."
    " Only give me the answer and do not output any other words.\n\n"
)
BEFORE = f"{TOLD}The following are given documents.\n\n"
AFTER = f"{TOLD}Question: {{query}}"
REPLY = " Answer:"
LINE = "\n"  # between answers in a record


def ask(
    source: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    data: str = "",
    new: int = 32,
    trials: int = 25,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``trials`` prompts of every length, each of the exact length.

    Request, paragraphs and their order depend on seed and trial alone; a longer prompt has more
    of them, and the one that was added last is cut. Raises ValueError where the paragraphs of a
    question do not fit, naming the least length.
    """
    check_trials(trials)
    new = new_tokens("text", new)
    if not data:
        raise ValueError(
            "name the questions: data=FILE.json, or data=NAME:config=…+split=… of a data set"
        )
    known = read(data)
    if trials > len(known.questions):
        raise ValueError(f"{data} has {len(known.questions)} questions, fewer than trials={trials}")
    drawn = Random(f"{seed}/questions").sample(known.questions, trials)
    written = cache(lambda text: continued(source, text))
    for length in lengths:
        for trial, one in enumerate(drawn):
            frame = around(source, BEFORE, AFTER.format(query=one.query), REPLY, chat=chat)
            own = listed(written, one.paragraphs)
            space = room(length, frame, new, len(own))
            more = others(known, one, Random(f"{seed}/{trial}/others"))
            made = filled(written, one, more, space, Random(f"{seed}/{trial}/order"))
            facts: dict[str, Fact] = {
                "trial": trial, "query": one.query, "answer": LINE.join(one.answers),
            }  # fmt: skip
            asked = make_request(f"trial {trial}", frame, made, facts, new)
            yield replace(asked, graded_by=str(facts["answer"]))  # which no prompt holds


def about(source: TaskContext, *, data: str = "", **options: Any) -> Mapping[str, Any]:
    """Return what the record says of the data."""
    del source, options
    return {"data": read(data).facts}


def answers(question: Request, source: TaskContext) -> list[str]:
    """Return the answers of which any counts."""
    del source
    return str(question.metadata["answer"]).split(LINE)


def grade(request: Generate, response: Generated, context: TaskContext) -> Sample:
    """Score 1 when any of the answers occurs in the text, case aside."""
    said = response.text.lower()
    hit = any(one.lower() in said for one in answers(request, context))
    return Sample(request.doc_id, float(hit), 1, {**request.metadata, "said": shown(response.text)})
