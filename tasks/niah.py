"""RULER's needles in a haystack: keys, values, queries and haystacks by option (arXiv:2404.06654).

``preset`` names RULER's eight, or every option is given by itself. A text of ``new`` tokens is
scored by the share of the values in it. Of one value, ``form=argmax`` scores without generation
whether greedy decoding gives exactly the value. ``in_turn`` keys of a haystack are asked for, each
in a prompt of its own; these share all that stands before the query, which is computed once. Their
answers depend on one another, so the haystack is one trial, with the mean of their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tasks._needles import Haystack, Preset, Setting, chosen, filler, hide, prompts
from tasks._retrieval import (
    BETWEEN,
    FACTS,
    Form,
    check_trials,
    grade,
    grid,
    new_tokens,
    score,
)
from tasks._words import Kind
from tasks.types import Fact, Group, Request, TaskContext

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "recall"


def ask(
    source: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    preset: Preset = "single_1",
    haystack: Haystack = "repeat",
    key: Kind = "words",
    value: Kind = "numbers",
    keys: int = 1,
    values: int = 1,
    queries: int = 1,
    in_turn: int = 1,
    form: Form = "text",
    new: int = 128,
    depths: int = 5,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``depths`` x ``trials`` haystacks of every length, each prompt of the exact length.

    Keys and values depend on seed, depth and trial alone. One value stands at its depth; of
    several asked for, and of other keys, the depths are drawn, and with ``depths`` 0 all of them,
    as in RULER. Raises ValueError for a preset with options beside it that are not their defaults,
    which it replaces, for more keys in turn than a haystack hides, and where a prompt cannot fit,
    naming the least length.
    """
    check_trials(trials, depths or None)
    new = new_tokens(form, new)
    setting = chosen(preset, Setting(haystack, key, value, keys, values, queries), in_turn)
    if form == "argmax" and setting.answers > 1:
        raise ValueError(
            f"form=argmax scores one value, {setting.answers} are asked for: leave it out"
        )
    sentences = [
        filler(source, setting, max(lengths), Random(f"{seed}/filler/{trial}"))
        for trial in range(trials if setting.haystack == "needles" else 1)
    ]
    for length in lengths:
        for depth, trial, unit in grid(depths or 1, trials):
            draw = Random(f"{seed}/{depth}/{trial}")
            hidden = hide(setting, draw)
            drawn = [draw.random() for _ in range(len(hidden.pairs) * setting.values)]
            one = setting.answers == in_turn == 1
            placed = one and depths > 0
            name = unit if placed else unit.replace("depth", "set")
            made = prompts(
                source, setting, hidden, sentences[trial % len(sentences)],
                [depth, *drawn[1:]] if placed else drawn,
                unit=name, length=length, in_turn=in_turn, new=new, chat=chat,
            )  # fmt: skip
            asked, found = zip(*made, strict=True)
            places = [place for some in found for place in some]
            answer = BETWEEN.join(str(each.metadata["answer"]) for each in asked)
            facts: dict[str, Fact] = {"trial": trial, "answer": answer}
            facts |= {"depth": depth} if placed else {}
            facts |= {"needle": places[0]} if one else {"needles": [*map(float, places)]}
            yield (
                replace(asked[0], metadata=facts)
                if in_turn == 1
                else Group(asked, doc_id=name, metadata=facts)
            )
