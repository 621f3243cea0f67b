"""Repeat the i-th answer to a request made several times in a conversation (MRCR, OpenAI 2025).

The answers are passages of your documents. Among requests of other kinds and topics, one is made
``needles`` times (2, 4 or 8 in published tables), each time with another passage. The last request
asks for one of these, after a given prefix. A text that does not begin with the prefix scores 0;
otherwise the score is difflib's ratio of what follows to the passage. With ``chat=true`` the
conversation has the turns of the chat template; otherwise it is a transcript.

Differs from OpenAI's data set: passages stand for the poems and essays that a model wrote there,
each has ``passage`` tokens, and the first of all is longer, which makes the length exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, chain
from random import Random
from string import ascii_letters, digits
from typing import Annotated

from pydantic import Field

from ropewalk.tasks._prompt import Frame, continued, words
from ropewalk.tasks._retrieval import sample, score, shown
from ropewalk.tasks.types import Count, Fact, Generate, Generated, Request, Sample, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "ratio"
KINDS = ("poem", "story", "essay", "letter", "speech", "review", "news article", "blog post")
TOPICS = 8  # of a conversation
SPARE = 8  # new tokens beyond those of the prefix and the passage
ASKED = (
    "Write {prefix} and directly after it repeat the {number} {kind} about {topic} in this"
    " conversation. Write nothing else."
)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    needles: Annotated[int, Field(ge=2, le=len(ORDINALS))] = 2,
    passage: Count = 64,
    trials: Count = 25,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``trials`` conversations of every length, each of the exact length.

    Requests, passages and depths depend only on ``needles``, ``passage``, seed and trial. Raises
    ValueError where a conversation cannot fit, and where the documents are too short for it.
    """
    turn = context.turns if chat else _transcript(context)
    text = list(chain.from_iterable(document.tokens for document in context.documents()))
    if len(text) < max(lengths) + needles * passage:
        raise ValueError(
            f"the documents have {len(text)} tokens where {max(lengths) + needles * passage} are"
            " needed"
        )
    for trial in range(trials):
        draw = Random(f"{seed}/{needles}/{passage}/{trial}")
        topics = draw.sample(words("noun"), TOPICS)
        asked = kind, topic = draw.choice(KINDS), draw.choice(topics)
        others = [(a, b) for a in KINDS for b in topics if (a, b) != asked]
        depths, number = sorted(draw.random() for _ in range(needles)), draw.randrange(needles)
        prefix = "".join(draw.choices(ascii_letters + digits, k=10))
        start = draw.randrange(len(text))
        tale = text[start:] + text[:start]  # the needles' passages, then the others
        passages = [tale[at : at + passage] for at in range(0, max(lengths), passage)]
        answers, rest = passages[:needles], passages[needles:]
        hidden = [
            (depth, [*turn(f"Write a {kind} about {topic}.", "next"), *answer])
            for depth, answer in zip(depths, answers, strict=True)
        ]
        requests = [f"Write a {a} about {b}." for a, b in draw.choices(others, k=len(rest) + 1)]
        first = turn(requests[0], "first")
        turns = [
            [*turn(request, "next"), *between]
            for request, between in zip(requests[1:], rest, strict=True)
        ]
        ends = [0, *accumulate(map(len, turns))]
        question = ASKED.format(prefix=prefix, number=ORDINALS[number], kind=kind, topic=topic)
        last = turn(question, "last")
        new = len(continued(context, prefix)) + passage + SPARE
        facts: dict[str, Fact] = {"trial": trial, "depth": depths[number], "prefix": prefix}
        facts["answer"] = context.decode(answers[number]).strip()
        stop = () if chat else ("\nUser:",)
        taken = sum(len(needle) for _, needle in hidden)
        for length in lengths:
            free = Frame(first, last, [], new).room(length, passage + taken) - taken
            count = bisect_right(ends, free - passage) - 1
            frame = Frame([*first, *tale[len(tale) - (free - ends[count]) :]], last, [], new)
            tokens, places = frame.hide(length, turns[:count], hidden)
            stored = {**facts, "needle": places[number]}
            yield frame.request(f"trial {trial}", tokens, stored, stop)


def _transcript(context: TaskContext) -> Callable[[str, str], list[int]]:
    def turn(request: str, place: str) -> list[int]:
        text = f"User: {request}\nAssistant:"
        if place == "first":
            return [*context.opening, *context.encode(text)]
        return continued(context, f"\n{text}")

    return turn


def grade(request: Generate, response: Generated, context: TaskContext) -> Sample:
    """Return the ratio of what follows the prefix to the passage, 0 without the prefix."""
    prefix, answer = (str(request.metadata[name]) for name in ("prefix", "answer"))
    text = response.text.strip()
    ratio = SequenceMatcher(None, text.removeprefix(prefix).strip(), answer).ratio()
    return sample(request, ratio * text.startswith(prefix), said=shown(response.text))
