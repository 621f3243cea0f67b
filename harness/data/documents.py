"""Open and read documents: embedded ones, files, folders, globs, data sets, objects of Python."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from glob import escape, glob, has_magic
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from huggingface_hub import constants
from pydantic import NonNegativeInt, PositiveInt

from ropewalk.harness.errors import UserError, foreign, nearest
from ropewalk.harness.files import expanded, is_path, recorded
from ropewalk.harness.plugins import IN_PYTHON, hints_of, split_options, typed

logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # an error says it
TEXT = (".html", ".md", ".py", ".rst", ".tex", ".txt")
JSON = (".json", ".jsonl", ".ndjson")
TABLES = {".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}  # and their names in datasets
ROWS = {*JSON, *TABLES}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
SET_OPTIONS = ("split", "field", "config", "revision")
BUFFER = 100  # rows in memory from which a stream is drawn; its shards have any order
# The documents on every machine: the standard library's sources and the language reference. The
# reference model was not trained on them. They differ a little between Python versions, and a
# record has their hashes. Every supported Python has these modules; none is generated or short.
HELD_OUT_MODULES = (
    "_markupbase", "argparse", "bdb", "concurrent/futures/_base", "difflib", "email/header",
    "email/headerregistry", "heapq", "json/__init__", "mailbox", "optparse", "shutil",
    "statistics", "tomllib/_parser", "tracemalloc", "unittest/suite", "weakref",
    "xml/etree/ElementPath", "xml/sax/handler", "zoneinfo/_zoneinfo",
)  # fmt: skip
# Chapters of the language reference that have no page in common with another one.
HELD_OUT_TOPICS = ("formatstrings", "string-methods", "typesmapping")


RawDocument = tuple[str, str | None]  # name and text; None where a row's field is null


@dataclass(frozen=True)
class Documents:
    """A source of texts: a name, or objects of Python, whose ``texts`` yields (name, text).

    The options are which documents are read, in which order, and how much of each. The first
    ``count`` that have ``min_tokens`` tokens are used; all of them where count is None.
    """

    label: str
    texts: Callable[[], Iterable[RawDocument]] | None = None
    name: str = ""
    split: str | None = None
    field: str | None = None
    config: str | None = None
    revision: str | None = None
    limit: PositiveInt | None = None
    count: PositiveInt | None = None
    min_tokens: PositiveInt = 0
    max_chars: PositiveInt | None = None
    seed: NonNegativeInt | None = None

    def __str__(self) -> str:
        return self.label

    def read(self) -> Iterator[RawDocument]:
        """Yield (name, text) in order; raise UserError where there is none."""
        return islice(self.texts() if self.texts else _read(self), self.limit)

    def left_out(self) -> Mapping[str, int]:
        """Return how many files in a folder of texts are not read, by their kind."""
        files = [] if self.texts or not expanded(self.name).is_dir() else _files(self) or []
        others = (_kind(file) for file in files if _kind(file) not in TEXT)
        return Counter(f"{suffix or 'other'} files" for suffix in others)

    def reject(self, *options: str) -> None:
        """Raise UserError for an option that these documents do not have."""
        for key in options:
            if value := getattr(self, key):
                raise UserError(f"--docs {self.name} has no {key}; leave {key}={value} out.")


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
    is_file = (
        "/" not in name or has_magic(name) or name[0] in "./~" or _kind(path) in (*TEXT, *ROWS)
    )
    known = name == "embedded" or (name and is_path(path)) or _matching(name)
    if not known and (is_file or "://" in given):
        raise UserError(
            f"documents {given} do not exist; give a file, a folder, a glob, or a data set of the "
            "hub as OWNER/NAME."
        )
    what, hints = f"--docs {name}", hints_of(Documents)
    options = split_options(what, listed)
    allowed = hints.keys() - {"label", "texts", "name", "return"}
    allowed -= {*SET_OPTIONS} if name == "embedded" else set()
    for key in options.keys() - allowed:
        raise UserError(f"{what} has no option {key!r}; {nearest(key, allowed)}.")
    values = {key: typed(what, key, text, hints[key]) for key, text in options.items()}
    return Documents(given, None, name, **values)


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


def limited(given: Any, most: int) -> Any:
    """Return documents of which at most so many texts or rows are read."""
    if isinstance(given, Documents):
        return replace(given, limit=min(given.limit or most, most))
    if not isinstance(given, str):
        return given
    name, listed = _split(given)
    options = split_options(f"--docs {name}", listed)
    own = options.get("limit", "")
    if not own or (own.isdecimal() and int(own) > most):
        options["limit"] = str(most)
    return f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}"


def recorded_documents(given: str | Documents) -> str:
    """Return what a record holds of documents: their name, without its folders, and options."""
    name, listed = _split(str(given))
    return f"{recorded(name)}:{listed}" if listed else recorded(name)


def _split(given: str) -> tuple[str, str]:
    """Return a name and its options; a file whose own name has a colon takes none."""
    name, _, listed = (given, "", "") if is_path(expanded(given)) else given.partition(":")
    return name, listed


def held_out() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the held-out documents, modules first."""
    from pydoc_data.topics import topics  # half a megabyte

    root = Path(sysconfig.get_path("stdlib"))
    for module in HELD_OUT_MODULES:
        text = (root / f"{module}.py").read_text(encoding="utf-8", errors="replace")
        yield f"{module}.py", text
    for topic in HELD_OUT_TOPICS:
        yield f"topics/{topic}", topics[topic]


