"""Check the contract of a method that moves positions, and describe where it moves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from harness.errors import UserError
from harness.methods.check import Finding
from harness.plugins import call
from scaling._bands import Bands, by_distance
from scaling._rotation import Rotation
from scaling._served import Served
from scaling._types import Frequencies, Rope

SERVED = "beyond the window it runs on a model only: there is nothing to check"
Method = Callable[[Rope, int], Rotation]
ROPES = tuple(Rope(*given) for given in product((16, 64, 128), (1e4, 5e5), (256, 1024)))
WINDOWS = (0.5, 1.0, 2.0, 8.0, 16.0)  # lengths, in trained windows


@dataclass(frozen=True)
class Trial:
    """The result of a method at one rope and length, and whether a second call was equal."""

    rope: Rope
    length: int
    found: Bands
    plain: bool
    repeats: bool

    @property
    def windows(self) -> float:
        """Return the length in trained windows."""
        return self.length / self.rope.trained_length

    @property
    def relative(self) -> torch.Tensor:
        """Return the relative positions of the last query, by distance; NaN where none is met."""
        return self.found.relative(self.length - 1).flip(0)


def moves_positions(method: Method) -> bool:
    """Return whether a method returns bands at any length without a ValueError."""
    for rope, windows in product(ROPES[:1], WINDOWS):
        try:
            found: object = call("", partial(method, rope, _length(rope, windows)))
        except UserError:
            continue
        if isinstance(found, Bands | Served):
            return True
    return False


def check_bands(method: Method) -> tuple[Finding, ...]:
    """Call a method at every rope and length; return what holds and what does not, in words."""
    trials: list[Trial] = []
    refused: list[str] = []
    for rope, windows in product(ROPES, WINDOWS):
        where = f"at window {rope.trained_length}, length {_length(rope, windows)}"
        try:
            trials.append(call(where, partial(_attempt, method, rope, _length(rope, windows))))
        except UserError as error:
            if not isinstance(error.__cause__, ValueError):
                return (Finding("runs", "failed", str(error)),)
            refused.append(str(error))
    if not trials:
        return (Finding("runs", "failed", f"it raises ValueError at every geometry: {refused[0]}"),)
    count = len(ROPES) * len(WINDOWS)
    runs = Finding("runs", "passed", f"at all {count} geometries tried, up to 16 windows")
    if refused:
        text = f"ValueError in {len(refused)} of {count} calls: {refused[0]}"
        runs = Finding("runs", "note", text)
    causal = Finding("pairs", "passed", "causal, none twice, every query meets a key")
    return (runs, causal, _repeats(trials), _inside(trials), *_reach(trials), _order(trials))


def _length(rope: Rope, windows: float) -> int:
    return int(windows * rope.trained_length)


def _attempt(method: Method, rope: Rope, length: int) -> Trial:
    found = method(rope, length)
    if isinstance(found, Served):
        raise ValueError(SERVED)
    if not isinstance(found, Rotation):
        message = f"it returned {type(found).__name__}, not Bands or Frequencies"
        raise ValueError(message)
    method(rope, 2 * length)
    repeats = method(rope, length).fingerprint == found.fingerprint
    plain = found.fingerprint == Frequencies(rope.inv_freq()).fingerprint
    if isinstance(found, Frequencies):
        found = Bands(length, (by_distance(length, found, 0),))
    return Trial(rope, length, found, plain, repeats)


def _repeats(trials: Sequence[Trial]) -> Finding:
    if all(trial.repeats for trial in trials):
        return Finding("repeats", "passed", "the same call gives the same bits")
    return Finding("repeats", "failed", "the same call gives other numbers the second time")


def _inside(trials: Sequence[Trial]) -> Finding:
    moved = [trial.length for trial in trials if trial.windows <= 1 and not trial.plain]
    if not moved:
        return Finding("inside the window", "passed", "equal to none, bit for bit")
    text = "not equal to none: the model reads its own window differently from training"
    return Finding("inside the window", "note", text)


def _reach(trials: Sequence[Trial]) -> list[Finding]:
    """Describe how far pairs are rotated, in trained windows, and which share is attended to."""
    far, met = [], []
    for windows in WINDOWS[2:]:
        there = [trial for trial in trials if trial.windows == windows]
        if there:
            most = max(trial.found.reach / trial.rope.trained_length for trial in there)
            far.append(f"{most:.3g} at {windows:g} windows")
            pairs = [t.found.pairs / (t.length * (t.length + 1) / 2) for t in there]
            met.append(f"{min(pairs):.0%} at {windows:g} windows")
    text = f"relative positions, in windows: up to {', '.join(far)}"
    found = [Finding("reach", "note", text)] if far else []
    if any(trial.found.pairs < trial.length * (trial.length + 1) / 2 for trial in trials):
        found.append(Finding("attended to", "note", f"of all pairs {', '.join(met)}"))
    scaled = any(trial.found.query_scale is not None for trial in trials)
    return found + [Finding("queries", "note", "scaled by their position")] * scaled


def _order(trials: Sequence[Trial]) -> Finding:
    """Return whether a farther key is also rotated farther, for the last query."""
    for trial in trials:
        seen = trial.relative[~trial.relative.isnan()]
        if bool((seen.diff() < 0).any()):
            at = f"window {trial.rope.trained_length}, length {trial.length}"
            return Finding("order", "note", f"a farther key is rotated nearer, first at {at}")
    return Finding("order", "passed", "a farther key is never rotated nearer")
