"""What a library raises while it reads a part of a model, as one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.errors import UserError, panicked, reason, words
from harness.hub import refusal

TRUST = "where you trust it, let it run with --trust-remote-code."


@contextmanager
def attempting(part: str, where: str) -> Iterator[None]:
    """Turn any error of reading a model's content into a UserError naming the part and the model.

    What a model says is foreign: a value of a wrong type fails somewhere in the library, or here.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or panicked(error)):
            raise
        raise UserError(_sentence(part, where, error)) from error


def attempt(part: str, where: str, function: Callable[[], Any]) -> Any:
    """Return what a function reads of a model; raise UserError as ``attempting`` does."""
    with attempting(part, where):
        return function()


def _sentence(part: str, where: str, error: BaseException) -> str:
    """Return what went wrong, and by the kind of the error what to do."""
    if "trust_remote_code=True" in words(error):
        return f"the {part} of {where} needs the repository's own code; {TRUST}"
    why = refusal(error, where) or reason(error)
    if isinstance(error, ImportError):
        install = f" (pip install {error.name})" if error.name else ""
        return f"the {part} of {where} cannot be read without a package: {why}{install}"
    damaged = type(error).__name__ == "SafetensorError"
    hint = "; the file is damaged or incomplete: download it again." if damaged else ""
    return f"the {part} of {where} cannot be read: {why}{hint}"
