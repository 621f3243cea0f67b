"""The options of a plug-in: ``name:option=value,…`` as values of the types that it declares."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import UserError
from harness.names import nearest


@dataclass(frozen=True)
class Options:
    """Every option of a plug-in, in two forms.

    ``recorded`` is what a record holds; ``passed`` is what the plug-in is called with. They differ
    for an option that names a method: a text in the one, its function in the other. ``digests``
    are those of the user's files so named.
    """

    recorded: Mapping[str, Any]
    passed: Mapping[str, Any]
    digests: tuple[str, ...]


def split_options(what: str, listed: str) -> dict[str, str]:
    """Split ``a=1,b=2``; raise UserError where a part is not name=value or comes twice."""
    options: dict[str, str] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not key or not value:
            raise UserError(f"{what}: {part!r} is not option=value.")
        if key in options:
            raise UserError(f"{what}: option {key!r} is given twice.")
        options[key] = value
    return options


def read_options(
    name: str,
    function: Callable[..., Any],
    known: Mapping[str, inspect.Parameter],
    given: Mapping[str, str],
    method: Callable[[str], tuple[Callable[..., Any], str | None]],
) -> Options:
    """Return every option's value, converted to its annotated type, defaults filled in.

    ``method`` loads the method that an option names: its function, and the hash of
    its file where it is the user's. Raises UserError for an option that is unknown, missing, or
    of another type, and for a value that no record can hold.
    """
    hints = hints_of(function)
    recorded: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    digests = []
    for key in given.keys() - known.keys():
        raise UserError(f"{name} has no option {key!r}; {nearest(key, known)}.")
    for key, parameter in known.items():
        if key not in given:
            if parameter.default is inspect.Parameter.empty:
                raise UserError(f"{name} needs the option {key!r}: write {name}:{key}=…")
            passed[key] = parameter.default
            recorded[key] = _recorded(parameter.default)
        elif names_method(hints.get(key)):
            recorded[key] = given[key]
            passed[key], digest = method(inner(given[key]))
            digests += [digest] if digest else []
        else:
            passed[key] = recorded[key] = _converted(name, key, given[key], hints.get(key, str))
    try:
        json.dumps(recorded, allow_nan=False)
    except (TypeError, ValueError):
        raise UserError(
            f"{name}: options must be finite numbers, words or None for the record: {passed}."
        ) from None
    return Options(recorded, passed, tuple(digests))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters, or of a class's."""
    named: Any = function
    return typing.get_type_hints(named.__init__ if inspect.isclass(named) else named)


def names_method(hint: Any) -> bool:
    """Return whether an option's annotation is that of a method (``scaling._on.Method``)."""
    return typing.get_origin(hint) is Callable


def inner(text: str) -> str:
    """Return the method that an option names, its options joined by commas, not plus signs."""
    return text.replace("+", ",")


def _recorded(default: Any) -> Any:
    """Return a default as a record holds it: of a method, its name."""
    return default.__module__.rpartition(".")[2] if inspect.isfunction(default) else default


def _converted(name: str, key: str, text: str, hint: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise UserError(f"{name}: {key}={text} should be {reason}.") from None
