"""The flags of a command that sets up a sweep: made from the settings that ``Spec`` declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import Parameter

from harness.sweep.spec import Spec

MANY = ("model", "adapter", "scaling", "task", "length")  # flags that take several values
ALL = tuple(name for name in Spec.model_fields if name != "published")  # that is for sweep files
OPENING = ("revision", "offline", "trust_remote_code")  # how a model's config is read
Command = Callable[..., int]


def with_settings(
    *names: str, without: Collection[str] = (), **helps: str
) -> Callable[[Command], Command]:
    """Give a command flags for settings, by default for all, in place of its ``**settings``.

    A flag that is not given is None: then a sweep file's value, or the default, stands. ``helps``
    are the command's own words for some flags.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())
        flags = [_flag(name, helps) for name in names or ALL if name not in without]
        positional = [p for p in own if p.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
        rest = [p for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*positional, *flags, *rest]
        )
        return command

    return decorate


def _flag(name: str, helps: dict[str, str]) -> inspect.Parameter:
    field = Spec.model_fields[name]
    help_text = Parameter(help=helps.get(name, field.description))
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_type(name, field.annotation), help_text],
    )


def _type(name: str, annotation: Any) -> Any:
    """Return what the command line reads; ``Spec`` checks it."""
    if name in MANY:
        return tuple[str, ...] | None
    for kind in (bool, int, Path):
        if kind in (annotation, *get_args(annotation)):
            return kind | None
    return str | None
