"""Open documents: embedded ones, files, folders, globs, data sets, and objects of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from itertools import islice
from typing import Any

from ropewalk.harness.data import readers
from ropewalk.harness.data.readers import RawDocument, Selection, kind, matching, read_rows
from ropewalk.harness.errors import UserError, foreign, nearest
from ropewalk.harness.files import expanded, is_path, recorded
from ropewalk.harness.plugins import IN_PYTHON, hints_of, split_options, typed

SET_OPTIONS = ("split", "field", "config", "revision")
FILES = {*readers.TEXT, *readers.ROWS}


@dataclass(frozen=True)
class Documents:
    """A source of texts, and which of them are used.

    ``read`` yields (name, text) in order, and may raise UserError. The first ``count`` that have
    ``min_tokens`` tokens are used; all of them where count is None. ``left_out`` counts files that
    are not read, by their kind.
    """

    label: str
    read: Callable[[], Iterable[RawDocument]]
    count: int | None = None
    min_tokens: int = 0
    left_out: Callable[[], Mapping[str, int]] = dict

    def __str__(self) -> str:
        return self.label


def of_python(given: Any) -> Documents:
    """Return the documents of an iterable of texts, or of a ``datasets`` object with a text column.

    Texts are named by their number. Raises UserError for any other object.
    """
    rows, name = given, "text"
    if hasattr(given, "column_names"):
        name = getattr(given.info, "dataset_name", None) or "rows"
    else:
        wrong = f"docs is {type(given).__name__}; give a name, texts, or a data set of rows"
        with foreign(wrong):
            listed = [*iter(given)]  # a map-style data set has only __getitem__; an iterator ends
        if not listed or not all(isinstance(text, str) for text in listed):
            raise UserError(f"{wrong}.")
        rows = [{"text": text} for text in listed]

    def read() -> Iterator[RawDocument]:
        with foreign(f"{name} {IN_PYTHON} cannot be read"):
            yield from read_rows(rows, "text", name)

    return Documents(f"{name} {IN_PYTHON}", read)


def open_documents(given: str | Documents) -> Documents:
    """Parse ``embedded``, a file, a folder, a glob or a data set, each with options.

    ``field`` is the field of a row with the text, ``limit`` the number of texts or rows read,
    ``max_chars`` the characters read of each; ``min_tokens`` and ``count`` choose documents,
    ``seed`` draws them. Raises UserError for a missing path or a bad option; nothing is read.
    """
    if isinstance(given, Documents):
        return given
    name, listed = _split(given)
    path = expanded(name)
    is_file = "/" not in name or has_magic(name) or name[0] in "./~" or kind(path) in FILES
    known = name == "embedded" or is_path(path) or matching(name)
    if not known and (is_file or "://" in given):
        raise UserError(
            f"documents {given} do not exist; give a file, a folder, a glob, or a data set of the "
            "hub as OWNER/NAME."
        )
    selection = _selection(name, listed)
    return Documents(
        given,
        lambda: islice(readers.read(selection), selection.limit),
        selection.count,
        selection.min_tokens,
        partial(readers.left_out, selection),
    )


def limited(given: Any, most: int) -> Any:
    """Return documents of which at most so many texts or rows are read."""
    if isinstance(given, Documents):
        return replace(given, read=lambda: islice(given.read(), most))
    if not isinstance(given, str):
        return given
    name, listed = _split(given)
    options = split_options(f"--docs {name}", listed)
    limit = _selection(name, listed).limit or most
    options["limit"] = str(min(limit, most))
    return f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}"


def recorded_documents(given: str | Documents) -> str:
    """Return what a record holds of documents: their name, without its folders, and options."""
    name, listed = _split(str(given))
    return f"{recorded(name)}:{listed}" if listed else recorded(name)


def _split(given: str) -> tuple[str, str]:
    """Return a name and its options; a file whose own name has a colon takes none."""
    name, _, listed = (given, "", "") if is_path(expanded(given)) else given.partition(":")
    return name, listed


def _selection(name: str, listed: str) -> Selection:
    what, hints = f"--docs {name}", hints_of(Selection)
    known = hints.keys() - {"name", "return", *(SET_OPTIONS if name == "embedded" else ())}
    options = split_options(what, listed)
    for key in options.keys() - known:
        raise UserError(f"{what} has no option {key!r}; {nearest(key, known)}.")
    return Selection(name, **{k: typed(what, k, text, hints[k]) for k, text in options.items()})
