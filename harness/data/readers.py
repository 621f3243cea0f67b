"""Read documents from text files, archives, files of rows and data sets, one at a time."""

from __future__ import annotations

import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import escape, glob, has_magic
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from fsspec import filesystem
from fsspec import open as open_file
from fsspec.compression import register_compression
from huggingface_hub import constants

from ropewalk.harness.data import embedded
from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.names import is_path, nearest, place

logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # an error says it
TEXT = (".html", ".md", ".py", ".rst", ".tex", ".txt")
ARCHIVES = {".zip": "zip", ".tar": "tar", ".tgz": "tar"}  # and the name of each in fsspec
JSON = (".json", ".jsonl", ".ndjson")
TABLES = {".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}  # and their names in datasets
ROWS = {*JSON, *TABLES}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
BUFFER = 100  # rows in memory from which a stream is drawn; its shards have any order

RawDocument = tuple[str, str | None]  # name and text; None where a row's field is null


@dataclass(frozen=True)
class Selection:
    """A name and its options: which documents are read, in which order, and how much of each."""

    name: str
    split: str | None = None
    field: str | None = None
    config: str | None = None
    revision: str | None = None
    limit: int | None = None
    count: int | None = None
    min_tokens: int = 0
    max_chars: int | None = None
    seed: int | None = None

    def reject(self, *options: str) -> None:
        """Raise UserError for an option that these documents do not have."""
        for key in options:
            if value := getattr(self, key):
                raise UserError(f"--docs {self.name} has no {key}; leave {key}={value} out.")


def _unpack_zstd(file: Any, **_: Any) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


register_compression("zstd", _unpack_zstd, "zst", force=True)  # datasets reads through it too


def kind(path: Path) -> str:
    """Return the suffix of a file's content: the one before a compression's."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def matching(pattern: str) -> list[Path]:
    """Return the files that match a glob, in order; none for another name."""
    names = glob(str(place(pattern)), recursive=True) if has_magic(pattern) else ()  # noqa: PTH207
    return sorted(path for path in map(Path, names) if path.is_file())


def read(selection: Selection) -> Iterator[RawDocument]:
    """Yield the documents of a selection; raise UserError where there is none."""
    if selection.name == "embedded":
        documents = _drawn([*embedded.held_out()], selection.seed)
    elif (files := _files(selection)) is None:
        documents = _read_set(selection)
    else:
        documents = _read_files(files, selection)
    empty = True
    for name, text in documents:
        empty = empty and not (text and text.strip())
        yield name, text and text[: selection.max_chars]
    if empty:
        raise UserError(f"--docs {selection.name} has no text (in a folder: {', '.join(TEXT)}).")


def left_out(selection: Selection) -> Mapping[str, int]:
    """Return how many files in a folder of texts are not read, by their kind."""
    files = (_files(selection) or []) if place(selection.name).is_dir() else []
    others = (kind(file) for file in files if kind(file) not in {*TEXT, *ARCHIVES})
    return Counter(f"{suffix or 'other'} files" for suffix in others)


def _drawn(things: list[Any], seed: int | None) -> Iterator[Any]:
    if seed is not None:
        Random(seed).shuffle(things)
    return iter(things)


def _files(selection: Selection) -> list[Path] | None:
    """Return the files of a name, in order; None for a data set."""
    path = place(selection.name)
    if path.is_file():
        return [path]
    if not path.is_dir():
        return matching(selection.name) or None
    options = (selection.split, selection.field, selection.config, selection.revision)
    if any(options) or _saved_to_disk(path):
        return None
    with foreign(f"{path} cannot be read"):
        below = (file for file in path.rglob("*") if _shown(file.relative_to(path)))
        files = sorted(file for file in below if file.is_file())
    kinds = {kind(file) for file in files if file.name != "README.md"}
    only_rows = not kinds.isdisjoint(ROWS) and kinds.isdisjoint({*TEXT, *ARCHIVES})
    return None if only_rows else files


def _shown(path: Path) -> bool:
    """Return whether no part of a path begins with a dot, or is what macOS adds to an archive."""
    return not any(part == "__MACOSX" or part.startswith(".") for part in path.parts)


def _read_files(files: list[Path], selection: Selection) -> Iterator[RawDocument]:
    root = place(selection.name)
    if root.is_dir():
        files = [file for file in files if kind(file) in {*TEXT, *ARCHIVES}]
    else:
        root = Path(os.path.commonpath([file.parent for file in files]))
    some_rows = any(kind(file) in ROWS for file in files)
    selection.reject("split", "config", "revision", *(() if some_rows else ("field",)))
    for path in _drawn(files, selection.seed):
        name, suffix = path.relative_to(root).as_posix(), kind(path)
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
                yield from read_rows(rows, selection.field, name, selection.seed)
            elif suffix in ARCHIVES:
                archive = filesystem(ARCHIVES[suffix], fo=str(path), skip_instance_cache=True)
                for member in sorted(archive.find("")):
                    if kind(Path(member)) in TEXT and _shown(Path(member)):
                        yield f"{name}/{Path(member)}", _text(archive, member, selection.max_chars)
            else:
                yield name, _text(filesystem("file"), str(path.absolute()), selection.max_chars)


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON file: an object per line, or one list of objects or texts.

    Arrow's threads, by which datasets reads JSON, may end the process where a line is broken.
    """
    with open_file(str(path.absolute()), "rt", encoding="utf-8-sig", compression="infer") as file:
        if kind(path) == ".json":
            whole = file.read()
            try:
                parsed = json.loads(whole)
            except ValueError:  # it may have an object per line
                file = io.StringIO(whole)
            else:
                rows = parsed if isinstance(parsed, list) else [parsed]
                yield from (row if isinstance(row, dict) else {"text": row} for row in rows)
                return
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is not JSON: {error}") from None
                yield row if isinstance(row, dict) else {"text": row}


def _text(files: Any, name: str, max_chars: int | None) -> str:
    # The byte order mark is left out, and line ends are those of Unix.
    with files.open(name, "r", encoding="utf-8-sig", compression="infer") as file:
        return str(file.read(max_chars))


def read_rows(
    rows: Any, field: str | None, name: str, seed: int | None = None
) -> Iterator[RawDocument]:
    """Yield the texts of rows, named by their number; UserError for a row without the field.

    With a seed they are drawn; a drawn stream gives no numbers, so that hashes are the names.
    """
    field = field or "text"
    if field in (getattr(rows, "column_names", None) or ()):
        rows = rows.select_columns(field)  # others may be images, which take long to decode
    numbered: Iterator[tuple[int | None, Any]] = enumerate(rows)
    if seed is not None and hasattr(rows, "select"):
        numbered = ((index, rows[index]) for index in _drawn([*range(len(rows))], seed))
    elif seed is not None:
        numbered = ((None, row) for row in rows.shuffle(seed=seed, buffer_size=BUFFER))
    for index, row in numbered:
        label = name if index is None else f"{name}[{index}]"
        if field not in row:
            raise UserError(
                f"{label} has no field {field!r}; name the one with the text by :field=NAME "
                f"({nearest(field, map(str, row))})."
            )
        text = row[field]
        if not isinstance(text, str | None):
            raise UserError(f"{label}: field {field!r} is {type(text).__name__}, not text.")
        mark = "" if index is not None else f"#{sha256((text or '').encode()).hexdigest()[:8]}"
        yield f"{label}{mark}", text and text.replace("\r\n", "\n").replace("\r", "\n")


def _saved_to_disk(path: Path) -> bool:
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def _read_set(selection: Selection) -> Iterator[RawDocument]:
    path, split = place(selection.name), selection.split or "test"
    with foreign(f"data set {selection.name} (split {split}) cannot be read"):
        rows = _open_set(selection, path, split)
        yield from read_rows(rows, selection.field, path.name, selection.seed)


def _open_set(selection: Selection, path: Path, split: str) -> Any:
    import datasets

    name, revision = selection.name, selection.revision
    if is_path(path):
        selection.reject("revision")
        name = str(path)
    if _saved_to_disk(path):
        saved = datasets.load_from_disk(name)
        selection.reject("config", *(() if isinstance(saved, dict) else ("split",)))
        if isinstance(saved, dict) and split not in saved:
            raise UserError(f"--docs {name} has no split {split!r}; {nearest(split, saved)}.")
        return saved[split] if isinstance(saved, dict) else saved
    if not is_path(path) and constants.HF_HUB_OFFLINE:  # datasets streams only from the hub itself
        from huggingface_hub import snapshot_download  # imports the hub's whole client

        try:
            name, revision = snapshot_download(name, revision=revision, repo_type="dataset"), None
        except OSError as error:
            raise UserError(
                f"data set {name} cannot be read offline: the hub's cache does not have all of it "
                f"(hf download --repo-type dataset {name})."
            ) from error
    return datasets.load_dataset(
        name, name=selection.config, split=split, revision=revision, streaming=True
    )
