"""Retrieval of a five-digit pass key hidden in filler text (arXiv:2305.16300, Mohtashami & Jaggi).

A prompt has the exact token length asked for, answer included. Greedy decoding gives the answer
if and only if every answer token is the argmax given the ones before it and the next argmax does
not go on with the number, so one forward decides a trial and nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

from tasks._intervals import proportion
from tasks._types import Answer, Fact, Passage, Question, Sample, Score, Source

VERSION = 1
METRIC = "accuracy"

INTRODUCTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them."
    " I will quiz you about the important information there.\n"
)
FILLER = (
    "The grass is green.",
    " The sky is blue.",
    " The sun is yellow.",
    " Here we go.",
    " There and back again.\n",
)
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"

Filler = Literal["standard", "documents"]


def ask(
    source: Source,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    depths: int = 5,
    trials: int = 5,
    filler: Filler = "standard",
) -> Iterator[Question]:
    """Yield a grid of ``depths`` evenly spaced depths x ``trials`` keys at every length.

    The keys depend on seed, depth and trial alone, so every method and every length is asked
    for the same ones. Raises ValueError when a prompt cannot fit, naming the least length.
    """
    if depths < 1 or trials < 1:
        message = f"passkey needs depths >= 1 and trials >= 1, got {depths} and {trials}"
        raise ValueError(message)
    for length in lengths:
        for index in range(depths):
            depth = index / (depths - 1) if depths > 1 else 0.5
            for trial in range(trials):
                draw = Random(f"{seed}/{index}/{trial}")
                key = draw.randrange(10_000, 100_000)
                tokens, start = prompt(source, length, key, depth, filler=filler, draw=draw)
                facts: dict[str, Fact] = {"depth": depth, "trial": trial, "key": str(key)}
                unit = f"depth {depth:.2f} trial {trial}"
                yield Question(unit, length, tokens, start, facts)


def prompt(
    source: Source, length: int, key: int, depth: float, *, filler: Filler, draw: Random
) -> tuple[tuple[int, ...], int]:
    """Build one prompt of exactly ``length`` tokens; return it and where its answer starts.

    ``depth`` 0 puts the needle before all filler, 1 after it. The needle stands between whole
    sentences of the standard filler, so only the last sentence before the question may be cut.
    """
    head = [*source.opening, *source.encode(INTRODUCTION)]
    needle = source.encode(NEEDLE.format(key=key))
    asked = source.encode(QUESTION)
    whole = source.encode(f"{QUESTION} {key}")
    if whole[: len(asked)] != asked:
        message = "the tokenizer merges the question with the answer; passkey cannot separate them"
        raise ValueError(message)
    room = length - len(head) - len(needle) - len(whole)
    if room < 0:
        message = f"a passkey prompt needs at least {length - room} tokens, length is {length}"
        raise ValueError(message)
    before, after = _filler(source, room, depth, filler, draw)
    tokens = (*head, *before, *needle, *after, *whole)
    return tokens, len(tokens) - (len(whole) - len(asked))


def _filler(
    source: Source, room: int, depth: float, kind: Filler, draw: Random
) -> tuple[Sequence[int], Sequence[int]]:
    """Return ``room`` tokens of filler, cut in two where the needle goes."""
    if kind == "documents":
        text = _excerpt(source.passages(), room, draw)
        cut = round(depth * room)
        return text[:cut], text[cut:]
    sentences = [source.encode(sentence) for sentence in FILLER]
    tokens: list[int] = []
    boundaries = [0]
    while len(tokens) < room:
        tokens += sentences[(len(boundaries) - 1) % len(sentences)]
        boundaries.append(len(tokens))
    cut = min((b for b in boundaries if b <= room), key=lambda b: abs(b - depth * room))
    return tokens[:cut], tokens[cut:room]


def _excerpt(passages: Sequence[Passage], room: int, draw: Random) -> Sequence[int]:
    """Draw ``room`` consecutive tokens from one of the passages that hold as many."""
    fitting = [passage for passage in passages if len(passage.tokens) >= room]
    if not fitting:
        longest = max((len(passage.tokens) for passage in passages), default=0)
        message = f"no document holds {room} tokens of filler; the longest has {longest}"
        raise ValueError(message)
    tokens = draw.choice(fitting).tokens
    first = draw.randrange(len(tokens) - room + 1)
    return tokens[first : first + room]


def grade(question: Question, answer: Answer, source: Source) -> Sample:
    """Score 1 when greedy decoding gives exactly the key and then stops the number."""
    key = question.tokens[question.start :]
    found = answer.argmax[:-1] == key and not _extends(source, key, answer.argmax[-1])
    facts = {
        **question.facts,
        "logprob": -sum(answer.nll),
        "argmax": source.decode(answer.argmax[:-1]).strip(),
    }
    return Sample(question.unit, float(found), 1, facts)


def _extends(source: Source, key: tuple[int, ...], following: int) -> bool:
    """Tell whether the token after the key goes on with the number."""
    said = source.decode(key)
    more = source.decode((*key, following))[len(said) :]
    return more[:1].isdigit()


def score(samples: Sequence[Sample]) -> Score:
    """Return the share of keys found, with a Wilson 95 % interval."""
    hits = round(sum(sample.value for sample in samples))
    low, high = proportion(hits, len(samples))
    return Score(hits / len(samples), low, high, len(samples))
