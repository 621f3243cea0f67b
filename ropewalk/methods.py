"""Every built-in or installed method as a function: ``methods.yarn(rope, length, factor=4)``."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import all_names, entry, module_of
from ropewalk.scaling import Rotation


def __getattr__(name: str) -> Callable[..., Rotation]:
    try:
        return entry(module_of("method", name)[0], "method")
    except UserError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return all_names("method")
