"""Examine, export and run one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.api.describe import kinds_of
from harness.api.observer import LOG, Observer
from harness.api.settings import name_of, read_spec
from harness.errors import UserError
from harness.inspection.check import BAND_WINDOWS, OWN, Geometry, check_encoding, check_method
from harness.inspection.inspect import Inspection
from harness.inspection.inspect import inspect as compute
from harness.methods import Finding
from harness.models.config import read_config
from harness.patching import patch
from harness.patching.config import rope_of
from harness.plugins import entry, load
from harness.serve._doctor import examine
from harness.serve._export import Export, write
from harness.serve._export import export as choose
from harness.serve._server import Server
from harness.sweep.spec import Spec
from scaling.types import Rotation


@contextmanager
def patched(model: Any, rotation: Rotation) -> Iterator[Any]:
    """Run a loaded Hugging Face causal language model with what a method returned, and yield it.

    On exit the model is bit for bit what it was, also after an error. The rotation is that of one
    length: bands (methods that move positions) reach no further, prompt and new tokens together.
    Raises UserError, naming the model, where its rotary embedding cannot be replaced as a whole,
    and for a rotation that is the library's own stateful type.
    """
    if not isinstance(rotation, Rotation):
        raise UserError(
            f"patched takes what a method returns, not {type(rotation).__name__}: "
            "methods.yarn(rope_of(model.config), length, factor=4)."
        )
    if rotation.stateful:
        raise UserError(
            "this rotation is transformers' own stateful type: load the model with it instead."
        )
    with patch.patched(model, rotation):
        yield model


def doctor(
    model: str | Path,
    *,
    server: str | None = None,
    quick: bool = False,
    observer: Observer = LOG,
    **settings: Any,
) -> list[Finding]:
    """Return the findings of ``ropewalk doctor``: each ``about``, ``verdict`` and ``text``.

    ``settings`` are those of the command line: ``scaling``, ``length``, ``docs``, … Raises
    UserError for what cannot be examined.
    """
    with observer.status("Examining") as update:
        return list(findings(model, server=server, quick=quick, say=update, **settings))


def findings(
    model: str | Path,
    *,
    server: str | None,
    quick: bool,
    say: Callable[[str], None],
    **settings: Any,
) -> Iterator[Finding]:
    """Yield the findings of ``doctor`` one by one; ``say`` receives each step."""
    spec = read_spec({"model": name_of(model), **settings}, {"scaling": "native", "length": "1x"})
    other = Server(server, quick=quick) if server else None
    return examine(spec, other, quick=quick, say=say)


def export(
    model: str | Path,
    *,
    scaling: str | Callable[..., Any],
    length: int | str,
    to: str,
    out: str | Path | None = None,
    copy: bool = False,
    observer: Observer = LOG,
    **settings: Any,
) -> Export:
    """Return what an engine reads for a method at a length; write it where ``out`` is given.

    ``to`` is transformers, vllm, sglang, gguf, mlx or hf-code; ``settings`` are revision, offline
    and trust_remote_code. ``print(result.text())`` is what the command prints, ``result.changed``
    the keys, ``result.distance`` the numerical error relative to the frequencies that were
    measured. Raises UserError for what the engine cannot express.
    """
    given = {"model": name_of(model), "scaling": [scaling], "length": [str(length)], **settings}
    return written_export(read_spec(given), to, out, copy=copy, observer=observer)


def written_export(
    spec: Spec, to: str, out: str | Path | None, *, copy: bool, observer: Observer
) -> Export:
    """Return an export, with the folder or file where it was written."""
    if copy and out is None:
        raise UserError("--copy copies weights into the folder of --out; name one.")
    with observer.status("Reading config"):
        result = choose(spec, to)
    if out is None:
        return result
    with observer.status("Writing"):
        return replace(result, place=write(result, Path(out), spec.revision, copy=copy))


class Checked(NamedTuple):
    """The findings on a method or an encoding of a name."""

    label: str
    findings: tuple[Finding, ...]


def check(
    plugin: str, *, model: str | Path | None = None, observer: Observer = LOG, **settings: Any
) -> list[Checked]:
    """Return the findings of ``ropewalk check`` on a method or an encoding.

    Each comes with its label; a name that is a method and an encoding has both. A method is checked
    at many geometries, or at those of a ``model``, from its config alone, up to ``length``
    (default: 16x); ``settings`` are length, revision, offline and trust_remote_code. Raises
    UserError for what is neither.
    """
    own = plugin.partition(":")[0]
    kinds = ["method"] if own.endswith(".json") else kinds_of(own, ("method", "encoding"))
    given = {key: value for key, value in settings.items() if value is not None}
    if given and model is None:
        raise UserError(f"--{next(iter(given))} is for a model; give --model too.")
    geometries = _geometries(name, given) if (name := name_of(model)) else None
    if geometries:
        kinds = ["method"]
    results = []
    with observer.status("Checking"):
        for kind in kinds:
            loaded = load(kind, plugin)
            if kind == "encoding":
                result = check_encoding(plugin)
            else:
                method = partial(entry(loaded.module, kind), **loaded.arguments)
                result = check_method(method, geometries, () if geometries else OWN)
            label = f"{kind} {loaded.label}" if len(kinds) > 1 else loaded.label
            results.append(Checked(label, result))
    return results


def _geometries(model: str, settings: dict[str, Any]) -> list[Geometry]:
    """Return the rotary geometry of a model at lengths up to the requested one."""
    spec = read_spec({"model": model, **settings}, {"length": f"{BAND_WINDOWS[-1]:g}x"})
    config = read_config(
        spec.model, revision=spec.revision, trust_remote_code=spec.trust_remote_code
    )[1]
    rope = rope_of(config)
    longest = max(spec.lengths(rope.trained_length)) / rope.trained_length
    windows = [*(one for one in (*BAND_WINDOWS, 4.0) if one < longest), longest]
    return [(rope, one) for one in windows]


def inspect(
    model: str | Path | None = None,
    *,
    base: Sequence[float] = (),
    encoding: Sequence[str] = (),
    out: str | Path | None = None,
    observer: Observer = LOG,
    **settings: Any,
) -> Inspection:
    """Return what each scaling does to a model's channels, from its config alone.

    ``base`` and ``encoding`` add other bases and encodings to the figure of scores, which with the
    tables is written into ``out``; ``settings`` are scaling, length, revision, offline and
    trust_remote_code. Raises UserError as a sweep would.
    """
    spec = read_spec({"model": name_of(model), **settings})
    with observer.status("Reading config"):
        return compute(spec, base, encoding, Path(out) if out else None)
