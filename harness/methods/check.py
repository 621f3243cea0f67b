"""Check a method's contract over a grid of geometries, and describe what it does."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

from harness.errors import UserError
from harness.methods.channels import FLOAT32, ROUNDING, Channel, channels
from harness.methods.findings import (
    Finding,
    Trial,
    holds,
    repeats,
    runs,
    tokens,
    where,
    windows_of,
)
from harness.plugins import call
from scaling.types import Frequencies, PerLayerFrequencies, Rope, sets_of

Method = Callable[[Rope, int], Frequencies | PerLayerFrequencies]
Tried = Trial[Frequencies]

ROPES = tuple(
    Rope(*geometry, layers=6)
    for geometry in product((16, 32, 64, 128), (1e3, 1e4, 5e5, 1e6), (256, 4096, 131072))
)
WINDOWS = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0)  # lengths, in trained windows
SLOWEST = (2.0, 8.0, 64.0)  # of them, those at which the slowest channel is reported
RESULTS = {
    "result": "it is Frequencies",
    "numbers": "float32, finite, none negative; attention factor above 0",
    "pairs": "one frequency for every channel pair",
}


def check(
    method: Method, ropes: Sequence[Rope] = ROPES, windows: Sequence[float] = WINDOWS
) -> tuple[Finding, ...]:
    """Call a method at every rope and length; return what holds and what does not, in words."""
    trials = [attempt(method, rope, tokens(rope, share)) for rope in ropes for share in windows]
    good = [
        replace(trial, found=one)  # a layer at a time, where they are not alike
        for trial in trials
        if trial.found
        for one in sets_of(trial.found)
    ]
    findings = [runs(trials, _tried(trials)), *_results(trials)]
    if good:
        findings += [repeats(good), _pure(good), _order(good)]
        findings += [_inside(good), _fastest(good), _slowest(good), _unseen(good)]
        findings.append(Finding("attention factor", "note", _span(_factors(good))))
    return tuple(findings)


def attempt(method: Method, rope: Rope, length: int) -> Tried:
    """Call a method at one length, then at another, then at the first again."""
    given = deepcopy(rope)
    place = f"at {where(rope, length)}"
    try:
        found: Any = call(place, lambda: method(given, length))
        unfit = call(place, lambda: _unfit(found, rope))
        if unfit:
            return Tried(rope, length, unfit=(unfit[0], f"{place}: {unfit[1]}"))
        prints = [found.fingerprint]
        call(f"at {where(rope, 16 * length)}", lambda: method(given, 16 * length))
        prints.append(found.fingerprint)  # a different one where a buffer is shared
        prints.append(call(place, lambda: method(given, length).fingerprint))
    except UserError as error:
        return _trouble(rope, length, error)
    return Tried(rope, length, found, repeats=len(set(prints)) == 1, pure=given == rope)


def _trouble(rope: Rope, length: int, error: UserError) -> Tried:
    """Sort an error: the method's own ValueError, invalid frequencies, or any other error."""
    text, cause = str(error).rstrip("."), error.__cause__
    if not isinstance(cause, ValueError):
        return Tried(rope, length, raised=text)
    # Frequencies raises for bad numbers in its constructor, a method in its own functions.
    if traceback.extract_tb(cause.__traceback__)[-1].name == "__post_init__":
        return Tried(rope, length, unfit=("numbers", text))
    return Tried(rope, length, refused=text)


def _unfit(found: Any, rope: Rope) -> tuple[str, str] | None:
    """Return what is wrong with a result: kind and description."""
    if not isinstance(found, Frequencies | PerLayerFrequencies):
        return "result", f"it returned {type(found).__name__}, not Frequencies"
    pairs = rope.rotary_dim // 2
    if isinstance(found, PerLayerFrequencies) and len(found.layers) != rope.layers:
        return "pairs", f"frequencies for {len(found.layers)} layers of {rope.layers}"
    for count in {len(one.inv_freq) for one in sets_of(found)} - {pairs}:
        return "pairs", f"{count} frequencies for {pairs} channel pairs"
    return None


def _tried(trials: Sequence[Tried]) -> str:
    """Return in words at how many geometries a method was tried, and which."""
    sizes = zip(
        *((t.rope.rotary_dim, t.rope.base, t.rope.trained_length, t.windows) for t in trials),
        strict=True,
    )
    names = ("rotary_dim", "base", "window", "length in windows")
    spans = [f"{name} {_span(values)}" for name, values in zip(names, sizes, strict=True)]
    return f"at all {len(trials)} geometries tried: {', '.join(spans)}"


