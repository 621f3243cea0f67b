"""Check the contract of a method or an encoding: a table of properties each, and one runner."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers.utils import logging

from harness.encodings._config import config_of
from harness.encodings._model import EncodingForCausalLM
from harness.errors import UserError
from harness.methods import Finding, Verdict
from harness.methods.channels import FLOAT32, ROUNDING, Channel, channels
from harness.plugins import call
from scaling.types import Bands, Frequencies, Rope, Rotation

Method = Callable[[Rope, int], Rotation]
Geometry = tuple[Rope, float]  # and a length in trained windows
Answer = tuple[Verdict, str] | None  # of a property; None where it does not apply

ROPES = tuple(
    Rope(*geometry, layers=6)
    for geometry in product((16, 32, 64, 128), (1e3, 1e4, 5e5, 1e6), (256, 4096, 131072))
)
WINDOWS = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0)  # lengths, in trained windows
SLOWEST = (2.0, 8.0, 64.0)  # of them, those at which the slowest channel is reported
BAND_ROPES = tuple(Rope(*given) for given in product((16, 64, 128), (1e4, 5e5), (256, 1024)))
LARGE = Rope(16, 1e4, 131_072)  # a method's own window may be larger than a small model's
BAND_WINDOWS = (0.5, 1.0, 2.0, 8.0, 16.0)
OWN = tuple(2**power for power in range(8, 19))  # windows, in tokens, that are read whole
STATEFUL = "beyond the window it runs on a model only: there is nothing to check"
CONTRACT = ("runs", "result", "numbers", "pairs")


def run_properties(
    subject: Any, properties: Mapping[str, Callable[[Any], Answer]], what: str
) -> tuple[Finding, ...]:
    """Test each property of a subject; an error in the plug-in's code fails the property.

    Without a valid result only the contract is tested.
    """
    findings = []
    for about, test in properties.items():
        if about not in CONTRACT and not subject.valid:
            continue
        try:
            answer = call(what, partial(test, subject))
        except UserError as error:
            answer = ("failed", str(error))
        if answer is not None:
            findings.append(Finding(about, *answer))
    return tuple(findings)


def check_method(
    method: Method, geometries: Sequence[Geometry] | None = None, own: Sequence[int] = OWN
) -> tuple[Finding, ...]:
    """Check a method at many geometries, or at those of a model, as what it returns there.

    For a method that moves positions, ``own`` are trained windows that are tried whole.
    """
    as_bands = moves_positions(
        method, geometries or [*product((BAND_ROPES[0], LARGE), BAND_WINDOWS)]
    )
    many = product(BAND_ROPES, BAND_WINDOWS) if as_bands else product(ROPES, WINDOWS)
    subject = _Trials(
        [
            _attempt(method, rope, tokens(rope, windows), as_bands=as_bands)
            for rope, windows in geometries or many
        ]
    )
    if as_bands and own and subject.good:
        sizes = _boundaries(subject.good) | set(own)
        subject.inside += _read_windows(method, subject.good[0].rope, sizes)
    return run_properties(subject, BANDS if as_bands else FREQUENCIES, "the method")


def moves_positions(method: Method, geometries: Sequence[Geometry]) -> bool:
    """Return whether a method returns bands at any of these geometries without an error."""

    def moves(rope: Rope, windows: float) -> bool:
        result: Any = method(copy.deepcopy(rope), tokens(rope, windows))
        return isinstance(result, Rotation) and (result.moves_positions or result.stateful)

    for geometry in geometries:
        with suppress(UserError):
            if call("", partial(moves, *geometry)):
                return True
    return False


@dataclass(frozen=True)
class _Trial:
    """The result of a method at one rope and length, or an error: its kind and its text.

    Kinds of errors: refused (the method's own ValueError), raised (any other), and the properties
    of results that it violates: result, numbers, pairs.
    """

    rope: Rope
    length: int
    result: Any = None  # Frequencies or Bands
    error: tuple[str, str] | None = None
    repeats: bool = True
    pure: bool = True

    @property
    def windows(self) -> float:
        return self.length / self.rope.trained_length

    @property
    def place(self) -> str:
        return (
            f"rotary_dim {self.rope.rotary_dim}, base {self.rope.base:g}, window "
            f"{self.rope.trained_length}, length {self.length}"
        )

    @property
    def channels(self) -> tuple[Channel, ...]:
        return channels(self.rope, self.result, self.length)

    @property
    def plain(self) -> bool:
        """Return whether the result is the plain rotary embedding, bit for bit."""
        plain = Frequencies(self.rope.inv_freq())
        return bool(self.result.plainest().fingerprint == plain.fingerprint)


class _Trials:
    """All trials of a method; ``good`` have a result, one per set of frequencies."""

    def __init__(self, trials: Sequence[_Trial]) -> None:
        self.all = trials
        self.good = [
            replace(trial, result=result)
            for trial in trials
            if trial.result is not None
            for result in (
                trial.result.frequency_sets() if trial.result.per_layer else (trial.result,)
            )
        ]
        self.valid = bool(self.good)
        self.inside = [trial for trial in self.good if trial.windows <= 1]

    def errors(self, kind: str) -> list[str]:
        return [trial.error[1] for trial in self.all if trial.error and trial.error[0] == kind]


def tokens(rope: Rope, windows: float) -> int:
    """Return a length of so many trained windows in tokens, 1 at least."""
    return max(1, round(windows * rope.trained_length))


def _attempt(method: Method, rope: Rope, length: int, *, as_bands: bool) -> _Trial:
    """Call a method at one length, then at another, then at the first again."""
    given, trial = copy.deepcopy(rope), _Trial(rope, length)
    place, far = f"at {trial.place}", (2 if as_bands else 16) * length
    try:
        result: Any = call(place, lambda: method(given, length))
        if as_bands:
            bands = call(place, lambda: _as_bands(result, length))
        elif wrong := call(place, lambda: _unfit(result, rope)):
            return replace(trial, error=(wrong[0], f"{place}: {wrong[1]}"))
        first = result.fingerprint
        call(f"at {replace(trial, length=far).place}", lambda: method(given, far))
        kept = result.fingerprint  # another one where a buffer is shared
        second = call(place, lambda: method(given, length).fingerprint)
    except UserError as error:
        return replace(trial, error=_kind_of(error))
    return replace(
        trial,
        result=bands if as_bands else result,
        repeats=first == kept == second,
        pure=given == rope,
    )


def _kind_of(error: UserError) -> tuple[str, str]:
    """Return whether a method refused, its frequencies were invalid, or its code failed."""
    text, cause = str(error).rstrip("."), error.__cause__
    if not isinstance(cause, ValueError):
        return "raised", text
    *_, (frame, _) = traceback.walk_tb(cause.__traceback__)
    constructed = frame.f_code is Frequencies.__post_init__.__code__  # it checks its numbers there
    return ("numbers" if constructed else "refused"), text


def _unfit(result: Any, rope: Rope) -> tuple[str, str] | None:
    """Return what is wrong with a result: kind and description."""
    if not isinstance(result, Rotation) or result.moves_positions or result.stateful:
        return "result", f"it returned {type(result).__name__}, not Frequencies"
    try:
        result.checked(rope, 0)
    except ValueError as error:
        return "pairs", str(error)
    return None


def _as_bands(result: Rotation, length: int) -> Bands:
    """Return a rotation as bands; raise ValueError for one that cannot be."""
    if not isinstance(result, Rotation) or result.per_layer:
        raise ValueError(f"it returned {type(result).__name__}, not Bands or Frequencies")
    if result.stateful:
        raise ValueError(STATEFUL)
    return result.as_bands(length)


def _boundaries(trials: Sequence[_Trial]) -> set[int]:
    """Return the windows in which some band would just begin or end: its distances are data.

    A band from a fixed distance on acts in every window that is larger, whatever was tried.
    """
    edges = set[int]()
    for trial in trials:
        for band in trial.result.bands:
            if band.start + len(band.first) == trial.length:  # it meets the last query
                edges |= {trial.length - int(band.first[-1]), trial.length - int(band.end[-1])}
    return {size for edge in edges for size in (edge, edge + 1) if OWN[0] <= size <= OWN[-1]}


def _read_windows(method: Method, like: Rope, sizes: set[int]) -> list[_Trial]:
    """Return what a method does with the whole of windows of these sizes and between them.

    Where it leaves small ones alone and not larger ones, the least that it changes is among them.
    """

    def read(size: int) -> _Trial:
        trial = _Trial(replace(like, trained_length=size), size)
        with suppress(UserError):
            return replace(
                trial, result=call("", lambda: _as_bands(method(trial.rope, size), size))
            )
        return trial

    between = {sum(pair) // 2 for pair in pairwise(sorted(sizes))}
    trials = [read(size) for size in sorted(sizes | between)]
    good = [trial for trial in trials if trial.result is not None]
    high = min((trial.length for trial in good if not trial.plain), default=0)
    low = max((trial.length for trial in good if trial.plain and trial.length < high), default=0)
    while low and high - low > 1:
        trials.append(read((low + high) // 2))
        plain = trials[-1].result is None or trials[-1].plain
        low, high = (trials[-1].length, high) if plain else (low, trials[-1].length)
    return [trial for trial in trials if trial.result is not None]


def _runs(trials: _Trials) -> Answer:
    raised, refused = trials.errors("raised"), trials.errors("refused")
    count = len(trials.all)
    if raised:
        return "failed", f"an error in {len(raised)} of {count} calls: {raised[0]}"
    if len(refused) == count:
        return "failed", f"it raises ValueError at every geometry: {refused[0]}"
    if refused:
        return "note", f"ValueError in {len(refused)} of {count} calls: {refused[0]}"
    spans = {
        "rotary_dim": _span([trial.rope.rotary_dim for trial in trials.all]),
        "base": _span([trial.rope.base for trial in trials.all]),
        "window": _span([trial.rope.trained_length for trial in trials.all]),
        "length in windows": _span([trial.windows for trial in trials.all]),
    }
    named = ", ".join(f"{name} {span}" for name, span in spans.items())
    return "passed", f"at all {count} geometries tried: {named}"


def _results(kind: str, right: str) -> Callable[[_Trials], Answer]:
    """Return a property of results, in which errors are of its kind."""

    def test(trials: _Trials) -> Answer:
        if wrong := trials.errors(kind):
            return "failed", f"not in {len(wrong)} of {len(trials.all)} calls: {wrong[0]}"
        return ("passed", right) if trials.good else None

    return test


def _each(
    holds: Callable[[_Trial], bool], right: str, wrong: str, verdict: Verdict = "failed"
) -> Callable[[_Trials], Answer]:
    """Return a property of each trial; the first that does not have it is named."""

    def test(trials: _Trials) -> Answer:
        first = next((trial for trial in trials.good if not holds(trial)), None)
        return ("passed", right) if first is None else (verdict, f"{wrong}, first at {first.place}")

    return test


REPEATS = _each(
    lambda trial: trial.repeats,
    "the same call gives the same bits",
    "the same call gives other numbers the second time",
)


def _inside(trials: _Trials) -> Answer:
    """Return whether the trained window is read as in training, and the changes if not."""
    inside = trials.inside
    if not inside:
        return "note", "not known"
    tried = _windows_of(inside)
    changed = [trial for trial in inside if not trial.plain]
    if not changed:
        return "passed", f"equal to none, bit for bit, {tried}"
    if changed[0].result.moves_positions:
        least = min(trial.rope.trained_length for trial in changed)
        same = [trial for trial in inside if trial.rope.trained_length < least]
        if same:
            return "note", (
                f"not equal to none in windows of {least:,} tokens and more, which the model then "
                f"reads differently from training; equal {_windows_of(same)}"
            )
        return "note", "not equal to none: the model reads its own window differently from training"
    moved = max(_moved(channel) for trial in inside for channel in trial.channels)
    factors = [float(trial.result.attention_factor) for trial in inside]
    if moved <= 100 * ROUNDING and all(abs(one - 1) <= FLOAT32.eps for one in factors):
        text = f"equal to none but for the rounding of float32 ({moved:.3g} %), {tried}"
        return "passed", text
    return "note", (
        f"not equal to none: frequencies move by up to {moved:.3g} %, attention factor "
        f"{_span(factors)}; the model reads its own window differently from training"
    )


def _fastest(trials: _Trials) -> Answer:
    worst = max(trials.good, key=lambda trial: _moved(trial.channels[0]))
    moved = _moved(worst.channels[0])
    text = f"moves by up to {moved:.3g} %, {worst.place}"
    return "note", text if moved > 100 * ROUNDING else "never moves"


def _slowest(trials: _Trials) -> Answer:
    slow = []
    longer = sorted({trial.windows for trial in trials.good if trial.windows > 1})
    for windows in (one for one in longer if one in SLOWEST or one == longer[-1]):
        ratios = [
            trial.channels[-1].ratio
            for trial in trials.good
            if math.isclose(trial.windows, windows)
        ]
        slower = _span([1 / ratio if ratio else math.inf for ratio in ratios])
        slow.append(f"{slower} at {windows:g} windows")
    return "note", f"slowed by {', '.join(slow)}" if slow else "not known"


def _unseen(trials: _Trials) -> Answer:
    counts = [sum(channel.unseen for channel in trial.channels) for trial in trials.good]
    most = max(counts)
    worst = trials.good[counts.index(most)]
    text = f"met by up to {most} of {len(worst.channels)} pairs, {worst.place}"
    return "note", text if most else "met by no pair at any length"


def _reach(trials: _Trials) -> Answer:
    far = [
        f"{max(t.result.reach / t.rope.trained_length for t in some):.3g} at {windows:g} windows"
        for windows, some in _beyond(trials).items()
    ]
    return ("note", f"relative positions, in windows: up to {', '.join(far)}") if far else None


def _attended(trials: _Trials) -> Answer:
    """Describe which share of the pairs is attended to, where it is not all."""
    if all(_share(trial) >= 1 for trial in trials.good):
        return None
    shares = [
        f"{100 * min(map(_share, some)):.0f} % at {windows:g} windows"
        for windows, some in _beyond(trials).items()
    ]
    return "note", f"of all pairs {', '.join(shares)}"


def _beyond(trials: _Trials) -> dict[float, list[_Trial]]:
    lengths = sorted({trial.windows for trial in trials.good if trial.windows > 1})
    return {one: [trial for trial in trials.good if trial.windows == one] for one in lengths}


def _share(trial: _Trial) -> float:
    return float(trial.result.pairs / (trial.length * (trial.length + 1) / 2))


def _queries(trials: _Trials) -> Answer:
    scaled = any(trial.result.query_scale is not None for trial in trials.good)
    return ("note", "scaled by their position") if scaled else None


def _order_of_positions(trials: _Trials) -> Answer:
    """Return whether a farther key is also rotated farther, for the last query."""
    for trial in trials.good:
        relative = trial.result.relative(trial.length - 1).flip(0)  # by distance
        seen = relative[~relative.isnan()]
        if bool((seen.diff() < 0).any()):
            place = f"window {trial.rope.trained_length}, length {trial.length}"
            return "note", f"a farther key is rotated nearer, first at {place}"
    return "passed", "a farther key is never rotated nearer"


def _windows_of(trials: Sequence[_Trial]) -> str:
    sizes = sorted({trial.rope.trained_length for trial in trials})
    if len(sizes) == 1:
        return f"in the window of {sizes[0]:,} tokens"
    if len(sizes) <= 3:
        named = f"{', '.join(f'{size:,}' for size in sizes[:-1])} and {sizes[-1]:,}"
        return f"in windows of {named} tokens, those tried"
    return f"in {len(sizes)} windows from {sizes[0]:,} to {sizes[-1]:,} tokens, those tried"


def _moved(channel: Channel) -> float:
    """Return by how many per cent a frequency differs from the unscaled one."""
    return 100 * abs(channel.ratio - 1)


def _span(values: Sequence[float]) -> str:
    """Return "1", or "1 to 64"; values that differ by rounding count as one."""
    low, high = min(values), max(values)
    words = [f"{value:.3g}" if value < 1e3 else f"{value:g}" for value in (low, high)]
    words = [word.replace("inf", "∞") for word in words]
    return words[0] if words[0] == words[1] else " to ".join(words)


FREQUENCIES: dict[str, Callable[[_Trials], Answer]] = {
    "runs": _runs,
    "result": _results("result", "it is Frequencies"),
    "numbers": _results("numbers", "float32, finite, none negative; attention factor above 0"),
    "pairs": _results("pairs", "one frequency for every channel pair"),
    "repeats": REPEATS,
    "pure": _each(lambda trial: trial.pure, "the rope is left as it was", "the rope is changed"),
    "order": _each(
        lambda trial: not bool((trial.result.inv_freq.diff() > 0).any()),
        "fastest channel pair first",
        "a pair is faster than the one before it",
        "note",
    ),
    "inside the window": _inside,
    "fastest pair": _fastest,
    "slowest pair": _slowest,
    "unseen angles": _unseen,
    "attention factor": lambda trials: (
        "note",
        _span([float(trial.result.attention_factor) for trial in trials.good]),
    ),
}
BANDS: dict[str, Callable[[_Trials], Answer]] = {
    "runs": _runs,
    "pairs": _results("pairs", "causal, none twice, every query meets a key"),
    "repeats": REPEATS,
    "inside the window": _inside,
    "reach": _reach,
    "attended to": _attended,
    "queries": _queries,
    "order": _order_of_positions,
}
FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 101,
    "initializer_range": 0.5,
}
PARTS = ("inputs", "turn", "scores", "values", "attend")
CUTS = (20, 21, 40)  # where a text is cut, to be read by a cache
TOLERANCE = 1e-3  # of logits whose spread is about 1


@torch.inference_mode()
def check_encoding(encoding: str) -> tuple[Finding, ...]:
    """Check an encoding in a small model of random weights."""
    logging.disable_progress_bar()
    what = f"encoding {encoding}"
    try:
        model = call(what, lambda: _Model(encoding))
    except UserError as error:
        return (Finding("runs", "failed", str(error)),)
    return run_properties(model, ENCODING, what)


class _Model:
    """A model around an encoding, random in its parameters too, and its logits of a text."""

    def __init__(self, encoding: str) -> None:
        config = config_of(encoding, **FIELDS)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = EncodingForCausalLM(config).eval()
            self.encoding: Any = self.model.model.encoding
            for parameter in self.encoding.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        window = config.max_position_embeddings
        self.tokens = torch.arange(2 * window)[None] ** 2 % config.vocab_size
        self.inside = self.tokens[:, :window]
        self.whole = self.logits(self.inside)
        self.valid = bool(torch.isfinite(self.whole).all())

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return result


def _finite(model: _Model) -> Answer:
    if not model.valid:
        return "failed", "not finite"
    count = sum(parameter.numel() for parameter in model.encoding.parameters())
    return "passed", f"finite logits; it adds {count:,} parameters here"


def _methods(model: _Model) -> Answer:
    """Say which methods of the contract the model calls, and which it never does."""
    has = [part for part in PARTS if hasattr(model.encoding, part)]
    if "attend" in has and {"scores", "values"} & set(has):
        return "failed", "attend replaces softmax attention: scores and values are never called"
    if hasattr(model.encoding, "base") and "turn" not in has:
        return "failed", "base gives a rotary embedding that nothing turns by: there is no turn"
    named = ", ".join(has) or "none of " + ", ".join(PARTS)
    own = "; its scale replaces 1/sqrt(head_dim)" if hasattr(model.encoding, "scale") else ""
    return "note", f"it has {named}{own}"


def _near(result: torch.Tensor, wanted: torch.Tensor, right: str) -> Answer:
    error = float((result - wanted).abs().max())
    return ("passed", right) if error < TOLERANCE else ("failed", f"logits differ by {error:.2g}")


def _causal(model: _Model) -> Answer:
    """Say whether other tokens from 40 on change the logits before them."""
    changed = torch.cat((model.inside[:, :40], model.inside[:, 40:] + 1), 1)
    logits = model.logits(changed % model.model.config.vocab_size)
    return _near(logits[:, :40], model.whole[:, :40], "no token sees a later one")


def _cache(model: _Model) -> Answer:
    """Say whether a text that is read in parts, one a single token, has the same logits."""
    cache, parts = None, []
    for part in model.inside.tensor_split(CUTS, 1):
        out = model.model(input_ids=part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    return _near(torch.cat(parts, 1), model.whole, "read in parts it gives the same logits")


def _saved(model: _Model) -> Answer:
    """Say whether a model that is saved and read gives the same bits."""
    with TemporaryDirectory() as folder, suppress(RuntimeError):  # of a tensor without values
        model.model.save_pretrained(folder)
        config = copy.deepcopy(model.model.config)
        read = EncodingForCausalLM.from_pretrained(folder, config=config).eval()
        logits = read(input_ids=model.inside, use_cache=False).logits
        if torch.equal(logits, model.whole):
            return "passed", "read from its file it gives the same bits"
    return "failed", "a tensor is not saved"


def _order_of_tokens(model: _Model) -> Answer:
    """Say whether the last token's logits depend on the order of those before it in one layer."""
    layers = model.model.model.layers
    model.model.model.layers = layers[:1]
    plain = model.logits(model.inside)[:, -1]
    turned = torch.cat((model.inside[:, :-1].flip(1), model.inside[:, -1:]), 1)
    difference = float((model.logits(turned)[:, -1] - plain).abs().max())
    model.model.model.layers = layers
    does = "tells" if difference > TOLERANCE else "does not tell"
    return "note", f"one layer {does} the order of tokens"


def _past_window(model: _Model) -> Answer:
    """Say whether the model reads past its window; any error of the encoding means no."""
    try:
        call("it", lambda: model.logits(model.tokens))
    except UserError as error:
        table = isinstance(error.__cause__, IndexError)
        why = "" if table else f": {str(error).removeprefix('it: ').removeprefix('it failed: ')}"
        return "note", f"no text longer than the trained window is read{why}"
    return "note", "a text of two windows is read"


ENCODING: dict[str, Callable[[_Model], Answer]] = {
    "runs": _finite,
    "parts": _methods,
    "causal": _causal,
    "cache": _cache,
    "saved": _saved,
    "order": _order_of_tokens,
    "beyond": _past_window,
}
