"""Every built-in method as a function: ``methods.yarn(rope, length, factor=4)``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from harness.plugins import entry, names
from scaling import Rotation


def __getattr__(name: str) -> Callable[..., Rotation]:
    """Return the function of a method; ``dir(methods)`` has their names."""
    if name not in names("method"):
        message = f"no method is called {name!r}; there are {', '.join(names('method'))}"
        raise AttributeError(message)
    return entry(import_module(f"scaling.{name}"), "method")


def __dir__() -> list[str]:
    return names("method")
