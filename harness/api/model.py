"""Examine, export and run one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.harness.api.describe import kinds_of
from ropewalk.harness.api.observer import LOG, Observer
from ropewalk.harness.api.settings import name_of, read_spec
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.config import read_config
from ropewalk.harness.patching import patch
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.plugins import call, entry, load
from ropewalk.harness.reports._inspection import Inspection
from ropewalk.harness.reports._inspection import inspect as compute
from ropewalk.harness.serve._doctor import Finding, examine
from ropewalk.harness.serve._export import Export, write
from ropewalk.harness.serve._export import export as choose
from ropewalk.harness.serve._server import Server
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.testing import check_encoding, check_method
from ropewalk.scaling.types import Rope, Rotation


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
    with observer.status("Examining"):
        return list(findings(model, server=server, quick=quick, **settings))


def findings(
    model: str | Path, *, server: str | None, quick: bool, **settings: Any
) -> Iterator[Finding]:
    """Yield the findings of ``doctor`` one by one."""
    spec = read_spec({"model": name_of(model), **settings}, {"scaling": "native", "length": "1x"})
    other = Server(server, quick=quick) if server else None
    return examine(spec, other, quick=quick)


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
        return replace(result, place=write(result, Path(out), copy=copy))


def check(
    plugin: str, *, model: str | Path | None = None, observer: Observer = LOG, **settings: Any
) -> list[Finding]:
    """Return whether a method or an encoding keeps its contract; a name of both has two findings.

    A method is checked at the geometry of a ``model``, from its config alone, and at every
    ``length`` (default: 0.5x, 1x, 2x and 16x); ``settings`` are length, revision, offline and
    trust_remote_code. Raises UserError for what is neither.
    """
    name = plugin.partition(":")[0]
    kinds = ["method"] if name.endswith(".json") else kinds_of(name, ("method", "encoding"))
    findings = []
    with observer.status("Checking"):
        for kind in kinds:
            loaded = load(kind, plugin)
            about, where = f"{kind} {loaded.label}", ""
            test: Callable[..., None] = partial(check_encoding, plugin)
            if kind == "method":
                rope, lengths = _geometry({"model": name_of(model), **settings})
                method = partial(entry(loaded.module, kind), **loaded.arguments)
                test = partial(check_method, method, rope, lengths)
                where = (
                    f" at rotary_dim {rope.rotary_dim}, base {rope.base:g}, window "
                    f"{rope.trained_length}, lengths {', '.join(map(str, lengths))}"
                )
            if wrong := _broken(test):
                findings.append(Finding(about, "failed", wrong))
                continue
            findings.append(Finding(about, "passed", f"keeps the contract{where}"))
            if kind == "method" and (note := _broken(partial(test, plain_inside=True))):
                findings.append(Finding(about, "note", note))
    return findings


def _geometry(settings: Mapping[str, Any]) -> tuple[Rope, tuple[int, ...]]:
    spec = read_spec(settings, {"length": ("0.5x", "1x", "2x", "16x")})
    trusted = spec.trust_remote_code
    config = read_config(spec.model, revision=spec.revision, trust_remote_code=trusted)[1]
    rope = rope_of(config, spec.trained_length)
    return rope, spec.lengths(rope.trained_length)


def _broken(test: Callable[[], None]) -> str:
    """Return what a check finds wrong, or the error in a plug-in's code."""

    def found() -> str:
        try:
            test()
        except AssertionError as error:
            return str(error)
        return ""

    try:
        return call("its code", found)
    except UserError as error:
        return str(error)


def inspect(
    model: str | Path | None = None,
    *,
    out: str | Path | None = None,
    observer: Observer = LOG,
    **settings: Any,
) -> Inspection:
    """Return what each scaling does to a model's channels, from its config alone.

    Tables and figures are written into ``out``; ``settings`` are scaling, length, revision, offline
    and trust_remote_code. Raises UserError as a sweep would.
    """
    spec = read_spec({"model": name_of(model), **settings})
    with observer.status("Reading config"):
        return compute(spec, Path(out) if out else None)
