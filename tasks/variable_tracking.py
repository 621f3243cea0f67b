"""RULER's variable tracking: the variables that a chain gives one value (arXiv:2404.06654).

The lines of a chain lie in order, at drawn depths of repeated filler, after a short example with
its answer. A text of ``new`` tokens is scored by the share of the variables in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from random import Random
from string import ascii_uppercase
from typing import Annotated

from pydantic import Field

from ropewalk.tasks._prompt import (
    BETWEEN,
    FILLER,
    Chat,
    around,
    check_new,
    continued,
)
from ropewalk.tasks._retrieval import grade, score
from ropewalk.tasks.types import Count, Fact, Request, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "recall"
LINE = "".join(FILLER)
BEFORE = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
AFTER = "Question: Find all variables that are assigned the value {value} in the text above."
REPLY = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables"
    " are assigned the value {value}, they are: "
)
NAMES = 26**3  # of three letters, as the example has them
EXAMPLE = 500  # tokens of the example, at the most


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    chains: Count = 1,
    hops: Annotated[int, Field(ge=1, lt=NAMES)] = 4,
    new: Count = 30,
    trials: Count = 25,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``trials`` prompts of every length; they ask about the first of ``chains`` of ``hops``.

    Names, values and depths depend only on seed and trial. Raises ValueError if a prompt cannot
    fit, naming the least length, and if ``new`` tokens cannot hold the names of a chain.
    """
    filler, end = continued(context, LINE), continued(context, "\n")
    for length in lengths:
        for trial in range(trials):
            draw = Random(f"{seed}/{trial}")
            shot = example(context, hops, draw)
            every = [chain(hops, 5, draw) for _ in range(chains)]
            (value, names, _) = every[0]
            check_new(context, new, names)
            after, reply = (t.format(value=value, count=len(names)) for t in (AFTER, REPLY))
            frame = around(context, shot + BEFORE, after, reply, new=new, chat=chat)
            needles = [
                (depth, continued(context, f"{line}\n"))
                for _, _, lines in every
                for depth, line in zip(sorted(draw.random() for _ in lines), lines, strict=True)
            ]
            tokens, places = frame.hide(length, repeat(filler), needles, end)
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(names)}
            facts["needles"] = [*map(float, places[: len(names)])]
            yield frame.request(f"trial {trial}", tokens, facts)


def chain(hops: int, letters: int, draw: Random) -> tuple[int, list[str], list[str]]:
    """Draw a value, the names it is given to, and the lines that do so, as RULER writes them."""
    drawn: dict[str, None] = {}
    while len(drawn) <= hops:
        drawn["".join(draw.choices(ascii_uppercase, k=letters))] = None
    names = list(drawn)
    value = draw.randrange(10_000, 99_999)
    lines = [f"VAR {names[0]} = {value}"]
    lines += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    return value, names, lines


def example(context: TaskContext, hops: int, draw: Random) -> str:
    """Return a prompt with its answer, of short names, as long as whole lines of filler allow."""
    value, names, lines = chain(hops, 3, draw)
    answer = (AFTER + REPLY).format(value=value, count=len(names)) + " " + " ".join(names) + "\n\n"
    least = len(context.encode(BEFORE + "\n".join(lines) + answer))
    count = max(hops + 1, (EXAMPLE - least) // len(continued(context, LINE)))
    text = [LINE] * count
    places = sorted(draw.sample(range(count), len(lines)))
    for moved, (place, line) in enumerate(zip(places, lines, strict=True)):
        text.insert(place + moved, f"{line}\n")
    return BEFORE + "".join(text) + answer
