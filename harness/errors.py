"""The one error a user is meant to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 240  # characters of a library's own words


class UserError(Exception):
    """What was given, what is allowed, what to do; shown as one sentence, exit status 2."""


def words(error: object) -> str:
    """Return an error's own words on one line; its type where it has none or fails to say them."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # it is foreign code too
        text = ""
    return text or type(error).__name__


def reason(error: object) -> str:
    """Return what a library says went wrong, in one line a person can read."""
    text = words(error)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def why(error: BaseException) -> str:
    """Return what went wrong; of the system's errors without their number and the path."""
    return reason(getattr(error, "strerror", None) or error)


def panicked(error: BaseException) -> bool:
    """Return whether an error is a Rust library's panic, which is not an Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Read foreign content inside; whatever a library raises there becomes one sentence.

    ``what`` names the file, as in "sweep file a.yaml is not YAML".
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {why(error).removesuffix('.')}.") from error
