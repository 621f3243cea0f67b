"""What ``on=`` names: a method that another one builds on, with options of its own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from scaling._bands import Bands
from scaling._served import Served
from scaling._types import Frequencies, Rope

Found = Frequencies | Bands


def found_on(on: str, rope: Rope, length: int) -> Found:
    """Return what a method of this folder makes of a length: ``yarn``, or ``yarn:factor=8``.

    Several options are joined with a plus: ``yarn:factor=8+beta_fast=16``. Raises ValueError for
    an unknown method or option.
    """
    name, _, listed = on.partition(":")
    method = _method(name)
    options = dict(_option(name, part) for part in listed.split("+") if part)
    known = [
        p.name for p in inspect.signature(method).parameters.values() if p.kind == p.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            message = f"on={name} has no option {option!r}; known: {', '.join(known) or 'none'}"
            raise ValueError(message)
    try:
        found: Found | Served = method(rope, length, **options)
    except TypeError as error:
        message = f"on={on}: an option has a value of the wrong kind ({error})"
        raise ValueError(message) from error
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


def _option(name: str, part: str) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals or not value:
        message = f"on={name}: {part!r} is not option=value"
        raise ValueError(message)
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value  # a word
