"""The flags of a command that sets up a sweep: made from the settings that ``Spec`` declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args

from cyclopts import Parameter

from harness.sweep.spec import Spec

MANY = ("model", "adapter", "scaling", "task", "length")  # flags that take several values
IN_FILES = ("published",)  # settings of a sweep file alone
MODEL = "A folder, a hub name (NAME@REVISION) or a GGUF file; default: the embedded model."


def with_settings(
    command: Callable[..., int],
    helps: Mapping[str, str] = MappingProxyType({}),
    *,
    without: Collection[str] = (),
) -> Callable[..., int]:
    """Give a command a flag for every setting but those ``without``, in place of ``**settings``.

    A flag that is not given is None: then a sweep file's value, or the default, stands. ``helps``
    are the command's own words for some flags.
    """
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _type(name, field.annotation), _help(name, helps.get(name, field.description))
            ],
        )
        for name, field in Spec.model_fields.items()
        if name not in (*IN_FILES, *without)
    ]
    positional = [p for p in own if p.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
    rest = [p for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*positional, *flags, *rest]
    )
    return command


def _type(name: str, annotation: Any) -> Any:
    """Return what the command line reads; ``Spec`` checks it."""
    if name in MANY:
        return tuple[str, ...] | None
    for kind in (bool, int, Path):
        if kind in (annotation, *get_args(annotation)):
            return kind | None
    return str | None


def _help(name: str, description: str | None) -> Parameter:
    return Parameter(help=description, negative="", consume_multiple=name in MANY)
