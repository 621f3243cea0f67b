"""Documents by name: the embedded ones, local files, folders and globs, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from harness.data import embedded
from harness.data.files import MANY, TEXT, Document, in_folder, kind, names_of, read_file
from harness.data.hub import BUFFER, Rows, is_saved, read_set
from harness.errors import UserError
from harness.names import nearest, place
from harness.options import split_options

NUMBERS = ("limit", "count", "min_tokens", "max_chars", "seed")
OF_A_SET = ("split", "field", "config", "revision", "limit")
OPTIONS = ("split", "field", "config", "revision", *NUMBERS)


@dataclass(frozen=True)
class Documents:
    """Where texts come from, and which of them are taken.

    ``read`` yields (name, text) in the order they are taken in, and may raise UserError. Of these,
    the first ``count`` that hold ``min_tokens`` tokens count; all, where count is None.
    """

    label: str
    read: Callable[[], Iterable[Document]]
    count: int | None = None
    min_tokens: int = 0


def open_documents(given: str) -> Documents:
    """Understand ``embedded``, a file, a folder, a glob or a data set, each with options.

    ``field`` is where the text is in a row, ``limit`` how many rows are read, ``max_chars`` how
    much of each document; ``min_tokens`` and ``count`` say which are taken, ``seed`` draws them.
    Raises UserError before anything is read for a path that does not exist or a bad option.
    """
    whole = place(given)
    name, listed = (given, "") if _is_path(whole) else _split(given)
    _check_exists(given, name)
    options = _options(name, listed)
    numbers = {key: int(options[key]) for key in NUMBERS if key in options}

    def read() -> Iterator[Document]:
        return islice(_read(name, options, numbers), numbers.get("limit"))

    return Documents(given, read, numbers.get("count"), numbers.get("min_tokens", 0))


def _is_path(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or a zero byte in it
        return False


def _split(given: str) -> tuple[str, str]:
    name, _, listed = given.partition(":")
    return name, listed


def _options(name: str, listed: str) -> dict[str, str]:
    options = split_options(f"--docs {name}", listed)
    for key, value in options.items():
        if key not in OPTIONS:
            message = f"--docs {name} has no option {key!r}; {nearest(key, OPTIONS)}."
            raise UserError(message)
        least = 0 if key == "seed" else 1
        if key in NUMBERS and not (
            value.isascii() and value.isdecimal() and len(value) < 16 and int(value) >= least
        ):
            message = f"--docs {name}: {key}={value} should be a whole number above {least - 1}."
            raise UserError(message)
    return options


def _check_exists(given: str, name: str) -> None:
    """Raise UserError where what looks like a path, by its beginning or its end, is not there."""
    if given.startswith((f"{name}://", f"{name}::")):
        message = (
            f"--docs {given}: documents are files and data sets, not web addresses; download the "
            "file and name it, or write a data set of the hub as OWNER/NAME:split=…"
        )
        raise UserError(message)
    path = place(name)
    if name == "embedded" or _is_path(path):
        return
    if has_magic(name):
        if not _matching(name):
            message = f"no file matches {name}."
            raise UserError(message)
        return
    if name.startswith((".", "/", "~")) or path.suffix in TEXT or "\0" in name or not name:
        message = f"documents {given} do not exist; give a file, a folder or a data set's name."
        raise UserError(message)


def _matching(pattern: str) -> list[Path]:
    found = glob(str(place(pattern)), recursive=True)  # noqa: PTH207  # absolute ones too
    return sorted(path for path in map(Path, found) if path.is_file())


def _read(name: str, options: dict[str, str], numbers: dict[str, int]) -> Iterator[Document]:
    """Yield the documents of a name; raise UserError where there is none at all."""
    if name == "embedded":
        found: Iterator[Document] = _drawn(list(embedded.held_out()), numbers.get("seed"))
    elif files := _files(place(name), name, options):
        found = _in_files(files, options.get("field", "text"), numbers)
    else:
        found = read_set(_rows(name, options, numbers), numbers.get("max_chars"))
    empty = True
    for label, text in found:
        empty = empty and not (text and text.strip())
        yield label, text and text[: numbers.get("max_chars")]
    if empty:
        message = f"--docs {name} holds no text at all."
        raise UserError(message)


def _in_files(
    files: list[tuple[Path, str]], field: str, numbers: dict[str, int]
) -> Iterator[Document]:
    """Yield the documents of files; where a seed draws them, rows too, through a buffer."""
    seed, longest = numbers.get("seed"), numbers.get("max_chars")
    whole = all(kind(path) not in MANY for path, _ in files)  # drawing files draws documents
    ordered = _drawn(files, seed)
    found = (
        document for path, label in ordered for document in read_file(path, label, field, longest)
    )
    return found if seed is None or whole else _through_buffer(found, Random(seed))


def _through_buffer(found: Iterator[Document], draw: Random) -> Iterator[Document]:
    """Yield documents in a drawn order, holding no more than BUFFER of them."""
    held = list(islice(found, BUFFER))
    for document in found:
        index = draw.randrange(len(held))
        yield held[index]
        held[index] = document
    draw.shuffle(held)
    yield from held


def _drawn(things: list[Any], seed: int | None) -> Iterator[Any]:
    if seed is not None:
        Random(seed).shuffle(things)
    return iter(things)


def _files(path: Path, name: str, options: dict[str, str]) -> list[tuple[Path, str]]:
    """Return the files of a name, each with what its documents are called; none for a data set."""
    if path.is_file() or has_magic(name):
        for key in ("split", "config", "revision"):
            if key in options:
                message = f"--docs {name}: {key} is for data sets; these are files."
                raise UserError(message)
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir():
        if is_saved(path) or set(options) & set(OF_A_SET):
            return []
        found = in_folder(path)
        return list(zip(found, names_of(found, path), strict=True))
    if has_magic(name):
        found = _matching(name)
        root = Path(*_common(found))
        return list(zip(found, names_of(found, root), strict=True))
    return []


def _common(paths: list[Path]) -> tuple[str, ...]:
    """Return the parts that the folders of all paths begin with."""
    folders = [path.parent.parts for path in paths]
    shared = (set(parts) for parts in zip(*folders, strict=False))
    length = next((i for i, parts in enumerate(shared) if len(parts) > 1), min(map(len, folders)))
    return folders[0][:length]


def _rows(name: str, options: dict[str, str], numbers: dict[str, int]) -> Rows:
    path = place(name)
    return Rows(
        name=str(path) if path.is_dir() else name,
        split=options.get("split"),
        config=options.get("config"),
        revision=options.get("revision"),
        field=options.get("field", "text"),
        seed=numbers.get("seed"),
        some="limit" in numbers or "count" in numbers,
    )
