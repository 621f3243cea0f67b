"""What ``on=`` names: a method that another one builds on, with options of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from scaling._bands import Bands
from scaling._served import Served
from scaling._types import Frequencies, Rope

Found = Frequencies | Bands
TRUTH = {"true": True, "1": True, "false": False, "0": False}


def found_on(on: str, rope: Rope, length: int) -> Found:
    """Return what a method of this folder makes of a length: ``yarn``, or ``yarn:factor=8``.

    Several options are joined with a plus: ``yarn:factor=8+beta_fast=16``. Raises ValueError for
    an unknown method or option, and for a value that its option does not take.
    """
    name, _, listed = on.partition(":")
    method = _method(name)
    found: Found | Served = method(rope, length, **_options(name, method, listed))
    if isinstance(found, Served):
        message = f"on={on} only runs as it is served; nothing can build on it"
        raise ValueError(message)
    return found


def frequencies_on(on: str, rope: Rope, length: int) -> Frequencies:
    """Return the frequencies of a method; raise ValueError for one that moves positions itself."""
    found = found_on(on, rope, length)
    if not isinstance(found, Frequencies):
        message = f"on must name a method that gives frequencies, {on!r} moves positions"
        raise ValueError(message)
    return found


def _method(name: str) -> Callable[..., Any]:
    folder = Path(__file__).parent
    names = sorted(path.stem for path in folder.glob("[!_]*.py"))
    if name not in names:
        message = f"on must name a method ({', '.join(names)}), got {name!r}"
        raise ValueError(message)
    module = vars(import_module(f"scaling.{name}"))
    method: Callable[..., Any] = module.get("bands") or module["frequencies"]
    return method


def _options(name: str, method: Callable[..., Any], listed: str) -> dict[str, Any]:
    parameters, kinds = inspect.signature(method).parameters.values(), get_type_hints(method)
    known = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    options: dict[str, Any] = {}
    for part in filter(None, listed.split("+")):
        key, equals, value = part.partition("=")
        if not equals or not value:
            message = f"on={name}: {part!r} is not option=value"
            raise ValueError(message)
        if key not in known:
            message = f"on={name} has no option {key!r}; known: {', '.join(known) or 'none'}"
            raise ValueError(message)
        if key in options:
            message = f"on={name}: option {key!r} is given twice"
            raise ValueError(message)
        options[key] = _value(f"on={name}: {key}={value}", kinds[key], value)
    return options


def _value(what: str, kind: Any, text: str) -> Any:
    """Return a text as its option's annotation has it: a word of a few, a number or a text."""
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind  # of ``float | None``
    words = TRUTH if kind is bool else {word: word for word in get_args(kind)}
    try:
        return words[text.lower() if kind is bool else text] if words else kind(text)
    except (KeyError, ValueError):
        fitting = ", ".join(words) or {int: "a whole number", float: "a number"}[kind]
        message = f"{what} should be {fitting}"
        raise ValueError(message) from None
