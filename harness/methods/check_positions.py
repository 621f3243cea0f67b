"""Check the contract of a method that moves positions, and describe where it moves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

from harness.errors import UserError
from harness.methods.findings import Finding, Trial, repeats, runs, tokens, where, windows_of
from harness.plugins import call
from scaling.types import Bands, Frequencies, Rope, Rotation, StatefulRope, by_distance, plainest

SERVED = "beyond the window it runs on a model only: there is nothing to check"
Method = Callable[[Rope, int], Rotation]
ROPES = tuple(Rope(*given) for given in product((16, 64, 128), (1e4, 5e5), (256, 1024)))
LARGE = Rope(16, 1e4, 131_072)  # a method's own window may be larger than a small model's
WINDOWS = (0.5, 1.0, 2.0, 8.0, 16.0)  # lengths, in trained windows
GEOMETRIES = tuple(product(ROPES, WINDOWS))
OWN = tuple(2**power for power in range(8, 19))  # windows, in tokens, that are read whole
Tried = Trial[Bands]


def moves_positions(method: Method, ropes: Sequence[Rope] = (ROPES[0], LARGE)) -> bool:
    """Return whether a method returns bands at any length without a ValueError."""
    for rope, windows in product(ropes, WINDOWS):
        ask = partial(method, rope, tokens(rope, windows))
        with suppress(UserError):
            if call("", lambda: isinstance(ask(), Bands | StatefulRope)):  # noqa: B023  # called here
                return True
    return False


def check_bands(
    method: Method, geometries: Sequence[tuple[Rope, float]] = GEOMETRIES, own: Sequence[int] = OWN
) -> tuple[Finding, ...]:
    """Call a method at every rope and length; return what holds and what does not, in words.

    ``own`` are trained windows that are tried whole, beside those of the geometries.
    """
    trials = [_attempt(method, rope, tokens(rope, windows)) for rope, windows in geometries]
    far = max(trial.windows for trial in trials)
    found = [runs(trials, f"at all {len(trials)} geometries tried, up to {far:g} windows")]
    good = [trial for trial in trials if trial.found]
    if good and found[0].verdict != "failed":
        causal = Finding("pairs", "passed", "causal, none twice, every query meets a key")
        inside = [trial for trial in good if trial.windows <= 1]
        if own:
            inside += _whole(method, good[0].rope, _boundaries(good) | set(own))
        found += [causal, repeats(good), _inside(inside), *_reach(good), _order(good)]
    return tuple(found)


def _boundaries(trials: Sequence[Tried]) -> set[int]:
    """Return the windows in which some band would just begin or end: its distances are data.

    A band from a fixed distance on acts in every window that is larger, whatever was tried.
    """
    edges = set[int]()
    for trial in trials:
        for band in trial.result.bands:
            if band.start + len(band.first) == trial.length:  # it meets the last query
                edges |= {trial.length - int(band.first[-1]), trial.length - int(band.end[-1])}
    return {size for edge in edges for size in (edge, edge + 1) if OWN[0] <= size <= OWN[-1]}


def _whole(method: Method, like: Rope, sizes: set[int]) -> list[Tried]:
    """Return what a method does with the whole of windows of these sizes and between them.

    Where it leaves small ones alone and not larger ones, the least that it changes is among them.
    """
    between = {sum(pair) // 2 for pair in pairwise(sorted(sizes))}
    found = [_read(method, replace(like, trained_length=n)) for n in sorted(sizes | between)]
    same = [trial.length for trial in found if trial.found and _is_plain(trial)]
    apart = [trial.length for trial in found if trial.found and not _is_plain(trial)]
    high = min(apart, default=0)
    low = max((size for size in same if size < high), default=0)
    while low and high - low > 1:
        found.append(_read(method, replace(like, trained_length=(low + high) // 2)))
        plain = found[-1].found is None or _is_plain(found[-1])
        low, high = (found[-1].length, high) if plain else (low, found[-1].length)
    return [trial for trial in found if trial.found]


def _read(method: Method, rope: Rope) -> Tried:
    """Return what a method does with the whole of a window."""
    size = rope.trained_length
    try:
        return Tried(rope, size, call("", lambda: _as_bands(method(rope, size), size)))
    except UserError as error:
        return Tried(rope, size, refused=str(error))


def _attempt(method: Method, rope: Rope, length: int) -> Tried:
    """Call a method at one length, then at another, then at the first again."""
    try:
        found, same = call(f"at {where(rope, length)}", partial(_twice, method, rope, length))
    except UserError as error:
        text = str(error).rstrip(".")
        if isinstance(error.__cause__, ValueError):
            return Tried(rope, length, refused=text)
        return Tried(rope, length, raised=text)
    return Tried(rope, length, found, repeats=same)


def _twice(method: Method, rope: Rope, length: int) -> tuple[Bands, bool]:
    """Return what a method gives, as bands, and whether it gives the same again."""
    found = method(rope, length)
    bands = _as_bands(found, length)
    method(rope, 2 * length)
    return bands, method(rope, length).fingerprint == found.fingerprint


def _as_bands(found: Rotation, length: int) -> Bands:
    """Return a rotation as bands; raise ValueError for one that is none."""
    if isinstance(found, StatefulRope):
        raise ValueError(SERVED)
    if isinstance(found, Frequencies):
        return Bands(length, (by_distance(length, found, 0),))
    if not isinstance(found, Bands):
        raise ValueError(f"it returned {type(found).__name__}, not Bands or Frequencies")
    return found


def _inside(trials: Sequence[Tried]) -> Finding:
    """Return whether a trained window is read as in training, and in which it is not."""
    if not trials:
        return Finding("inside the window", "note", "not known")
    apart = [trial for trial in trials if not _is_plain(trial)]
    if not apart:
        text = f"equal to none, bit for bit, {windows_of(trials)}"
        return Finding("inside the window", "passed", text)
    text = "not equal to none: the model reads its own window differently from training"
    least = min(trial.rope.trained_length for trial in apart)
    same = [trial for trial in trials if trial.rope.trained_length < least]
    if same:
        text = (
            f"not equal to none in windows of {least:,} tokens and more, which the model then reads"
            f" differently from training; equal {windows_of(same)}"
        )
    return Finding("inside the window", "note", text)


def _is_plain(trial: Tried) -> bool:
    plain = Frequencies(trial.rope.inv_freq()).fingerprint
    return plainest(trial.result).fingerprint == plain


def _reach(trials: Sequence[Tried]) -> list[Finding]:
    """Describe how far pairs are rotated, in trained windows, and which share is attended to."""
    far, met = [], []
    for windows in sorted({trial.windows for trial in trials if trial.windows > 1}):
        there = [trial for trial in trials if trial.windows == windows]
        if there:
            most = max(trial.result.reach / trial.rope.trained_length for trial in there)
            far.append(f"{most:.3g} at {windows:g} windows")
            pairs = [t.result.pairs / (t.length * (t.length + 1) / 2) for t in there]
            met.append(f"{min(pairs):.0%} at {windows:g} windows")
    text = f"relative positions, in windows: up to {', '.join(far)}"
    found = [Finding("reach", "note", text)] if far else []
    if any(trial.result.pairs < trial.length * (trial.length + 1) / 2 for trial in trials):
        found.append(Finding("attended to", "note", f"of all pairs {', '.join(met)}"))
    scaled = any(trial.result.query_scale is not None for trial in trials)
    return found + [Finding("queries", "note", "scaled by their position")] * scaled


def _order(trials: Sequence[Tried]) -> Finding:
    """Return whether a farther key is also rotated farther, for the last query."""
    for trial in trials:
        relative = trial.result.relative(trial.length - 1).flip(0)  # by distance
        seen = relative[~relative.isnan()]
        if bool((seen.diff() < 0).any()):
            at = f"window {trial.rope.trained_length}, length {trial.length}"
            return Finding("order", "note", f"a farther key is rotated nearer, first at {at}")
    return Finding("order", "passed", "a farther key is never rotated nearer")
