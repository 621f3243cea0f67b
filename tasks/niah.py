"""RULER's needles in a haystack: keys, values, queries and haystacks by option (arXiv:2404.06654).

``preset`` names one of RULER's eight needle tests, or one of the two of RULER v2 that need no data
(``mk_basic``, ``mv_basic``: values of ten digits); otherwise every option is given by itself. A
text of ``new`` tokens is scored by the share of the values in it. For one value, ``form=argmax``
scores without generation whether greedy decoding gives exactly the value.

``in_turn`` is the number of keys per haystack, each with a prompt of its own. These prompts share
all text before the query, which is computed once. Their answers depend on each other, so the
haystack is one trial, with the mean of their scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from random import Random
from typing import Literal, NamedTuple

from pydantic import NonNegativeInt

from ropewalk.tasks._prompt import (
    BETWEEN,
    FILLER,
    Chat,
    Form,
    Frame,
    Kind,
    around,
    check_new,
    collected,
    continued,
    drawn,
    grid,
    sentences,
)
from ropewalk.tasks._retrieval import grade, score
from ropewalk.tasks.types import Count, Fact, Generate, Group, Loglikelihood, Request, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 2
METRIC = "recall"
LOGPROB = True  # of the answer, in the facts of a sample of targets

Pairs = list[tuple[str, list[str]]]  # keys with their values
Haystack = Literal["repeat", "documents", "needles"]
Preset = Literal[
    "single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue",
    "multiquery", "mk_basic", "mv_basic",
]  # fmt: skip
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {kind} afterwards.\n",
    "What is the special magic {kind} for {keys} mentioned in the provided text?",
    " The special magic {kind} for {keys} mentioned in the provided text is",
)
SEVERAL = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {kind} afterwards.\n",
    "What are all the special magic {kind} for {keys} mentioned in the provided text?",
    " The special magic {kind} for {keys} mentioned in the provided text are",
)


class Setting(NamedTuple):
    """A kind of needle test; ``keys`` are hidden, each with ``values``, and ``queries`` asked."""

    haystack: Haystack = "repeat"
    key: Kind = "words"
    value: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def answers(self) -> int:
        """How many values a prompt asks for."""
        return self.values * self.queries

    @property
    def noun(self) -> str:
        """What a prompt calls the values."""
        return "numbers" if self.value == "ten_digits" else self.value


PRESETS: dict[Preset, Setting] = {
    "single_1": Setting(),
    "single_2": Setting("documents"),
    "single_3": Setting("documents", value="uuids"),
    "multikey_1": Setting("documents", keys=4),
    "multikey_2": Setting("needles"),
    "multikey_3": Setting("needles", "uuids", "uuids"),
    "multivalue": Setting("documents", values=4),
    "multiquery": Setting("documents", keys=4, queries=4),
    "mk_basic": Setting("needles", value="ten_digits"),  # RULER v2, branch rulerv2-ns
    "mv_basic": Setting("needles", value="ten_digits", values=4),
}
BLOCK = 100  # keys with several values each whose needles are mixed


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    preset: Preset = "single_1",
    haystack: Haystack = "repeat",
    key: Kind = "words",
    value: Kind = "numbers",
    keys: Count = 1,
    values: Count = 1,
    queries: Count = 1,
    in_turn: Count = 1,
    form: Form = "text",
    new: Count = 128,
    depths: NonNegativeInt = 5,
    trials: Count = 5,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``depths`` x ``trials`` haystacks of every length, each prompt of the exact length.

    Keys, values and drawn depths depend only on the kind of test, seed, depth and trial: the trials
    of two kinds are independent, so that a mean over kinds is as certain as its interval says. A
    single value is at its depth. The depths of several values and of other keys are drawn. With
    ``depths`` 0 all depths are drawn, as in RULER.

    Raises ValueError for a preset with other options, for more keys in turn than a haystack hides,
    when a prompt cannot fit, naming the least length, and when ``new`` tokens cannot hold several
    values.
    """
    new = new if form == "text" else 0
    setting = chosen(preset, Setting(haystack, key, value, keys, values, queries), in_turn)
    if form == "argmax" and setting.answers > 1:
        raise ValueError(
            f"form=argmax scores one value, but the prompt asks for {setting.answers}: leave it out"
        )
    kind = "/".join(map(str, (seed, *setting)))
    haystacks = [
        filler(context, setting, max(lengths), Random(f"{kind}/filler/{trial}"))
        for trial in range(trials if setting.haystack == "needles" else 1)
    ]
    end = [] if setting.haystack == "documents" else continued(context, "\n")
    one = setting.answers == in_turn == 1
    for length in lengths:
        for depth, trial, doc_id in grid(depths or 1, trials):
            draw = Random(f"{kind}/{depth}/{trial}")
            pairs = [
                (drawn(setting.key, draw), [drawn(setting.value, draw) for _ in range(count)])
                for count in [setting.values] * max(setting.keys, setting.queries)
            ]
            at = [draw.random() for _ in range(len(pairs) * setting.values)]
            turns = [pairs[turn:] + pairs[:turn] for turn in range(in_turn)]
            answers = [BETWEEN.join(asked_for(setting, turn)) for turn in turns]
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(answers)}
            if one and depths:
                at[0] = facts["depth"] = depth
            else:
                doc_id = doc_id.replace("depth", "set")
            if setting.answers > 1:
                check_new(context, new, asked_for(setting, pairs))
            hidden = needles(context, setting, pairs, at)
            frames = [framed(context, setting, turn, new=new, chat=chat) for turn in turns]
            longest = max(frame.taken for frame in frames)
            parts, places = list[Loglikelihood | Generate](), list[int]()
            for number, frame in enumerate(frames):
                more = longest - frame.taken  # a shorter query cuts the last sentence later
                text = haystacks[trial % len(haystacks)]
                tokens, starts = frame.hide(length, text, hidden, end, more)
                places += starts[number * setting.values :][: setting.answers]
                parts.append(frame.request(doc_id, tokens, {"answer": answers[number]}))
            facts |= {"needle": places[0]} if one else {"needles": [*map(float, places)]}
            if in_turn == 1:
                yield replace(parts[0], metadata={**facts, **parts[0].metadata})
            else:
                yield Group(tuple(parts), doc_id=doc_id, metadata=facts)


