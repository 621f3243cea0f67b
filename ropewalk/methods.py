"""Every built-in method as a function: ``methods.yarn(rope, length, factor=4)``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from harness.plugins import entry, names
from scaling import Rotation


def __getattr__(name: str) -> Callable[..., Rotation]:
    if name not in names("method"):
        raise AttributeError(
            f"no method is called {name!r}; there are {', '.join(names('method'))}"
        )
    return entry(import_module(f"scaling.{name}"), "method")


def __dir__() -> list[str]:
    return names("method")
