"""Retrieval of a five-digit pass key hidden in filler text (arXiv:2305.16300, Mohtashami & Jaggi).

A prompt has exactly the token length of its cell, answer included. Greedy decoding gives the
answer if and only if every answer token is the argmax given the ones before it and the next argmax
does not continue the number, so one forward decides a trial and nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tasks._prompt import Filler, prompt
from tasks._retrieval import check_trials, grid, score
from tasks.types import (
    Fact,
    Loglikelihood,
    LoglikelihoodResponse,
    Sample,
    TaskContext,
)

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
FACTS = {
    "depth": float, "trial": int, "key": str, "needle": int,
    "found": str, "logprob": float, "argmax": str,
}  # fmt: skip


def ask(
    source: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    depths: int = 5,
    trials: int = 5,
    filler: Filler = "standard",
    chat: bool = False,
) -> Iterator[Loglikelihood]:
    """Yield a grid of ``depths`` evenly spaced depths x ``trials`` keys at every length.

    The keys depend on seed, depth and trial alone, so every method and every length is asked
    for the same ones. With ``chat`` the prompt is a user's message in the tokenizer's chat
    template, and "The pass key is" begins the reply. Raises ValueError when a prompt cannot fit,
    naming the least length.
    """
    check_trials(trials, depths)
    for length in lengths:
        for place, (depth, trial, unit) in enumerate(grid(depths, trials)):
            draw = Random(f"{seed}/{place // trials}/{trial}")
            key = draw.randrange(10_000, 100_000)
            made = prompt(source, length, key, depth, filler=filler, draw=draw, chat=chat)
            facts: dict[str, Fact] = {
                "depth": depth, "trial": trial, "key": str(key), "needle": made.needle,
            }  # fmt: skip
            yield Loglikelihood(made.tokens, made.start, doc_id=unit, metadata=facts)


def grade(request: Loglikelihood, response: LoglikelihoodResponse, context: TaskContext) -> Sample:
    """Score 1 when greedy decoding gives exactly the key and then stops the number.

    The fact ``found`` says what kind of answer it was: ``exact``, ``format`` or ``wrong``.
    """
    key = tuple(request.tokens[request.start :])
    ends = not _extends(context, key, response.argmax[-1])
    found = ends and response.argmax[:-1] == key
    number = ends and _says(context, response.argmax[:-1], key)
    facts = {
        **request.metadata,
        "found": "exact" if found else "format" if number else "wrong",
        "logprob": -sum(response.nll),
        "argmax": context.decode(response.argmax[:-1]).strip(),
    }
    return Sample(request.doc_id, float(found), 1, facts)


def _says(source: TaskContext, said: Sequence[int], key: Sequence[int]) -> bool:
    """Return whether every digit of the key is the most likely one, given the key before it.

    Only beside the number, at white space or a sign such as a single space token before it, may
    another token be more likely, a word too, without other digits; nothing is decoded.
    """
    digits = [
        ["".join(filter(str.isdigit, source.decode([token]))) for token in tokens]
        for tokens in (said, key)
    ]
    number = "".join(digits[1])
    pairs = zip(*digits, strict=True)
    return all(one == other if other else number.startswith(one) for one, other in pairs)


def _extends(source: TaskContext, key: tuple[int, ...], following: int) -> bool:
    """Return whether the token after the key continues the number."""
    said = source.decode(key)
    more = source.decode((*key, following))[len(said) :]
    return more[:1].isdigit()
