"""Retrieval of a five-digit passkey hidden in filler text (arXiv:2305.16300, Mohtashami & Jaggi).

A prompt has exactly the token length of its cell, answer included. Greedy decoding gives the
answer if and only if two conditions hold: every answer token is the argmax given the tokens before
it, and the next argmax does not continue the number. So one forward pass decides a trial, and
nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from random import Random
from typing import Literal

from ropewalk.tasks._prompt import (
    FILLER,
    Chat,
    Frame,
    around,
    continued,
    grid,
)
from ropewalk.tasks._retrieval import sample, score
from ropewalk.tasks.types import (
    Count,
    Document,
    Fact,
    Loglikelihood,
    LoglikelihoodResponse,
    Sample,
    TaskContext,
)

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
LOGPROB = True  # of the answer, in the facts of a sample of targets
# The text of Mohtashami & Jaggi, as most papers of the field use it.
INTRODUCTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them."
    " I will quiz you about the important information there.\n"
)
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key?"
REPLY = " The pass key is"  # after the question; in a chat the beginning of the reply, as in RULER

Filler = Literal["standard", "documents"]


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    depths: Count = 5,
    trials: Count = 5,
    filler: Filler = "standard",
    chat: Chat = False,
) -> Iterator[Loglikelihood]:
    """Yield a grid of ``depths`` evenly spaced depths x ``trials`` keys at every length.

    The keys depend only on seed, depth and trial, so all methods and lengths share them. With
    ``chat`` the prompt is a user's message in the tokenizer's chat template, and the reply begins
    with the words "The pass key is". Raises ValueError when a prompt cannot fit, naming the least
    length.
    """
    for length in lengths:
        for place, (depth, trial, doc_id) in enumerate(grid(depths, trials)):
            draw = Random(f"{seed}/{place // trials}/{trial}")
            key = draw.randrange(10_000, 100_000)
            asked = prompt(context, length, key, depth, filler=filler, draw=draw, chat=chat)
            facts: dict[str, Fact] = {"depth": depth, "trial": trial, "key": str(key)}
            yield replace(asked, doc_id=doc_id, metadata={**facts, **asked.metadata})


def prompt(
    context: TaskContext,
    length: int,
    key: int,
    depth: float,
    *,
    filler: Filler,
    draw: Random,
    chat: Chat = False,
) -> Loglikelihood:
    """Return a prompt of exactly ``length`` tokens, and in its facts where the needle begins.

    ``depth`` 0 puts the needle before all filler, and 1 after it. The needle lies between whole
    sentences of the standard filler. Only the last sentence before the question may be cut, and
    then it follows the needle of depth 1 too.
    """
    frame, needle = framed(context, key, chat=chat)
    if filler == "documents":
        space = frame.room(length, len(needle)) - len(needle)
        text, start = _excerpt(context.documents(), space, draw), round(depth * space)
        middle, place = [*text[:start], *needle, *text[start:]], len(frame.head) + start
    else:
        sentences = cycle([continued(context, sentence) for sentence in FILLER])
        middle, (place,) = frame.hide(length, sentences, [(depth, needle)])
    tokens = [*frame.head, *middle, *frame.tail, *frame.answer]
    start, facts = length - len(frame.answer), {"needle": place}
    return Loglikelihood(tokens, start, doc_id="prompt", metadata=facts)


def framed(context: TaskContext, key: int, *, chat: Chat = False) -> tuple[Frame, list[int]]:
    """Return the text around the filler, with the key as the answer, and the needle."""
    frame = around(context, INTRODUCTION, QUESTION, REPLY, f" {key}", chat=chat)
    return frame, continued(context, NEEDLE.format(key=key))


def _excerpt(documents: Sequence[Document], room: int, draw: Random) -> Sequence[int]:
    """Draw ``room`` consecutive tokens from one of the documents that have so many."""
    fitting = [document for document in documents if len(document.tokens) >= room]
    if not fitting:
        longest = max((len(document.tokens) for document in documents), default=0)
        raise ValueError(f"no document holds {room} tokens of filler; the longest has {longest}")
    tokens = draw.choice(fitting).tokens
    first = draw.randrange(len(tokens) - room + 1)
    return tokens[first : first + room]


def grade(request: Loglikelihood, response: LoglikelihoodResponse, context: TaskContext) -> Sample:
    """Score 1 when greedy decoding gives exactly the key and then stops the number.

    The fact ``found`` says what kind of answer it was: ``exact``, ``format`` or ``wrong``.
    """
    key = tuple(request.tokens[request.start :])
    answer, following = response.argmax[:-1], response.argmax[-1]
    said = context.decode(key)
    ends = not context.decode((*key, following))[len(said) :][:1].isdigit()
    exact = ends and answer == key
    kind = "exact" if exact else "format" if ends and _has_digits(context, answer, key) else "wrong"
    text = context.decode(answer).strip()
    return sample(request, exact, found=kind, logprob=-sum(response.nll), argmax=text)


def _has_digits(context: TaskContext, answer: Sequence[int], key: Sequence[int]) -> bool:
    """Return whether every digit of the key is the most likely one, given the key before it.

    Another token may be more likely only beside the number, at white space or a sign, such as a
    single space token before it. It may also be a word without other digits. Nothing is decoded.
    """
    digits = [
        ["".join(filter(str.isdigit, context.decode([token]))) for token in tokens]
        for tokens in (answer, key)
    ]
    number = "".join(digits[1])
    pairs = zip(*digits, strict=True)
    return all(one == other if other else number.startswith(one) for one, other in pairs)
