"""Retrieval of a value from a JSON object of random UUID pairs (arXiv:2307.03172, Liu et al.).

The depth is the position of the requested pair. By default nothing is generated, and a trial counts
if greedy decoding gives exactly the value. ``form=text`` generates ``new`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

from ropewalk.tasks._prompt import Chat, around, collected, continued, drawn, inserted
from ropewalk.tasks._retrieval import (
    Form,
    check_trials,
    grade,
    grid,
    make_request,
    room,
    score,
)
from ropewalk.tasks.types import Fact, Request, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
LOGPROB = True  # of the answer, in the facts of a sample of targets
BEFORE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\n"
    "JSON data:\n{\n"
)
AFTER = '}}\n\nKey: "{key}"\n'
REPLY = 'Corresponding value: "'


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    form: Form = "argmax",
    new: int = 64,
    depths: int = 5,
    trials: int = 5,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``depths`` x ``trials`` prompts of every length, each of the exact length.

    Trials have other pairs; depths and lengths share them. Raises ValueError where a prompt cannot
    fit, naming the least length.
    """
    check_trials(trials, depths, new=new)
    new = new if form == "text" else 0
    pairs = [_pairs(context, max(lengths), Random(f"{seed}/{trial}")) for trial in range(trials)]
    end = continued(context, "\n")
    for length in lengths:
        for depth, trial, doc_id in grid(depths, trials):
            draw = Random(f"{seed}/{depth}/{trial}")
            key, value = drawn("uuids", draw), drawn("uuids", draw)
            while not value[0].isdigit():  # some tokenizers join a quote with a letter
                value = drawn("uuids", draw)
            frame = around(context, BEFORE, AFTER.format(key=key), REPLY, value, chat=chat)
            pair = _pair(context, key, value)
            space = room(length, frame.taken(new), len(pair))
            tokens, (start,) = inserted(pairs[trial], [(depth, pair)], space, end)
            facts: dict[str, Fact] = {"depth": depth, "trial": trial, "answer": value}
            facts["needle"] = len(frame.head) + start
            yield make_request(doc_id, frame, tokens, facts, new)


def _pairs(context: TaskContext, longest: int, draw: Random) -> list[list[int]]:
    """Return lines of pairs of ``longest`` tokens or more."""
    pairs = (_pair(context, drawn("uuids", draw), drawn("uuids", draw)) for _ in count())
    return collected(pairs, longest)


def _pair(context: TaskContext, key: str, value: str) -> list[int]:
    return continued(context, f'"{key}": "{value}",\n')
