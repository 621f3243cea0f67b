"""The one error a user is meant to read, and the words in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST = 320  # characters of a library's own words


class UserError(Exception):
    """What was given, what is allowed, what to do: a sentence, or one for each mistake of a stage.

    They are shown without a traceback; the exit status is 2.
    """

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence per mistake."""
        return tuple(dict.fromkeys(self.args))

    def __str__(self) -> str:
        if len(self.sentences) == 1:
            return self.sentences[0]
        return "\n  ".join([f"{len(self.sentences)} problems with this sweep:", *self.sentences])


class Collector:
    """Collect the mistakes of one stage, to raise them together."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the UserError that is raised inside, and continue after the block."""
        try:
            yield
        except UserError as error:
            self.sentences += error.sentences

    def check(self) -> None:
        """Raise UserError where a mistake was collected."""
        if self.sentences:
            raise UserError(*self.sentences)


def reason(error: object) -> str:
    """Return what went wrong, in one line; of the system's errors without number and path."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    if type(error) is KeyError:  # its text is a key, or a sentence in quotes
        text = text.strip("\"'") if " " in text else f"there is no {text}"
    text = text or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Read foreign content inside; whatever a library raises there becomes one sentence.

    ``what`` names the file, as in "sweep file a.yaml is not YAML".
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of a Rust library
        if not (panic or isinstance(error, Exception)):
            raise
        raise UserError(f"{what}: {reason(error).removesuffix('.')}.") from error


def printable(text: str) -> str:
    """Return a name with unprintable characters written as escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def article(kind: str) -> str:
    """Return a word after "a" or "an"."""
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the words allowed, and the one probably meant."""
    allowed = sorted(known)
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(allowed) or 'none'}"
