"""RULER's needles in a haystack: keys, values, queries and haystacks by option (arXiv:2404.06654).

``preset`` names RULER's eight, or every option is given by itself. A text of ``new`` tokens is
scored by the share of the values in it. Of one value, ``form=argmax`` scores without generation
whether greedy decoding gives exactly the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from tasks._needles import PRESETS, Haystack, Preset, Setting, context, filler, framed, hide
from tasks._retrieval import (
    FACTS,
    Form,
    check_trials,
    grade,
    grid,
    new_tokens,
    question,
    room,
    score,
)
from tasks._types import Fact, Question, Source
from tasks._words import Kind

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "recall"


def ask(
    source: Source,
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
    form: Form = "text",
    new: int = 128,
    depths: int = 5,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Question]:
    """Yield ``depths`` x ``trials`` prompts of every length, each of the exact length.

    Keys and values depend on seed, depth and trial alone. One value stands at its depth; of
    several asked for, and of other keys, the depths are drawn, and with ``depths`` 0 all of them,
    as in RULER. Raises ValueError for a preset with options beside it that are not their defaults,
    which it replaces, and where a prompt cannot fit, naming the least length.
    """
    check_trials(trials, depths or None)
    new = new_tokens(form, new)
    setting = _setting(preset, Setting(haystack, key, value, keys, values, queries))
    if form == "argmax" and setting.answers > 1:
        message = f"form=argmax scores one value, {setting.answers} are asked for: leave it out"
        raise ValueError(message)
    sentences = [
        filler(source, setting, max(lengths), Random(f"{seed}/filler/{trial}"))
        for trial in range(trials if setting.haystack == "needles" else 1)
    ]
    for length in lengths:
        for depth, trial, unit in grid(depths or 1, trials):
            draw = Random(f"{seed}/{depth}/{trial}")
            hidden = hide(setting, draw)
            drawn = [draw.random() for _ in range(len(hidden.pairs) * setting.values)]
            one = setting.answers == 1
            placed = one and depths > 0
            frame = framed(source, setting, hidden, chat=chat)
            space = partial(room, length, frame, new)
            made, starts = context(
                source, setting, hidden, sentences[trial % len(sentences)], space,
                [depth, *drawn[1:]] if placed else drawn,
            )  # fmt: skip
            places = [len(frame.head) + start for start in starts]
            facts: dict[str, Fact] = {"trial": trial, "answer": hidden.answer}
            facts |= {"depth": depth} if placed else {}
            facts |= {"needle": places[0]} if one else {"needles": [*map(float, places)]}
            name = unit if placed else unit.replace("depth", "set")
            yield question(name, length, frame, made, facts, new)


def _setting(preset: Preset, given: Setting) -> Setting:
    """Return what a preset means, or the options that are given."""
    if preset != "single_1" and given != Setting():
        message = (
            f"preset={preset} sets haystack, key, value, keys, values and queries: leave them out"
        )
        raise ValueError(message)
    if min(given.keys, given.values, given.queries) < 1:
        message = "keys, values and queries are 1 or more"
        raise ValueError(message)
    return PRESETS[preset] if preset != "single_1" else given
