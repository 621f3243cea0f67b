"""What each kind of plug-in defines, and whether a module does."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from harness.calling import call
from harness.errors import UserError
from harness.names import article

CONTRACTS = {
    "method": (),  # one of METHOD
    "task": ("ask", "grade", "score", "VERSION", "METRIC"),
    "report": ("make",),
    "engine": ("express", "computed", "command", "NAMED"),
    "encoding": ("Encoding",),
    "tracker": ("begin",),
}

METHOD = ("bands", "frequencies")  # what a method defines; bands where it defines both


def defines(name: str, module: ModuleType, part: str) -> bool:
    """Return whether a module has a name; raise UserError where its own code fails there."""
    return call(f"plug-in {name}", lambda: hasattr(module, part))


def check_contract(kind: str, name: str, module: ModuleType) -> None:
    """Raise UserError for a module without the functions and values of its kind."""
    one_of = kind == "method" and not any(defines(name, module, part) for part in METHOD)
    wanted = METHOD[1:] if one_of else CONTRACTS[kind]
    wrong = ", ".join(part for part in wanted if not defines(name, module, part))
    if wrong or not callable(entry(module, kind)):
        why = f"it does not define {wrong}" if wrong else "what it defines is not a function"
        raise UserError(f"{name} is not {article(kind)}: {why}.")


def entry(module: ModuleType, kind: str) -> Callable[..., Any]:
    """Return the function of a plug-in that takes its options."""
    named = METHOD if kind == "method" else CONTRACTS[kind][:1]
    function: Callable[..., Any] = next(getattr(module, n) for n in named if hasattr(module, n))
    return function
