"""The one error a user is meant to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST = 240  # characters of a library's own words
MOST = 20  # mistakes that are shown at once


class UserError(Exception):
    """What was given, what is allowed, what to do; shown as one sentence, exit status 2."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence per mistake."""
        return (str(self),)


class Problems(UserError):
    """All mistakes of one stage of a sweep at once, each a sentence."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._sentences = tuple(dict.fromkeys(sentences))
        super().__init__("\n".join(self.lines))

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence per mistake."""
        return self._sentences

    @property
    def lines(self) -> list[str]:
        """The lines to show: one sentence, or how many there are and each.

        What several sentences allow is only in the first of them.
        """
        count = len(self.sentences)
        if count == 1:
            return [*self.sentences]
        lines, seen = [f"{count} problems with this sweep:"], set[str]()
        for sentence in self.sentences[:MOST]:
            begin, _, known = sentence.partition(" known: ")
            lines.append(f"  {begin.removesuffix(';') if known in seen else sentence}")
            seen |= {known} - {""}
        return [*lines, *([f"  … and {count - MOST} more"] if count > MOST else [])]


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

    def check(self, where: str = "") -> None:
        """Raise Problems where a mistake was collected, each after ``where`` it is."""
        if self.sentences:
            raise Problems(f"{where}: {one}" if where else one for one in self.sentences)


def words(error: object) -> str:
    """Return an error's message on one line, or its type if there is no message to read."""
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
        raise UserError(f"{what}: {why(error).removesuffix('.')}.") from error
