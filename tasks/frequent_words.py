"""RULER's frequent words: the three that a coded text has most often, by Zipf (arXiv:2404.06654).

The word of rank k occurs in proportion to k^-``alpha``; the first rank is dots, which do not count.
Differs from RULER, whose short texts may lack the words asked for: each of the three occurs more
often than every other word of the text, or the length is refused.
A text of ``new`` tokens is scored by the share of the three words in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random

from tasks._coded_words import fewest, size_of, text, vocabulary
from tasks._prompt import around, continued
from tasks._retrieval import (
    BETWEEN,
    FACTS,
    check_trials,
    grade,
    make_request,
    new_tokens,
    room,
    score,
)
from tasks.types import Fact, Request, TaskContext

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 2
METRIC = "recall"
BEFORE = (
    "Read the following coded text and track the frequency of each coded word."
    " Find the three most frequently appeared coded words. "
)
AFTER = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'."
    " What are the three most frequently appeared words in the above coded text?"
)
REPLY = " Answer: According to the coded text above, the three most frequently appeared words are:"
MOST = 10  # of alpha: the fourth word of a text occurs once in a million


def ask(
    source: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    alpha: float = 2.0,
    new: int = 50,
    trials: int = 25,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``trials`` coded texts of every length, of which only the last words are cut.

    An order of the words of which the cut spoils the counts is drawn again. Raises ValueError where
    a text cannot fit, naming the least length, or for an alpha that is not above 1 and at most 10.
    """
    check_trials(trials)
    new = new_tokens("text", new)
    if not 1 < alpha <= MOST:
        raise ValueError(f"alpha={alpha} is not above 1 and {MOST} at the most")
    written = cache(lambda text: continued(source, text))
    frame = around(source, BEFORE, AFTER, REPLY, chat=chat)
    fixed = len(frame.head) + len(frame.tail) + new
    draws = [f"{seed}/{trial}" for trial in range(trials)]
    for length in lengths:
        enough = length  # a longer text has more words, which take more tokens at the least
        while (wider := fixed + fewest(written, size_of(enough - new), alpha, draws)) > enough:
            enough = wider
        space = room(length, frame, new, enough - fixed - 1)
        for trial in range(trials):
            draw = Random(draws[trial])
            known = vocabulary(size_of(length - new), draw)
            context = text(written, known, alpha, space, draw)
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(known[1:4])}
            yield make_request(f"trial {trial}", frame, context, facts, new)
