"""Build RULER's needle prompts: what they hide, between what, and how they ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from random import Random
from typing import Literal, NamedTuple

from tasks._prompt import FILLER, Frame, around, continued, inserted
from tasks._retrieval import BETWEEN, make_request, room
from tasks._sentences import sentences
from tasks._words import Kind, drawn
from tasks.types import Request, TaskContext

Haystack = Literal["repeat", "documents", "needles"]
Preset = Literal[
    "single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue",
    "multiquery",
]  # fmt: skip
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {kind} afterwards.\n",
    "What is the special magic {kind} for {asked} mentioned in the provided text?",
    " The special magic {kind} for {asked} mentioned in the provided text is",
)
SEVERAL = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {kind} afterwards.\n",
    "What are all the special magic {kind} for {asked} mentioned in the provided text?",
    " The special magic {kind} for {asked} mentioned in the provided text are",
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


PRESETS: dict[Preset, Setting] = {
    "single_1": Setting(),
    "single_2": Setting("documents"),
    "single_3": Setting("documents", value="uuids"),
    "multikey_1": Setting("documents", keys=4),
    "multikey_2": Setting("needles"),
    "multikey_3": Setting("needles", "uuids", "uuids"),
    "multivalue": Setting("documents", values=4),
    "multiquery": Setting("documents", keys=4, queries=4),
}


def chosen(preset: Preset, given: Setting, in_turn: int) -> Setting:
    """Return what a preset means, or the options that are given.

    A haystack of needles hides as many keys as are asked for: all its sentences are alike. Raises
    ValueError for options beside a preset, and for keys in turn that are not hidden.
    """
    if preset != "single_1" and given != Setting():
        raise ValueError(
            f"preset={preset} sets haystack, key, value, keys, values and queries: leave them out"
        )
    message, setting = "", given if preset == "single_1" else PRESETS[preset]
    if setting.haystack == "needles":
        setting = setting._replace(keys=max(setting.keys, in_turn))
    if min(given.keys, given.values, given.queries, in_turn) < 1:
        message = "keys, values, queries and in_turn are 1 or more"
    elif in_turn > 1 < setting.queries:
        message = (
            f"in_turn asks for one key at a time, and here {setting.queries} are asked at once"
        )
    elif in_turn > setting.keys:
        message = f"in_turn={in_turn} is more than the keys that are hidden, {setting.keys}"
    if message:
        raise ValueError(message)
    return setting


class Hidden(NamedTuple):
    """The keys of a prompt with their values; those asked for come first."""

    pairs: list[tuple[str, list[str]]]
    queries: int

    @property
    def answer(self) -> str:
        """The values asked for, as a record has them."""
        return BETWEEN.join(chain.from_iterable(v for _, v in self.pairs[: self.queries]))

    def turned(self, turn: int) -> Hidden:
        """Return the same, of which the key at ``turn`` comes first."""
        return self._replace(pairs=self.pairs[turn:] + self.pairs[:turn])


def hide(setting: Setting, draw: Random) -> Hidden:
    """Draw keys and values."""
    pairs = [
        (drawn(setting.key, draw), [drawn(setting.value, draw) for _ in range(setting.values)])
        for _ in range(max(setting.keys, setting.queries))
    ]
    return Hidden(pairs, setting.queries)


def framed(source: TaskContext, setting: Setting, hidden: Hidden, *, chat: bool) -> Frame:
    """Return what stands around the haystack; of one value its tokens too."""
    keys = [key for key, _ in hidden.pairs[: hidden.queries]]
    asked = ", ".join(keys[:-1]) + f", and {keys[-1]}" if len(keys) > 1 else keys[0]
    one = setting.answers == 1
    kind = setting.value[:-1] if one else setting.value
    before, after, reply = (t.format(kind=kind, asked=asked) for t in (ONE if one else SEVERAL))
    if setting.haystack == "documents":  # elsewhere every sentence ends its line
        after = f"\n{after}"
    answer = f" {hidden.answer}" if one else ""
    return around(source, before, after, reply, answer, chat=chat)


def filler(
    source: TaskContext, setting: Setting, longest: int, draw: Random
) -> Iterable[list[int]]:
    """Return the sentences of a haystack, of ``longest`` tokens or more."""
    if setting.haystack == "documents":
        return sentences(source, longest)
    if setting.haystack == "repeat":
        return repeat(continued(source, "".join(FILLER)))
    found: list[list[int]] = []
    held = 0
    while held < longest:
        found.append(_needle(source, setting, drawn(setting.key, draw), drawn(setting.value, draw)))
        held += len(found[-1])
    return found


def _needle(source: TaskContext, setting: Setting, key: str, value: str) -> list[int]:
    text = NEEDLE.format(kind=setting.value, key=key, value=value)
    return continued(source, f" {text}" if setting.haystack == "documents" else f"{text}\n")


def context(
    source: TaskContext,
    setting: Setting,
    hidden: Hidden,
    pieces: Iterable[Sequence[int]],
    space: Callable[[int], int],
    depths: Sequence[float],
    more: int = 0,
) -> tuple[list[int], list[int]]:
    """Return a haystack, and where its needles begin, those asked for first.

    ``space`` gives its tokens by those that needles take; ``depths`` are those of the needles, in
    the order of the hidden values. It is ``more`` tokens longer at its end.
    """
    needles = [_needle(source, setting, key, value) for key, vs in hidden.pairs for value in vs]
    end = [] if setting.haystack == "documents" else continued(source, "\n")
    room = space(sum(map(len, needles))) + more
    made, starts = inserted(pieces, list(zip(depths, needles, strict=True)), room, end, more)
    return made, starts[: setting.answers]


def prompts(
    source: TaskContext,
    setting: Setting,
    hidden: Hidden,
    pieces: Iterable[Sequence[int]],
    depths: Sequence[float],
    *,
    unit: str,
    length: int,
    in_turn: int,
    new: int,
    chat: bool,
) -> Iterator[tuple[Request, list[int]]]:
    """Yield a prompt of exactly ``length`` for each of the first keys in turn, and its needles.

    All are of one haystack: in a prompt whose query is shorter, only the last sentence is cut as
    many tokens later.
    """
    turns = [hidden.turned(turn) for turn in range(in_turn)]
    frames = [framed(source, setting, turn, chat=chat) for turn in turns]
    longest = max(frames, key=lambda frame: frame.taken(new))
    space = partial(room, length, longest, new)
    for turn, (asked, frame) in enumerate(zip(turns, frames, strict=True)):
        first = turn * setting.values
        more = longest.taken(new) - frame.taken(new)
        turned = [*depths[first:], *depths[:first]]
        made, starts = context(source, setting, asked, pieces, space, turned, more)
        facts = {"answer": asked.answer}
        yield (
            make_request(unit, frame, made, facts, new),
            [len(frame.head) + start for start in starts],
        )
