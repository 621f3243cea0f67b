"""RULER's frequent words: the three that a coded text has most often, by Zipf (arXiv:2404.06654).

The word of rank k occurs in proportion to k^-``alpha``. The first rank is dots, which do not count.
A text of ``new`` tokens is scored by the share of the three words in it.

Differs from RULER, whose short texts may not contain the words of the answer: here each of the
three occurs more often than every other word of the text, or the length is rejected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain
from operator import mul
from random import Random
from string import ascii_lowercase

from ropewalk.tasks._prompt import Chat, around, continued
from ropewalk.tasks._retrieval import BETWEEN, check_trials, grade, make_request, room, score
from ropewalk.tasks.types import Fact, Request, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
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
DOTS, LETTERS = "...", 6
PER_WORD = 50  # the tokens of a prompt for every word of the vocabulary
ORDERS = 1000  # that are drawn; the second or third has been enough
Written = Callable[[str], list[int]]  # the tokens of a text


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    alpha: float = 2.0,
    new: int = 50,
    trials: int = 25,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``trials`` coded texts of every length, of which only the last words are cut.

    The words are drawn in another order if the cut changes the answer. Raises ValueError if a text
    cannot fit, naming the least length, or if alpha is not above 1 and at most 10.
    """
    check_trials(trials, new=new)
    if not 1 < alpha <= MOST:
        raise ValueError(f"alpha={alpha} is not above 1 and {MOST} at the most")
    written = cache(lambda text: continued(context, text))
    frame = around(context, BEFORE, AFTER, REPLY, chat=chat)
    fixed = frame.taken(new)
    draws = [f"{seed}/{trial}" for trial in range(trials)]
    for length in lengths:
        enough = length  # a longer text has more words, which take more tokens at the least
        while (wider := fixed + fewest(written, size_of(enough - new), alpha, draws)) > enough:
            enough = wider
        space = room(length, fixed, enough - fixed - 1)
        for trial in range(trials):
            draw = Random(draws[trial])
            known = vocabulary(size_of(length - new), draw)
            tokens = text(written, known, alpha, space, draw)
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(known[1:4])}
            yield make_request(f"trial {trial}", frame, tokens, facts, new)


def vocabulary(size: int, draw: Random) -> list[str]:
    """Return dots and words of random letters, each once, by their rank."""
    ranked = {DOTS: None}
    while len(ranked) < size:
        ranked["".join(draw.choices(ascii_lowercase, k=LETTERS))] = None
    return list(ranked)


def counts(total: int, size: int, alpha: float) -> list[int]:
    """Return how often the words of every rank occur, of about ``total``."""
    from scipy.special import zeta

    scale = total / float(zeta(alpha))
    return [int(scale * rank**-alpha) for rank in range(1, size + 1)]


def least(alpha: float) -> int:
    """Return from how many words on the fourth rank occurs more often than the fifth, and twice.

    Before both are rounded down, the fifth rank has r = (4/5)^alpha times the count of the fourth.
    If that count is k, then r (k + 1) is at most k from k = r / (1 - r) = 1 / (1.25^alpha - 1) on.
    """
    from scipy.special import zeta

    fourth = max(2, math.ceil(1 / (1.25**alpha - 1)))
    words: float = fourth * 4**alpha * float(zeta(alpha))
    return math.ceil(words)


def size_of(tokens: int) -> int:
    """Return how many words the vocabulary of a text has."""
    return max(5, tokens // PER_WORD)


def fewest(written: Written, size: int, alpha: float, draws: Sequence[str]) -> int:
    """Return the tokens of the shortest text from ``size`` words, the most of all ``draws``."""
    often = [n for n in counts(least(alpha) - 1, size, alpha) if n]
    every = (vocabulary(len(often), Random(draw)) for draw in draws)
    return max(
        sum(n * len(written(f" {word}")) for n, word in zip(often, known, strict=True))
        for known in every
    )


def text(written: Written, known: list[str], alpha: float, space: int, draw: Random) -> list[int]:
    """Return ``space`` tokens of words in a drawn order; raise ValueError where none is found."""
    sizes = [len(written(f" {word}")) for word in known]
    total, often = 1, [0]
    while sum(map(mul, often, sizes)) <= space:
        total += max(1, total // 64)
        often = counts(total, len(known), alpha)
    every = [word for word, count in zip(known, often, strict=True) for _ in range(count)]
    for _ in range(ORDERS):
        draw.shuffle(every)
        tokens = [written(every[0]), *(written(f" {word}") for word in every[1:])]
        if most_frequent(known[1:4], every, tokens, space):
            return list(chain.from_iterable(tokens))[:space]
    raise ValueError(
        f"in {ORDERS} orders of a text of {space} tokens the cut left other words as frequent as "
        "the three of the answer; give a longer length"
    )


def most_frequent(answer: list[str], text: list[str], tokens: list[list[int]], space: int) -> bool:
    """Return whether the answer's words are the most frequent ones that the cut leaves whole.

    The remaining part of the word that is cut counts as a word.
    """
    ends = accumulate(map(len, tokens))
    often = Counter(word for word, end in zip(text, ends, strict=False) if end <= space)
    others = [1, *(n for word, n in often.items() if word not in (DOTS, *answer))]
    return min(often[word] for word in answer) > max(others)
