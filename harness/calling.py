"""Run a user's code: whatever it raises becomes one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.errors import UserError, words

T = TypeVar("T")
RAISED = BaseException  # of a user's code: an exit there must not end the sweep


def call(what: str, function: Callable[[], T]) -> T:
    """Run a user's code; whatever it raises becomes one sentence.

    A ValueError is a plug-in's own sentence; any other error names the file and the line.
    """
    try:
        return function()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{what}: {words(error).removesuffix('.')}.") from error
    except RAISED as error:
        raise UserError(f"{what} failed: {failure(error)}.") from error


def failure(error: BaseException) -> str:
    """Return an error in one line, with its file and line; Ctrl-C is raised again."""
    if type(error) is KeyboardInterrupt:
        raise error
    if isinstance(error, SyntaxError):  # raised where the file is read, not where it is wrong
        return f"SyntaxError: {error.msg} at {error.filename}:{error.lineno}"
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else ""
    return f"{type(error).__name__}: {words(error)}{where}"
