"""Describe one plug-in or bundled sweep: options with types, defaults, ranges, an example."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

from harness.errors import UserError
from harness.names import nearest
from harness.plugins import (
    CONTRACTS,
    FOLDERS,
    METHOD,
    call,
    defines,
    entry,
    hints_of,
    module_of,
    names,
    names_method,
    parameters,
)
from harness.sweep.spec import BUNDLED, bundled

WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
RANGE = re.compile(r"\bmust\b|\bneeds\b")  # of the sentences that say what an option may be
EXAMPLES = {
    "method": "ropewalk run --scaling none {} --length 1x 4x",
    "task": "ropewalk run --task {} --length 1x 4x",
    "report": "ropewalk report RUN --report {}",
    "engine": "ropewalk export MODEL --scaling yarn --length 4x --to {}",
    "encoding": "python scripts/train_encodings.py --encodings {} --minutes 3",
    "tracker": "ropewalk run --track {}",
    "sweep": "ropewalk run {} --dry-run",
}


@dataclass(frozen=True)
class Option:
    """An option for a user; ``range`` is the error sentence for a negative number."""

    name: str
    type: str
    default: str
    range: str


@dataclass(frozen=True)
class Description:
    """What ``ropewalk list NAME`` prints."""

    kind: str
    name: str
    text: str
    options: tuple[Option, ...]
    example: str


def describe(given: str, kind: str | None = None) -> Description:
    """Describe a built-in plug-in, a user's .py file or module, or a bundled sweep.

    ``kind`` is that of a name which several kinds have; unset, it is the first of them.

    A user's file is executed, and methods and tasks are called to learn the ranges of their
    options. Raises UserError for an unknown name.
    """
    name = given.partition(":")[0]
    if name in bundled():
        text = (BUNDLED / f"{name}.yaml").read_text(encoding="utf-8")
        return Description("sweep", name, text.rstrip(), (), EXAMPLES["sweep"].format(name))
    kind, module = _found(name, [kind] if kind else FOLDERS)
    known = parameters(module, kind)
    hints = hints_of(entry(module, kind))
    options = tuple(
        Option(
            option,
            _type(hints.get(option, str)),
            _default(parameter.default),
            _range(module, kind, option, hints.get(option)),
        )
        for option, parameter in known.items()
    )
    documented = [inspect.getdoc(module), inspect.getdoc(entry(module, kind))]
    text = "\n\n".join(part for part in documented if part)
    shown = Path(name).stem if name.endswith(".py") else name
    return Description(
        kind, shown, text, options, EXAMPLES[kind].format(_example(name, module, known))
    )


def _found(name: str, kinds: Iterable[str]) -> tuple[str, ModuleType]:
    """Return the kind of a name and its module; a user's kind is that of its contract."""
    for kind in kinds:
        if name in names(kind):
            return kind, module_of(kind, name)[0]
    if "." not in name:
        known = {*bundled(), *(plugin for kind in FOLDERS for plugin in names(kind))}
        raise UserError(
            f"nothing is called {name!r}; {nearest(name, known)}, or a path to a .py file."
        )
    module = module_of("plug-in", name)[0]
    if any(defines(name, module, part) for part in METHOD):
        return "method", module
    for kind in ("task", "report", "encoding"):
        if all(defines(name, module, part) for part in CONTRACTS[kind]):
            return kind, module
    raise UserError(
        f"{name} is no plug-in: a method defines {' or '.join(METHOD)}, a task "
        f"{', '.join(CONTRACTS['task'])}, a report {', '.join(CONTRACTS['report'])}, an encoding "
        f"{', '.join(CONTRACTS['encoding'])}."
    )


def _type(hint: Any) -> str:
    if names_method(hint):
        return "method"
    parts = [part for part in typing.get_args(hint) if part is not NoneType]
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, parts))
    if parts and NoneType in typing.get_args(hint):
        return " or ".join(map(_type, parts))
    plain = getattr(hint, "__supertype__", hint)  # of a NewType
    return WORDS.get(plain, str(plain))


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "none: give it"
    if value is None:
        return "unset"
    if inspect.isfunction(value):  # of a method
        return value.__module__.rpartition(".")[2]
    return str(value).lower() if isinstance(value, bool) else f"{value}" or "empty"


def _example(name: str, module: ModuleType, known: Mapping[str, inspect.Parameter]) -> str:
    """Return the name with one option: EXAMPLE_OPTIONS, a fixed factor, or the first default."""
    if hasattr(module, "EXAMPLE_OPTIONS"):
        return f"{name}:{module.EXAMPLE_OPTIONS}"
    if "factor" in known:
        return f"{name}:factor=4"
    set_ = [(key, p.default) for key, p in known.items() if p.default not in (None, p.empty)]
    return f"{name}:{set_[0][0]}={_default(set_[0][1])}" if set_ else name


def _range(module: ModuleType, kind: str, option: str, hint: Any) -> str:
    """Return the code's own error for a number out of range; empty where there is none."""
    if kind == "report" or not any(part in (int, float) for part in (hint, *typing.get_args(hint))):
        return ""
    for value in (-1, 0):
        try:
            call(option, partial(_call, module, kind, {option: value}))
        except UserError as error:
            text = str(error).removeprefix(f"{option}: ").partition(", got")[0].rstrip(".")
            if RANGE.search(text) and re.search(rf"\b{option}\b", text):
                return " ".join(text.split())
    return ""


def _call(module: ModuleType, kind: str, options: Mapping[str, Any]) -> None:
    """Call a method, or request the first question of a task, at an ordinary geometry."""
    if kind == "task":
        from tasks import Document, TaskContext

        text = Document("text", range(4096))
        source = TaskContext(lambda text: list(text.encode()), str, None, 256, lambda: (text,))
        next(iter(entry(module, kind)(source, [512], seed=0, **options)), None)
    elif kind == "encoding":
        from harness.encodings.types import Shape

        entry(module, kind)(Shape(32, 1, 2, 16, 64), **options)
    else:
        from scaling import Rope

        entry(module, kind)(Rope(64, 10_000.0, 256), 1024, **options)