def _results(trials: Sequence[Tried]) -> list[Finding]:
    """Return a finding for each property of results; none where no call returned a result."""
    findings = []
    for kind, right in RESULTS.items():
        wrong = [trial.unfit[1] for trial in trials if trial.unfit and trial.unfit[0] == kind]
        if wrong:
            text = f"not in {len(wrong)} of {len(trials)} calls: {wrong[0]}"
            findings.append(Finding(kind, "failed", text))
        elif any(trial.found for trial in trials):
            findings.append(Finding(kind, "passed", right))
    return findings


def _pure(trials: Sequence[Tried]) -> Finding:
    wrong = [trial for trial in trials if not trial.pure]
    return holds("pure", wrong, "the rope is left as it was", "the rope is changed", "failed")


def _order(trials: Sequence[Tried]) -> Finding:
    wrong = [t for t in trials if bool((t.result.inv_freq.diff() > 0).any())]
    text = "a pair is faster than the one before it"
    return holds("order", wrong, "fastest channel pair first", text, "note")


def _inside(trials: Sequence[Tried]) -> Finding:
    """Return whether the trained window is read as in training, and the changes if not."""
    inside = [trial for trial in trials if trial.windows <= 1]
    if not inside:
        return Finding("inside the window", "note", "not known")
    tried = windows_of(inside)
    plain = [Frequencies(trial.rope.inv_freq()).fingerprint for trial in inside]
    if [trial.result.fingerprint for trial in inside] == plain:
        return Finding("inside the window", "passed", f"equal to none, bit for bit, {tried}")
    moved = max(_moved(channel) for trial in inside for channel in _channels(trial))
    factors = _factors(inside)
    if moved <= 100 * ROUNDING and all(abs(one - 1) <= FLOAT32.eps for one in factors):
        text = f"equal to none but for the rounding of float32 ({moved:.3g} %), {tried}"
        return Finding("inside the window", "passed", text)
    text = (
        f"not equal to none: frequencies move by up to {moved:.3g} %, attention factor "
        f"{_span(factors)}; the model reads its own window differently from training"
    )
    return Finding("inside the window", "note", text)


def _fastest(trials: Sequence[Tried]) -> Finding:
    worst = max(trials, key=lambda trial: _moved(_channels(trial)[0]))
    moved = _moved(_channels(worst)[0])
    told = f"moves by up to {moved:.3g} %, {where(worst.rope, worst.length)}"
    text = told if moved > 100 * ROUNDING else "never moves"
    return Finding("fastest pair", "note", text)


def _slowest(trials: Sequence[Tried]) -> Finding:
    slow = []
    longer = sorted({trial.windows for trial in trials if trial.windows > 1})
    for windows in (one for one in longer if one in SLOWEST or one == longer[-1]):
        there = [_channels(t)[-1].ratio for t in trials if math.isclose(t.windows, windows)]
        if there:
            slower = _span([1 / ratio if ratio else math.inf for ratio in there])
            slow.append(f"{slower} at {windows:g} windows")
    return Finding("slowest pair", "note", f"slowed by {', '.join(slow)}" if slow else "not known")


def _unseen(trials: Sequence[Tried]) -> Finding:
    counts = [sum(channel.unseen for channel in _channels(trial)) for trial in trials]
    most = max(counts)
    worst = trials[counts.index(most)]
    pairs = f"{most} of {len(_channels(worst))} pairs"
    told = f"met by up to {pairs}, {where(worst.rope, worst.length)}"
    return Finding("unseen angles", "note", told if most else "met by no pair at any length")


def _factors(trials: Sequence[Tried]) -> list[float]:
    return [float(trial.result.attention_factor) for trial in trials]


def _channels(trial: Tried) -> tuple[Channel, ...]:
    """Return every channel pair after scaling."""
    return channels(trial.rope, trial.result, trial.length)


def _moved(channel: Channel) -> float:
    """Return by how many per cent a frequency differs from the unscaled one."""
    return 100 * abs(channel.ratio - 1)


def _span(values: Sequence[float]) -> str:
    """Return "1", or "1 to 64"; values that differ by rounding count as one."""
    low, high = min(values), max(values)
    words = [f"{value:.3g}" if value < 1e3 else f"{value:g}" for value in (low, high)]
    words = [word.replace("inf", "∞") for word in words]
    return words[0] if words[0] == words[1] else " to ".join(words)
