"""Check the contract of a method that moves positions, and describe where it moves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from harness.errors import UserError
from harness.methods.findings import Finding, Trial, repeats, runs, where
from harness.plugins import call
from scaling._bands import Bands, by_distance, plainest
from scaling._rotation import Rotation
from scaling._served import Served
from scaling._types import Frequencies, Rope

SERVED = "beyond the window it runs on a model only: there is nothing to check"
Method = Callable[[Rope, int], Rotation]
ROPES = tuple(Rope(*given) for given in product((16, 64, 128), (1e4, 5e5), (256, 1024)))
LARGE = Rope(16, 1e4, 131_072)  # a method's own window may be larger than a small model's
WINDOWS = (0.5, 1.0, 2.0, 8.0, 16.0)  # lengths, in trained windows
GEOMETRIES = tuple(product(ROPES, WINDOWS))
Tried = Trial[Bands]


def moves_positions(method: Method) -> bool:
    """Return whether a method returns bands at any length without a ValueError."""
    for rope, windows in product((ROPES[0], LARGE), WINDOWS):
        try:
            found: object = call("", partial(method, rope, _length(rope, windows)))
        except UserError:
            continue
        if isinstance(found, Bands | Served):
            return True
    return False


def check_bands(method: Method) -> tuple[Finding, ...]:
    """Call a method at every rope and length; return what holds and what does not, in words."""
    trials = [_attempt(method, rope, _length(rope, windows)) for rope, windows in GEOMETRIES]
    found = [runs(trials, f"at all {len(trials)} geometries tried, up to 16 windows")]
    good = [trial for trial in trials if trial.found]
    if good and found[0].verdict != "failed":
        causal = Finding("pairs", "passed", "causal, none twice, every query meets a key")
        found += [causal, repeats(good), _inside(good), *_reach(good), _order(good)]
    return tuple(found)


def _length(rope: Rope, windows: float) -> int:
    return int(windows * rope.trained_length)


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
    if isinstance(found, Served):
        raise ValueError(SERVED)
    if not isinstance(found, Bands | Frequencies):
        message = f"it returned {type(found).__name__}, not Bands or Frequencies"
        raise ValueError(message)
    method(rope, 2 * length)
    same = method(rope, length).fingerprint == found.fingerprint
    if isinstance(found, Frequencies):
        found = Bands(length, (by_distance(length, found, 0),))
    return found, same


def _inside(trials: Sequence[Tried]) -> Finding:
    inside = [trial for trial in trials if trial.windows <= 1]
    plain = [Frequencies(trial.rope.inv_freq()).fingerprint for trial in inside]
    if [plainest(trial.result).fingerprint for trial in inside] == plain:
        return Finding("inside the window", "passed", "equal to none, bit for bit")
    text = "not equal to none: the model reads its own window differently from training"
    return Finding("inside the window", "note", text)


def _reach(trials: Sequence[Tried]) -> list[Finding]:
    """Describe how far pairs are rotated, in trained windows, and which share is attended to."""
    far, met = [], []
    for windows in WINDOWS[2:]:
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
