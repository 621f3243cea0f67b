"""Read documents from files: texts, JSON lines, Parquet, Arrow, archives, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from harness.data.arrow import GIANT, LARGEST, arrow, giant, parquet
from harness.data.oddities import beginning
from harness.errors import UserError, foreign, reason
from harness.names import nearest

TEXT = {".txt", ".md", ".rst", ".tex", ".py", ".html"}
TAR = {".tar", ".tgz", ".tbz2", ".txz"}
PACKED = {".parquet", ".arrow", ".zip"}  # read from any place in the file
CHUNK = 2**20
MARKS = {  # the longer first: the other is its beginning
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# RuntimeError: an archive that is encrypted, or packed as Python cannot unpack.
BROKEN = (
    OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip

RawDocument = tuple[str, str | None]  # name and text; None where a row's field is null


def _zstd(path: Path) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


COMPRESSED: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstd,
}


def kind(path: Path) -> str:
    """Return the suffix of a file's content: the one before a compression's."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def is_set(paths: Iterable[Path]) -> bool:
    """Return whether what is below a folder is files of rows, with no text but a README.md."""
    kinds = {kind(path) for path in paths if path.name != "README.md"}
    return not kinds.isdisjoint({*ROWS, ".csv"}) and kinds.isdisjoint({*TEXT, ".zip"})


def below(folder: Path) -> list[Path]:
    """Return the paths below a folder, in order, without hidden ones."""
    with foreign(f"{folder} cannot be read"):
        return sorted(path for path in folder.rglob("*") if not _hidden(path.relative_to(folder)))


def _hidden(path: Path) -> bool:
    """Return whether a part of a path begins with a dot, or is what macOS adds to an archive."""
    return any(part == "__MACOSX" or part.startswith(".") for part in path.parts if part != "..")


def in_folder(folder: Path) -> list[Path]:
    """Return the text files below a folder, in order; raise UserError where there is none."""
    paths = below(folder)
    found = [p for p in paths if kind(p) in {*TEXT, ".zip"} and p.is_file()]
    if not found or is_set(paths):
        kinds = ", ".join(sorted(TEXT))
        raise UserError(f"{folder} has no text file ({kinds}); a data set needs {folder}:split=…")
    return found


def read_file(path: Path, name: str, field: str, longest: int | None) -> Iterator[RawDocument]:
    """Yield the documents of one file: itself, its members, or its rows, by its suffix.

    ``longest`` cuts every document to its first characters. Raises UserError for other encodings,
    broken archives, rows without the field and documents that are too large.
    """
    _check_packing(path)
    try:
        if path.suffix.lower() == ".zip":
            yield from _members(path, name, longest)
        elif kind(path) in ROWS:
            for label, row in ROWS[kind(path)](path, name, field):
                yield label, text_of(row, field, label, longest)
        else:
            with _opened(path) as file:
                yield name, _text(file, str(path), longest)
    except UserError:
        raise
    except BROKEN as error:
        raise UserError(f"{path} cannot be read: {reason(error).removesuffix('.')}.") from error


def _check_packing(path: Path) -> None:
    """Raise UserError for an archive of another kind, and for a file that is packed in itself."""
    inner, outer = kind(path), path.suffix.lower()
    if inner in TAR:
        raise UserError(f"{path} is an archive; unpack it and give the folder, or make it a .zip.")
    if inner != outer and inner in PACKED:
        raise UserError(
            f"{path} is a {inner} file that was packed again ({outer}); unpack it first."
        )


def text_of(row: Any, field: str, label: str, longest: int | None) -> str | None:
    """Return the text of a row, None where it is null; raise UserError for a row without it."""
    if not isinstance(row, dict):
        raise UserError(f"{label} is not a record with fields, but {type(row).__name__}.")
    if field not in row:
        raise UserError(
            f"{label} has no field {field!r}; name the one with the text by :field=NAME "
            f"({nearest(field, map(str, row))})."
        )
    if row[field] is None:
        return None
    if not isinstance(row[field], str):
        raise UserError(f"{label}: field {field!r} is {type(row[field]).__name__}, not text.")
    text = beginning(row[field], longest)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(
            f"{label} has a lone surrogate (half a character) at character {error.start}."
        ) from None
    if size > LARGEST:
        raise UserError(_too_large(label))
    return text


def _too_large(label: str) -> str:
    limit = f"{LARGEST / 2**20:g} MiB"
    return f"{label} is longer than {limit}; split it, or read its beginning with max_chars=…"


def _opened(path: Path) -> IO[bytes]:
    decompress = COMPRESSED.get(path.suffix.lower())
    opened: IO[bytes] = decompress(path) if decompress else path.open("rb")
    return opened


def _text(file: IO[bytes], label: str, longest: int | None) -> str | None:
    """Return the text of a file, or its first characters, reading no more than needed."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # without the byte order mark
    parts: list[str] = []
    letters = size = 0
    while longest is None or letters < 2 * longest:  # CRLF is one character
        chunk = file.read(CHUNK)
        size += len(chunk)
        if size > LARGEST and longest is None:
            raise UserError(_too_large(label))
        try:
            parts.append(decoder.decode(chunk, final=not chunk))
        except UnicodeDecodeError as error:
            place = size - len(chunk) + error.start - (len(error.object) - len(chunk))
            found = [MARKS[mark] for mark in MARKS if not place and error.object.startswith(mark)]
            guess = f" ({found[0]}, by its first bytes)" if found else ""
            raise UserError(
                f"{label} is not UTF-8 text (byte {place}){guess}; convert it first."
            ) from None
        letters += len(parts[-1])
        if not chunk:
            break
    return text_of({"text": "".join(parts)}, "text", label, longest)


def _members(path: Path, name: str, longest: int | None) -> Iterator[RawDocument]:
    """Yield the text files of an archive."""
    with zipfile.ZipFile(path) as archive:
        shown = (name for name in sorted(archive.namelist()) if not _hidden(Path(name)))
        members = [name for name in shown if Path(name).suffix.lower() in TEXT]
        if not members:
            raise UserError(f"{path} has no text file ({', '.join(sorted(TEXT))}).")
        for member in members:
            with archive.open(member) as file:
                yield f"{name}/{member}", _text(file, f"{path}/{member}", longest)


def _lines(path: Path, name: str, _field: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file of JSON lines."""
    with _opened(path) as lines:
        for number, line in enumerate(iter(lambda: lines.readline(GIANT + 1), b""), start=1):
            if len(line) > GIANT:
                raise UserError(giant(f"{path}, line {number}"))
            if line.strip():
                yield f"{name}[{number - 1}]", _parsed(line, f"{path}, line {number}")


def _parsed(text: bytes, label: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{label} is not JSON: {reason(error)}.") from None


def _json(path: Path, name: str, _field: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of a JSON file: a list of them, or one."""
    with _opened(path) as file:
        content = file.read(GIANT + 1)
    if len(content) > GIANT:
        raise UserError(
            f"{path} is longer than {GIANT / 2**20:g} MiB; convert it to JSON lines (.jsonl)."
        )
    read = _parsed(content, str(path))
    for index, row in enumerate(read if isinstance(read, list) else [read]):
        yield f"{name}[{index}]", row


ROWS: dict[str, Callable[[Path, str, str], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".json": _json,
    ".parquet": parquet,
    ".arrow": arrow,
}
MANY = {*ROWS, ".zip"}  # kinds of files with several documents
