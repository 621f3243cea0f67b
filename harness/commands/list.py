"""``ropewalk list``: the catalogue of plug-ins and bundled sweeps, or one of them in full."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from ropewalk.harness.errors import UserError, article, nearest
from ropewalk.harness.plugins import (
    CONTRACTS,
    FOLDERS,
    METHOD,
    PACKAGED,
    all_names,
    catalogue,
    entry,
    hints_of,
    module_of,
    names_method,
    parameters,
)
from ropewalk.harness.sweep.spec import BUNDLED, bundled

WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
EXAMPLES = {
    "method": "ropewalk run --scaling none {} --length 1x 4x",
    "task": "ropewalk run --task {} --length 1x 4x",
    "report": "ropewalk report RUN --report {}",
    "engine": "ropewalk export MODEL --scaling yarn --length 4x --to {}",
    "encoding": "python -m scripts.train encodings {} --steps 300",
    "sweep": "ropewalk run {} --dry-run",
}


class Catalogue(dict[str, dict[str, str]]):
    """For each kind, a line on each name."""

    def __str__(self) -> str:
        lines = []
        for heading, names in self.items():
            width = max(map(len, names), default=0)
            lines += [heading, *(f"  {name:<{width}}  {line}" for name, line in names.items())]
        return "\n".join(lines)


@dataclass(frozen=True)
class Description:
    """One plug-in or bundled sweep: its documentation, a row for each option, and its file.

    A row has the option's name, values and default, and the range in which ``tune`` searches it.
    """

    kind: str
    name: str
    text: str
    options: tuple[tuple[str, str, str, str], ...]
    example: str
    file: Path

    def __str__(self) -> str:
        from tabulate import tabulate

        lines = [f"{self.name}, {article(self.kind)}", "", self.text, ""]
        if self.options:
            heads = ("option", "values", "default", "searched by tune")
            lines += [tabulate(self.options, heads, "simple", disable_numparse=True), ""]
        return "\n".join([*lines, f"Example: {self.example}", f"File: {self.file}"])


def list_(name: str | None = None, /) -> Catalogue | list[Description]:
    """List methods, tasks, reports, engines and encodings with their sources, and sweeps.

    Args:
        name: One kind: methods, tasks, reports, engines, encodings or sweeps. The name of
            one, or your own .py file, shows its options, an example and its file. [default:
            everything]
    """
    kinds = {f"{kind}s": kind for kind in (*FOLDERS, "sweep")}
    if name is not None and name not in kinds:
        return describe(name)
    return Catalogue(
        (heading, bundled() if kinds[heading] == "sweep" else catalogue(kinds[heading]))
        for heading in (kinds if name is None else (name,))
    )


def describe(plugin: str) -> list[Description]:
    """Describe the built-in plug-ins of a name, a user's .py file or module, or a bundled sweep.

    A user's file is executed. Raises UserError for an unknown name.
    """
    name = plugin.partition(":")[0]
    if name in bundled():
        file = BUNDLED / f"{name}.yaml"
        text = file.read_text(encoding="utf-8").rstrip()
        return [Description("sweep", name, text, (), EXAMPLES["sweep"].format(name), file)]
    return [_describe(kind, name) for kind in kinds_of(name)]


def kinds_of(name: str) -> list[str]:
    """Return the kinds of plug-ins that have a name; a user's kind is that of its contract.

    Raises UserError for a name or a file that is no plug-in.
    """
    if "." not in name:
        if named := [kind for kind in FOLDERS if name in all_names(kind)]:
            return named
        allowed = {*bundled(), *(plugin for kind in FOLDERS for plugin in all_names(kind))}
        raise UserError(
            f"nothing is called {name!r}; {nearest(name, allowed)}, or a path to a .py file."
        )
    module, needed = module_of("plug-in", name)[0], []
    for kind in PACKAGED:
        parts = METHOD if kind == "method" else CONTRACTS[kind]
        if (any if kind == "method" else all)(hasattr(module, part) for part in parts):
            return [kind]
        listed = (" or " if kind == "method" else ", ").join(parts)
        needed.append(f"{article(kind)} defines {listed}")
    raise UserError(f"{name} is no plug-in: {'; '.join(needed)}.")


def _describe(kind: str, name: str) -> Description:
    module = module_of(kind, name)[0]
    function, taken = entry(module, kind), parameters(module, kind)
    hints = hints_of(function)
    options = tuple(
        (key, _type(hints.get(key, str)), _default(option.default), _searched(hints.get(key)))
        for key, option in taken.items()
    )
    documented = [inspect.getdoc(module), inspect.getdoc(function)]
    text = "\n\n".join(part for part in documented if part)
    known = [f"{row[0]}={row[2]}" for row in options if row[2] not in ("unset", "none: give it")]
    usual = "factor=4" if "factor" in taken else "".join(known[:1])
    listed = getattr(module, "EXAMPLE_OPTIONS", usual)
    example = EXAMPLES[kind].format(f"{name}:{listed}" if listed else name)
    shown = Path(name).stem if name.endswith(".py") else name
    return Description(kind, shown, text, options, example, Path(str(module.__file__)))


def _type(hint: Any) -> str:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return _type(parts[0])
    if names_method(hint):
        return "method"
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, parts))
    if parts:
        return " or ".join(_type(part) for part in parts if part is not NoneType)
    plain = getattr(hint, "__supertype__", hint)  # of a NewType
    return WORDS.get(plain, str(plain))


def _searched(hint: Any) -> str:
    for part in typing.get_args(hint):
        if hasattr(part, "low"):  # a Range, whose module imports torch
            unit = "" if part.of == "one" else f" × {part.of}"
            return f"{part.low:.4g} to {part.high:.4g}{unit}"
    return ""


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "none: give it"
    if value is None:
        return "unset"
    if inspect.isfunction(value):  # of a method
        return str(value.__module__.rpartition(".")[2])
    return str(value).lower() if isinstance(value, bool) else f"{value}" or "empty"