def chosen(preset: Preset, given: Setting, in_turn: int) -> Setting:
    """Return what a preset means, or the options that are given.

    A haystack of needles hides as many keys as requested, because all its sentences are alike.
    Raises ValueError for options beside a preset, and for keys in turn that are not hidden.
    """
    if preset != "single_1" and given != Setting():
        raise ValueError(
            f"preset={preset} sets haystack, key, value, keys, values and queries: leave them out"
        )
    setting = given if preset == "single_1" else PRESETS[preset]
    if setting.haystack == "needles":
        setting = setting._replace(keys=max(setting.keys, in_turn))
    if in_turn > 1 < setting.queries:
        raise ValueError(
            f"in_turn asks for one key at a time, but queries={setting.queries} asks for several"
        )
    if in_turn > setting.keys:
        raise ValueError(f"in_turn={in_turn} is more than the keys that are hidden, {setting.keys}")
    return setting


def asked_for(setting: Setting, pairs: Pairs) -> list[str]:
    """Return the values of the keys that a prompt asks for, which come first."""
    return [value for _, values in pairs[: setting.queries] for value in values]


def framed(
    context: TaskContext, setting: Setting, pairs: Pairs, *, new: int, chat: Chat = False
) -> Frame:
    """Return the text around the haystack; for a single value also its tokens."""
    keys = [key for key, _ in pairs[: setting.queries]]
    named = ", ".join(keys[:-1]) + f", and {keys[-1]}" if len(keys) > 1 else keys[0]
    one = setting.answers == 1
    kind = setting.noun[:-1] if one else setting.noun
    before, after, reply = (t.format(kind=kind, keys=named) for t in (ONE if one else SEVERAL))
    if setting == PRESETS["mv_basic"]:
        before = before.replace("memorize it", "memorize them")
    if setting.haystack == "documents":  # elsewhere every sentence ends its line
        after = f"\n{after}"
    answer = f" {pairs[0][1][0]}" if one else ""
    return around(context, before, after, reply, answer, new=new, chat=chat)


def filler(
    context: TaskContext, setting: Setting, longest: int, draw: Random
) -> Iterable[Sequence[int]]:
    """Return the sentences of a haystack, of ``longest`` tokens or more."""
    if setting.haystack == "documents":
        return sentences(context, longest)
    if setting.haystack == "repeat":
        return repeat(continued(context, "".join(FILLER)))
    pairs = ((key, drawn(setting.value, draw)) for key in _keys(setting, draw))
    return collected((_needle(context, setting, *pair) for pair in pairs), longest)


def _keys(setting: Setting, draw: Random) -> Iterator[str]:
    """Yield keys without end, each as often as it has values."""
    while True:
        size = 1 if setting.values == 1 else BLOCK
        keys = [drawn(setting.key, draw) for _ in range(size)] * setting.values
        draw.shuffle(keys)
        yield from keys


def _needle(context: TaskContext, setting: Setting, key: str, value: str) -> list[int]:
    text = NEEDLE.format(kind=setting.noun, key=key, value=value)
    return continued(context, f" {text}" if setting.haystack == "documents" else f"{text}\n")


def needles(
    context: TaskContext, setting: Setting, pairs: Pairs, depths: Sequence[float]
) -> list[tuple[float, list[int]]]:
    """Return the sentences of the hidden values, in their order, each with its depth."""
    every = [_needle(context, setting, key, value) for key, values in pairs for value in values]
    return list(zip(depths, every, strict=True))