def _kind(path: Path) -> str:
    """Return the suffix of a file's content: the one before a compression's."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def _matching(pattern: str) -> list[Path]:
    """Return the files that match a glob, in order; none for another name."""
    names = glob(str(expanded(pattern)), recursive=True) if has_magic(pattern) else ()  # noqa: PTH207
    return sorted(path for path in map(Path, names) if path.is_file())


def _register_zstd() -> None:
    """Let fsspec unpack .zst files, by which datasets reads too."""
    from fsspec.compression import register_compression  # with asyncio

    def unpacked(file: Any, **_: Any) -> Any:
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))

    register_compression("zstd", unpacked, "zst", force=True)


def _read(documents: Documents) -> Iterator[RawDocument]:
    """Yield the documents of a name; raise UserError where there is none."""
    _register_zstd()
    if documents.name == "embedded":
        texts = _drawn([*held_out()], documents.seed)
    elif (files := _files(documents)) is None:
        texts = _read_set(documents)
    else:
        texts = _read_files(files, documents)
    empty = True
    for name, text in texts:
        empty = empty and not (text and text.strip())
        yield name, text and text[: documents.max_chars]
    if empty:
        raise UserError(f"--docs {documents.name} has no text (in a folder: {', '.join(TEXT)}).")


def _drawn(things: list[Any], seed: int | None) -> Iterator[Any]:
    if seed is not None:
        Random(seed).shuffle(things)
    return iter(things)


def _files(documents: Documents) -> list[Path] | None:
    path = expanded(documents.name)
    if path.is_file():
        return [path]
    if not path.is_dir():
        return _matching(documents.name) or None
    if any(getattr(documents, option) for option in SET_OPTIONS):
        return None
    with foreign(f"{path} cannot be read"):
        below = (file for file in path.rglob("*") if file.is_file())
        hidden = re.compile(r"(^|/)(\.|__MACOSX/)")
        files = sorted(f for f in below if not hidden.search(f.relative_to(path).as_posix()))
    kinds = {_kind(file) for file in files if file.name != "README.md"}
    only_rows = not kinds.isdisjoint(ROWS) and kinds.isdisjoint(TEXT)
    return None if only_rows else files


def _read_files(files: list[Path], documents: Documents) -> Iterator[RawDocument]:
    root = expanded(documents.name)
    if root.is_dir():
        files = [file for file in files if _kind(file) in TEXT]
    else:
        root = Path(os.path.commonpath([file.parent for file in files]))
    has_rows = any(_kind(file) in ROWS for file in files)
    documents.reject(*(option for option in SET_OPTIONS if not (has_rows and option == "field")))
    for path in _drawn(files, documents.seed):
        name, suffix = path.relative_to(root).as_posix(), _kind(path)
        with foreign(f"{path} cannot be read"):
            if suffix in ROWS:
                import datasets

                if suffix in JSON:
                    rows: Any = datasets.IterableDataset.from_generator(
                        _json_rows, gen_kwargs={"path": path}
                    )
                else:
                    rows = datasets.load_dataset(
                        TABLES[suffix], data_files=escape(str(path)), split="train", streaming=True
                    )
                yield from read_rows(rows, documents.field, name, documents.seed)
            else:
                with _opened(path) as file:
                    yield name, file.read(documents.max_chars)


def _opened(path: Path) -> Any:
    """Open a text, without its byte order mark and with the line ends of Unix."""
    from fsspec import open as open_file

    packed = "infer" if path.suffix.lower() in COMPRESSED else None
    return open_file(str(path.absolute()), "rt", encoding="utf-8-sig", compression=packed)


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON file: an object or a text per line, or one list or object.

    Arrow, by which datasets reads JSON, takes some texts for dates and may end the process.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and (line.startswith("[") or line.strip() == "{"):
                whole = json.loads(line + file.read())
                rows = whole if isinstance(whole, list) else [whole]
            else:
                with foreign(f"{path}: line {number} is not JSON"):
                    rows = [json.loads(line)] if line.strip() else []
            yield from (row if isinstance(row, dict) else {"text": row} for row in rows)


def read_rows(
    rows: Any, field: str | None, name: str, seed: int | None = None
) -> Iterator[RawDocument]:
    """Yield the texts of rows, named by their number; UserError for a row without the field.

    With a seed they are drawn; a drawn stream gives no numbers, so that hashes are the names.
    """
    field = field or "text"
    if field in (getattr(rows, "column_names", None) or ()):
        rows = rows.select_columns(field)  # others may be images, which take long to decode
    if seed is not None:
        rows = rows.shuffle(seed=seed, buffer_size=BUFFER)
    for index, row in enumerate(rows):
        label = f"{name}[{index}]" if seed is None else name
        if field not in row:
            raise UserError(
                f"{label} has no field {field!r}; name the one with the text by :field=NAME "
                f"({nearest(field, map(str, row))})."
            )
        text = row[field]
        if not isinstance(text, str | None):
            raise UserError(f"{label}: field {field!r} is {type(text).__name__}, not text.")
        if seed is not None:
            label = f"{name}#{sha256((text or '').encode()).hexdigest()[:8]}"
        yield label, text and text.replace("\r\n", "\n").replace("\r", "\n")


def _read_set(documents: Documents) -> Iterator[RawDocument]:
    import datasets

    path, split = expanded(documents.name), documents.split or "test"
    name, revision = documents.name, documents.revision
    with foreign(f"data set {name} (split {split}) cannot be read"):
        if is_path(path):
            documents.reject("revision")
            name = str(path)
        elif constants.HF_HUB_OFFLINE:  # datasets streams only from the hub itself
            from huggingface_hub import snapshot_download  # imports the hub's whole client

            try:
                name = snapshot_download(name, revision=revision, repo_type="dataset")
            except OSError as error:
                raise UserError(
                    f"data set {name} cannot be read offline: the hub's cache does not have all of "
                    f"it (hf download --repo-type dataset {name})."
                ) from error
            revision = None
        rows = datasets.load_dataset(
            name, name=documents.config, split=split, revision=revision, streaming=True
        )
        yield from read_rows(rows, documents.field, path.name, documents.seed)
