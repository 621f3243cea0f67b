"""Open documents: embedded ones, files, folders, globs, data sets, and objects of Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from harness.data import embedded
from harness.data.readers import (
    BUFFER,
    MANY,
    ROWS,
    SET_OPTIONS,
    TEXT,
    RawDocument,
    Selection,
    beginning,
    below,
    in_folder,
    is_saved,
    is_set,
    kind,
    not_read,
    read_file,
    read_set,
    text_of,
)
from harness.errors import UserError
from harness.names import is_path, nearest, place, recorded
from harness.plugins import IN_PYTHON, split_options

NUMBERS = ("limit", "count", "min_tokens", "max_chars", "seed")
OPTIONS = (*SET_OPTIONS, *NUMBERS)


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
    if hasattr(given, "column_names"):
        name = getattr(given.info, "dataset_name", None) or "rows"
        rows: Iterable[Any] = given
    else:
        try:
            each = iter(given)  # a map-style data set has only __getitem__
        except TypeError:
            each = iter([given])
        texts = list(each)  # an iterator ends
        if not all(isinstance(text, str) for text in texts):
            raise UserError(
                f"docs is {type(given).__name__}; give a name, texts, or a data set of rows."
            )
        if not texts:
            raise UserError("docs is empty; give one text or more.")
        rows = [{"text": text} for text in texts]
        name = "text"

    def read() -> Iterator[RawDocument]:
        for index, row in enumerate(rows):
            label = f"{name}[{index}]"
            yield label, text_of(row, "text", label, None)

    return Documents(f"{name} {IN_PYTHON}", read)


def open_documents(given: str | Documents) -> Documents:
    """Parse ``embedded``, a file, a folder, a glob or a data set, each with options.

    ``field`` is the field of a row with the text, ``limit`` the number of texts or rows read,
    ``max_chars`` the characters read of each document; ``min_tokens`` and ``count`` choose
    documents, ``seed`` draws them. Raises UserError before anything is read for a missing path or a
    bad option.
    """
    if isinstance(given, Documents):
        return given
    name, listed = _split(given)
    _check_exists(given, name)
    chosen = _selection(name, listed)

    def read() -> Iterator[RawDocument]:
        return islice(_read(chosen), chosen.limit)

    def left_out() -> Mapping[str, int]:
        path = place(name)
        return not_read(path) if path.is_dir() and _files(path, chosen) else {}

    return Documents(given, read, chosen.count, chosen.min_tokens, left_out)


def limited(given: Any, most: int) -> Any:
    """Return documents of which at most so many texts or rows are read.

    Documents that are given without a name are returned unchanged. Raises UserError for bad
    options.
    """
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
    """Return a name and its options; the name of a file or a glob may have colons of its own."""
    cuts = [index for index, letter in enumerate(given) if letter == ":"]
    for cut in (len(given), *reversed(cuts)):
        name = given[:cut]
        if name and (is_path(place(name)) or (has_magic(name) and _matching(name))):
            return name, given[cut + 1 :]
    name, _, listed = given.partition(":")
    return name, listed


def _selection(name: str, listed: str) -> Selection:
    options = split_options(f"--docs {name}", listed)
    known = NUMBERS if name == "embedded" else OPTIONS
    for key, value in options.items():
        if key not in known:
            raise UserError(f"--docs {name} has no option {key!r}; {nearest(key, known)}.")
        least = 0 if key == "seed" else 1
        if key in NUMBERS and not (
            value.isascii() and value.isdecimal() and len(value) < 16 and int(value) >= least
        ):
            raise UserError(
                f"--docs {name}: {key}={value} should be a whole number above {least - 1}."
            )
    read: Any = {key: int(v) if key in NUMBERS else v for key, v in options.items()}
    return Selection(name, **read)


def _check_exists(given: str, name: str) -> None:
    """Raise UserError where a name that looks like a path does not exist."""
    if given.startswith((f"{name}://", f"{name}::")):
        raise UserError(
            f"--docs {given}: documents are files and data sets, not web addresses; download the "
            "file and name it, or write a data set of the hub as OWNER/NAME:split=…"
        )
    path = place(name)
    if name == "embedded" or is_path(path):
        return
    if has_magic(name):
        if not _matching(name):
            raise UserError(f"no file matches {name}.")
        return
    file = kind(path) in {*TEXT, *MANY} and is_path(path.parent)  # else it may be on the hub
    bad = "\0" in name or not name
    if name.startswith((".", "/", "~")) or path.suffix in TEXT or file or bad:
        raise UserError(
            f"documents {given} do not exist; give a file, a folder or a data set's name."
        )


def _matching(pattern: str) -> list[Path]:
    names = glob(str(place(pattern)), recursive=True)  # noqa: PTH207  # absolute ones too
    return sorted(path for path in map(Path, names) if path.is_file())


def _read(chosen: Selection) -> Iterator[RawDocument]:
    """Yield the documents of a selection; raise UserError where there is none."""
    path = place(chosen.name)
    if chosen.name == "embedded":
        documents: Iterator[RawDocument] = _drawn(list(embedded.held_out()), chosen.seed)
    elif files := _files(path, chosen):
        documents = _in_files(files, chosen)
    else:
        documents = read_set(replace(chosen, name=str(path) if path.is_dir() else chosen.name))
    empty = True
    for label, text in documents:
        empty = empty and not (text and text.strip())
        yield label, text and beginning(text, chosen.max_chars)
    if empty:
        raise UserError(f"--docs {chosen.name} has no text.")


def _in_files(files: list[tuple[Path, str]], chosen: Selection) -> Iterator[RawDocument]:
    """Yield the documents of files; with a seed in a drawn order, rows through a buffer."""
    if chosen.field is not None and not any(kind(path) in ROWS for path, _ in files):
        raise UserError(f"--docs {chosen.name}: field is for files of rows; these are texts.")
    whole = all(kind(path) not in MANY for path, _ in files)  # drawing files draws documents
    documents = (
        document
        for path, label in _drawn(files, chosen.seed)
        for document in read_file(path, label, chosen.text_field, chosen.max_chars)
    )
    if chosen.seed is None or whole:
        return documents
    return _through_buffer(documents, Random(chosen.seed))


def _through_buffer(documents: Iterator[RawDocument], draw: Random) -> Iterator[RawDocument]:
    """Yield documents in a drawn order, with at most BUFFER of them in memory."""
    held = list(islice(documents, BUFFER))
    for document in documents:
        index = draw.randrange(len(held))
        yield held[index]
        held[index] = document
    draw.shuffle(held)
    yield from held


def _drawn(things: list[Any], seed: int | None) -> Iterator[Any]:
    if seed is not None:
        Random(seed).shuffle(things)
    return iter(things)


def _files(path: Path, chosen: Selection) -> list[tuple[Path, str]]:
    """Return the files of a name, each with the name of its documents; none for a data set."""
    name, set_options = chosen.name, chosen.set_options
    if path.is_file() or has_magic(name):
        for key in ("split", "config", "revision"):
            if key in set_options:
                raise UserError(f"--docs {name}: {key} is for data sets; these are files.")
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir():
        if is_saved(path) or set_options or (chosen.limit is not None and is_set(below(path))):
            return []
        return _below(path, in_folder(path))
    if has_magic(name):
        paths = _matching(name)
        return _below(Path(os.path.commonpath([path.parent for path in paths])), paths)
    return []


def _below(root: Path, paths: list[Path]) -> list[tuple[Path, str]]:
    """Return each file with the name of its documents: its path below ``root``."""
    return [(path, path.relative_to(root).as_posix()) for path in paths]
