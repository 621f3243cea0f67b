"""Retrieval of a value from a JSON object of random UUID pairs (arXiv:2307.03172, Liu et al.).

The position of the asked pair is the depth. By default nothing is generated: a trial counts when
greedy decoding gives exactly the value; ``form=text`` generates ``new`` tokens and looks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tasks._prompt import around, continued, inserted
from tasks._retrieval import (
    FACTS,
    Form,
    check_trials,
    grade,
    grid,
    make_request,
    new_tokens,
    room,
    score,
)
from tasks._words import drawn
from tasks.types import Fact, Request, TaskContext

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
BEFORE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\n"
    "JSON data:\n{\n"
)
AFTER = '}}\n\nKey: "{key}"\n'
REPLY = 'Corresponding value: "'


def ask(
    source: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    form: Form = "argmax",
    new: int = 64,
    depths: int = 5,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``depths`` x ``trials`` prompts of every length, each of the exact length.

    Trials have other pairs; depths and lengths share them. Raises ValueError where a prompt cannot
    fit, naming the least length.
    """
    check_trials(trials, depths)
    new = new_tokens(form, new)
    pairs = [_pairs(source, max(lengths), Random(f"{seed}/{trial}")) for trial in range(trials)]
    end = continued(source, "\n")
    for length in lengths:
        for depth, trial, unit in grid(depths, trials):
            draw = Random(f"{seed}/{depth}/{trial}")
            key, value = drawn("uuids", draw), drawn("uuids", draw)
            while not value[0].isdigit():  # some tokenizers join a quote with a letter
                value = drawn("uuids", draw)
            frame = around(source, BEFORE, AFTER.format(key=key), REPLY, value, chat=chat)
            pair = _pair(source, key, value)
            space = room(length, frame, new, len(pair))
            made, (start,) = inserted(pairs[trial], [(depth, pair)], space, end)
            facts: dict[str, Fact] = {
                "depth": depth, "trial": trial, "answer": value, "needle": len(frame.head) + start,
            }  # fmt: skip
            yield make_request(unit, frame, made, facts, new)


def _pairs(source: TaskContext, longest: int, draw: Random) -> list[list[int]]:
    """Return lines of pairs of ``longest`` tokens or more."""
    found: list[list[int]] = []
    held = 0
    while held < longest:
        found.append(_pair(source, drawn("uuids", draw), drawn("uuids", draw)))
        held += len(found[-1])
    return found


def _pair(source: TaskContext, key: str, value: str) -> list[int]:
    return continued(source, f'"{key}": "{value}",\n')
