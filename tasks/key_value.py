"""Retrieval of a value from a JSON object of random UUID pairs (arXiv:2307.03172, Liu et al.).

The depth is the position of the requested pair. By default nothing is generated, and a trial counts
if greedy decoding gives exactly the value. ``form=text`` generates ``new`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from ropewalk.tasks._prompt import (
    Chat,
    Form,
    around,
    collected,
    continued,
    drawn,
    grid,
)
from ropewalk.tasks._retrieval import grade, score
from ropewalk.tasks.types import Count, Fact, Request, TaskContext

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
    new: Count = 64,
    depths: Count = 5,
    trials: Count = 5,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``depths`` x ``trials`` prompts of every length, each of the exact length.

    Trials have other pairs; depths and lengths share them. Raises ValueError where a prompt cannot
    fit, naming the least length.
    """
    new = new if form == "text" else 0
    pairs = [
        collected(_pairs(context, Random(f"{seed}/{trial}")), max(lengths))
        for trial in range(trials)
    ]
    end = continued(context, "\n")
    for length in lengths:
        for depth, trial, doc_id in grid(depths, trials):
            draw = Random(f"{seed}/{depth}/{trial}")
            key, value = drawn("uuids", draw), drawn("uuids", draw)
            while not value[0].isdigit():  # some tokenizers join a quote with a letter
                value = drawn("uuids", draw)
            after = AFTER.format(key=key)
            frame = around(context, BEFORE, after, REPLY, value, new=new, chat=chat)
            needle = depth, _pair(context, key, value)
            tokens, (place,) = frame.hide(length, pairs[trial], [needle], end)
            facts: dict[str, Fact] = {"depth": depth, "trial": trial, "answer": value}
            yield frame.request(doc_id, tokens, {**facts, "needle": place})


def _pairs(context: TaskContext, draw: Random) -> Iterator[list[int]]:
    while True:
        yield _pair(context, drawn("uuids", draw), drawn("uuids", draw))


def _pair(context: TaskContext, key: str, value: str) -> list[int]:
    return continued(context, f'"{key}": "{value}",\n')
