"""The findings that both checks of a method share: of frequencies and of moved positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from scaling.types import Rope

Verdict = Literal["passed", "failed", "note"]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Finding:
    """One line of the result. A ``note`` is information: many good methods differ in it."""

    about: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Trial(Generic[Found]):
    """The result of a method at one rope and length, or an error in words.

    ``refused`` is the method's own ValueError; ``raised``, any other error; ``unfit`` is the kind
    and the description of a wrong result.
    """

    rope: Rope
    length: int
    found: Found | None = None
    refused: str | None = None
    raised: str | None = None
    unfit: tuple[str, str] | None = None
    repeats: bool = True
    pure: bool = True

    @property
    def result(self) -> Found:
        """What the method returned, where it did."""
        assert self.found is not None
        return self.found

    @property
    def windows(self) -> float:
        """Return the length in trained windows."""
        return self.length / self.rope.trained_length


def where(rope: Rope, length: int) -> str:
    """Return a geometry in words."""
    return (
        f"rotary_dim {rope.rotary_dim}, base {rope.base:g}, window {rope.trained_length}, "
        f"length {length}"
    )


def tokens(rope: Rope, windows: float) -> int:
    """Return a length of so many trained windows in tokens, 1 at least."""
    return max(1, round(windows * rope.trained_length))


def windows_of(trials: Sequence[Trial[Any]]) -> str:
    """Return in words which windows were tried."""
    sizes = sorted({trial.rope.trained_length for trial in trials})
    if len(sizes) == 1:
        return f"in the window of {sizes[0]:,} tokens"
    if len(sizes) <= 3:
        named = f"{', '.join(f'{size:,}' for size in sizes[:-1])} and {sizes[-1]:,}"
        return f"in windows of {named} tokens, those tried"
    return f"in {len(sizes)} windows from {sizes[0]:,} to {sizes[-1]:,} tokens, those tried"


def runs(trials: Sequence[Trial[Any]], passed: str) -> Finding:
    """Return whether a method runs; ``passed`` is the text where it does at every geometry."""
    raised = [trial.raised for trial in trials if trial.raised]
    refused = [trial.refused for trial in trials if trial.refused]
    count = len(trials)
    if raised:
        return Finding("runs", "failed", f"an error in {len(raised)} of {count} calls: {raised[0]}")
    if len(refused) == count:
        return Finding("runs", "failed", f"it raises ValueError at every geometry: {refused[0]}")
    if refused:
        text = f"ValueError in {len(refused)} of {count} calls: {refused[0]}"
        return Finding("runs", "note", text)
    return Finding("runs", "passed", passed)


def repeats(trials: Sequence[Trial[Any]]) -> Finding:
    """Return whether a second call gives the same bits."""
    wrong = [trial for trial in trials if not trial.repeats]
    text = "the same call gives other numbers the second time"
    return holds("repeats", wrong, "the same call gives the same bits", text, "failed")


def holds(
    about: str, wrong: Sequence[Trial[Any]], right: str, text: str, verdict: Verdict
) -> Finding:
    """Return ``right`` where nothing is wrong, else ``text`` and the first wrong place."""
    if not wrong:
        return Finding(about, "passed", right)
    return Finding(about, verdict, f"{text}, first at {where(wrong[0].rope, wrong[0].length)}")
