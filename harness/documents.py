"""Documents by name: the embedded ones, local text files and folders, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from harness import embedded
from harness.errors import UserError, reason
from harness.plugins import nearest, split_options

TEXT = {".txt", ".md", ".rst", ".tex", ".py", ".html"}
DATA = {".json", ".jsonl", ".parquet", ".arrow", ".csv", ".gz", ".zst", ".zip"}
DATASET_OPTIONS = ("split", "field", "config", "revision", "limit")


@dataclass(frozen=True)
class Documents:
    """Where texts come from; ``read`` yields (name, text) and may raise UserError."""

    label: str
    read: Callable[[], Iterable[tuple[str, str]]]


def open_documents(given: str) -> Documents:
    """Understand ``embedded``, a file, a folder, or ``data set:split=…,field=…``.

    Raises UserError before anything is read for a path that does not exist or a bad option.
    """
    if given == "embedded":
        return Documents(given, embedded.held_out)
    path = Path(given).expanduser()
    if path.is_file():
        return Documents(given, lambda: [(path.name, _text(path))])
    if path.is_dir() and not _is_dataset(path):
        return Documents(given, lambda: _folder(path))
    name, _, listed = given.partition(":")
    place = Path(name).expanduser()
    gone = name.startswith((".", "/", "~")) and not place.is_dir()
    if gone or place.suffix in TEXT:
        message = f"documents {given} do not exist; give a file, a folder or a data set's name."
        raise UserError(message)
    options = _dataset_options(name, listed)
    return Documents(given, lambda: _dataset(str(place) if place.is_dir() else name, options))


def _dataset_options(name: str, listed: str) -> dict[str, str]:
    options = split_options(f"--docs {name}", listed)
    for key in options:
        if key not in DATASET_OPTIONS:
            message = f"--docs {name} has no option {key!r}; {nearest(key, DATASET_OPTIONS)}."
            raise UserError(message)
    limit = options.get("limit", "1")
    if not limit.isdecimal() or int(limit) < 1:
        message = f"--docs {name}: limit={limit} should be a whole number above 0."
        raise UserError(message)
    return options


def _text(path: Path) -> str:
    if path.suffix in DATA:
        message = (
            f"{path} is a file of records, not a text; put it into a folder of its own and give"
            " FOLDER:split=train,field=text."
        )
        raise UserError(message)
    try:
        return path.read_text(encoding="utf-8-sig")  # without the mark some editors put first
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text (byte {error.start}); convert it first."
        raise UserError(message) from None


def _folder(folder: Path) -> Iterator[tuple[str, str]]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in TEXT and path.is_file())
    if not paths:
        kinds = ", ".join(sorted(TEXT))
        message = f"{folder} holds no text file ({kinds}); a data set needs {folder}:split=…"
        raise UserError(message)
    for path in paths:
        yield path.relative_to(folder).as_posix(), _text(path)


def _is_dataset(path: Path) -> bool:
    """Tell a folder written by ``save_to_disk`` from a folder of texts."""
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def _dataset(name: str, options: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the documents of a data set, streamed where only some of them are asked for."""
    field = options.get("field", "text")
    limit = int(options["limit"]) if "limit" in options else None
    for index, row in enumerate(islice(_rows(name, options), limit)):
        if field not in row:
            message = f"--docs {name} has no field {field!r}; {nearest(field, row)}."
            raise UserError(message)
        if not isinstance(row[field], str):
            message = f"--docs {name}: field {field!r} holds {type(row[field]).__name__}, not text."
            raise UserError(message)
        yield f"{Path(name).name}[{index}]", row[field]


def _rows(name: str, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one split; what the library cannot open or parse is one sentence."""
    from datasets.exceptions import DatasetGenerationError

    split = options.get("split", "test")
    try:
        yield from _split(name, split, options)
    except (OSError, ValueError, KeyError, RuntimeError, DatasetGenerationError) as error:
        # The library's own words for a broken file are only in the cause.
        told = error.__cause__ or error
        message = f"data set {name} (split {split}) cannot be read: {reason(told)}"
        raise UserError(message) from error


def _split(name: str, split: str, options: dict[str, str]) -> Iterable[dict[str, Any]]:
    import datasets

    if not _is_dataset(Path(name)):
        return datasets.load_dataset(  # type: ignore[no-any-return]
            name,
            options.get("config"),
            split=split,
            revision=options.get("revision"),
            streaming="limit" in options,
        )
    found: Any = datasets.load_from_disk(name)
    if not isinstance(found, datasets.DatasetDict):
        if "split" in options:
            message = f"--docs {name} holds one data set without splits; leave split={split} out."
            raise UserError(message)
        return found  # type: ignore[no-any-return]
    if split not in found:
        message = f"--docs {name} has no split {split!r}; {nearest(split, found)}."
        raise UserError(message)
    return found[split]  # type: ignore[no-any-return]
