"""Read documents from files, archives and Hugging Face data sets, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile
from typing import IO, Any

from huggingface_hub import constants

from harness.errors import UserError, foreign, reason
from harness.hub import check_answers, gated, refusal
from harness.names import nearest

LARGEST = 16 * 2**20  # bytes of one document; tokenizing takes some 300 times as many
GIANT = 2 * LARGEST  # bytes of a row of which not even the first characters are read
PAGES = 2**20  # bytes of a column that are read at a time
UNPACKED = 256 * 2**20  # bytes that a group of rows may always unpack to
TIMES = 100  # beyond those, how many times its size it may; text is packed by 3 to 10
TEXT = {".txt", ".md", ".rst", ".tex", ".py", ".html"}
TAR = {".tar", ".tgz", ".tbz2", ".txz"}
ANYWHERE = {".parquet", ".arrow", ".zip"}  # read from any place in the file
CHUNK = 2**20
MARKS = {  # the longer first: the other is its beginning
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# RuntimeError: an archive that is encrypted, or packed as Python cannot unpack.
BROKEN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)

TAG = re.compile(
    r"<(?:!doctype html"
    r"|/?(?:html|head|body|div|span|p|br|a|img|ul|li|table|tr|td|h[1-6])\b[^<>]*)>",
    re.IGNORECASE,
)
LOOKED_AT = 100_000  # characters from the beginning in which tags are counted
SPARSE = 500  # characters per tag; prose that quotes a tag has more, a web page has fewer

RawDocument = tuple[str, str | None]  # name and text; None where a row's field is null


def plain(text: str) -> str:
    """Return a text with the line ends of Unix."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def beginning(text: str, longest: int | None) -> str:
    """Return the beginning of a text that has ``longest`` characters once it is ``plain``."""
    if longest is None:
        return text
    end, wider = 0, longest
    while wider > end:  # CRLF is one character
        end, wider = wider, longest + text.count("\r\n", 0, wider)
    return text[:end]


def is_html(text: str) -> bool:
    """Return whether a text is a web page rather than prose."""
    tags = sum(1 for _ in TAG.finditer(text, 0, LOOKED_AT))
    return tags > max(1, min(len(text), LOOKED_AT) / SPARSE)


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
    texts = [path for path in paths if kind(path) in {*TEXT, ".zip"} and path.is_file()]
    if not texts or is_set(paths):
        kinds = ", ".join(sorted(TEXT))
        raise UserError(f"{folder} has no text file ({kinds}); a data set needs {folder}:split=…")
    return texts


def not_read(folder: Path) -> Counter[str]:
    """Return how many files in a folder of texts are not read, by their kind."""
    kinds = (kind(path) for path in below(folder) if path.is_file())
    others = (suffix for suffix in kinds if suffix not in {*TEXT, ".zip"})
    return Counter(f"{suffix or 'other'} files" for suffix in others)


def read_file(path: Path, name: str, field: str, longest: int | None) -> Iterator[RawDocument]:
    """Yield the documents of one file: itself, its members, or its rows, by its suffix.

    ``longest`` cuts every document to its first characters. Raises UserError for other encodings,
    broken archives, rows without the field and documents that are too large.
    """
    if kind(path) in TAR:
        raise UserError(f"{path} is an archive; unpack it and give the folder, or make it a .zip.")
    try:
        if kind(path) in ANYWHERE:
            with _unpacked(path) as whole:
                yield from _in_file(whole, name, field, longest, kind(path))
        elif kind(path) in ROWS:
            yield from _in_file(path, name, field, longest, kind(path))
        else:
            with _opened(path) as file:
                yield name, _text(file, str(path), longest)
    except UserError:
        raise
    except BROKEN as error:
        raise UserError(f"{path} cannot be read: {reason(error).removesuffix('.')}.") from error


def _in_file(
    path: Path, name: str, field: str, longest: int | None, suffix: str
) -> Iterator[RawDocument]:
    """Yield the members of an archive, or the texts of the rows of a file."""
    if suffix == ".zip":
        yield from _members(path, name, longest)
        return
    for label, row in ROWS[suffix](path, name, field):
        yield label, text_of(row, field, label, longest)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield a file that is not compressed: itself, or a temporary copy.

    Raises UserError for one that unpacks to far too much.
    """
    if path.suffix.lower() not in COMPRESSED:
        yield path
        return
    limit = max(UNPACKED, TIMES * path.stat().st_size)
    with _opened(path) as packed, NamedTemporaryFile(prefix="ropewalk-") as copy:
        while chunk := packed.read(CHUNK):
            copy.write(chunk)
            if copy.tell() > limit:
                raise UserError(f"{path} unpacks to more than {TIMES} times its size.")
        copy.flush()
        yield Path(copy.name)


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
        raise _too_large(label)
    return text


def _too_large(label: str) -> UserError:
    limit = f"{LARGEST / 2**20:g} MiB"
    return UserError(
        f"{label} is longer than {limit}; split it, or read its beginning with max_chars=…"
    )


def _giant(label: str) -> UserError:
    return UserError(f"{label} is longer than {GIANT / 2**20:g} MiB; split the document.")


def _opened(path: Path) -> Any:
    decompress = COMPRESSED.get(path.suffix.lower())
    return decompress(path) if decompress else path.open("rb")


def _text(file: IO[bytes], label: str, longest: int | None) -> str | None:
    """Return the text of a file, or its first characters, reading no more than needed."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # without the byte order mark
    parts: list[str] = []
    letters = size = 0
    while longest is None or letters < 2 * longest:  # CRLF is one character
        chunk = file.read(CHUNK)
        size += len(chunk)
        if size > LARGEST and longest is None:
            raise _too_large(label)
        try:
            parts.append(decoder.decode(chunk, final=not chunk))
        except UnicodeDecodeError as error:
            place = size - len(chunk) + error.start - (len(error.object) - len(chunk))
            marks = [MARKS[mark] for mark in MARKS if not place and error.object.startswith(mark)]
            guess = f" ({marks[0]}, by its first bytes)" if marks else ""
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
                raise _giant(f"{path}, line {number}")
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


def _parquet(path: Path, name: str, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a Parquet file with only this field, page by page."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, buffer_size=PAGES) as file:
        if field not in file.schema_arrow.names:
            yield f"{name}[0]", dict.fromkeys(file.schema_arrow.names)
            return
        index = 0
        for group in range(file.num_row_groups):
            _check_group(file.metadata.row_group(group), f"{name}[{index}]", field)
            for batch in file.iter_batches(batch_size=1, row_groups=[group], columns=[field]):
                yield _cell(batch, field, f"{name}[{index}]")
                index += 1


def _check_group(group: Any, label: str, field: str) -> None:
    """Raise UserError for a group of rows that would take too much memory, before it is read."""
    columns = [group.column(index) for index in range(group.num_columns)]
    columns = [column for column in columns if column.path_in_schema == field]
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > GIANT * max(1, group.num_rows):  # a group without rows still has a header
        raise _giant(label)
    if unpacked > max(UNPACKED, TIMES * sum(column.total_compressed_size for column in columns)):
        raise UserError(
            f"the rows from {label} on unpack to {unpacked / 2**20:,.0f} MiB, more than {TIMES} "
            "times their size; write them in smaller parts."
        )


def _arrow(path: Path, name: str, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of an Arrow file or stream, with only this field."""
    from pyarrow import ipc, memory_map

    with memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        opened: Any = ipc.open_file if is_file else ipc.open_stream
        names = opened(source).schema.names
        if field not in names:
            yield f"{name}[0]", dict.fromkeys(names)
            return
        options = ipc.IpcReadOptions(included_fields=[names.index(field)])
        source.seek(0)
        batches = opened(source, options=options)
        if is_file:
            batches = map(batches.get_batch, range(batches.num_record_batches))
        rows = (batch.slice(row, 1) for batch in batches for row in range(batch.num_rows))
        for index, row in enumerate(rows):
            yield _cell(row, field, f"{name}[{index}]")


def _cell(row: Any, field: str, label: str) -> tuple[str, dict[str, Any]]:
    """Return an Arrow row's label and field, or all names; raise UserError for too large a row."""
    import pyarrow

    if field not in row.schema.names:
        return label, dict.fromkeys(row.schema.names)
    cell = row.column(field)
    if pyarrow.types.is_dictionary(cell.type):  # it has the bytes of all rows
        cell = cell.cast(cell.type.value_type)
    if cell.nbytes > GIANT:
        raise _giant(label)
    return label, {field: cell[0].as_py()}


ROWS: dict[str, Callable[[Path, str, str], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
MANY = {*ROWS, ".zip"}  # kinds of files with several documents


SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})(.*)")  # one of the files of a split
DEFAULT = "test"  # split
SET_OPTIONS = ("split", "field", "config", "revision")
BUFFER = 100  # rows in memory from which a streamed set is drawn; its shards have any order


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

    @property
    def text_field(self) -> str:
        """The field of a row with the text."""
        return self.field or "text"

    @property
    def set_options(self) -> list[str]:
        """The options given that only a data set has, as a folder may be one."""
        return [key for key in SET_OPTIONS if getattr(self, key) is not None]


def is_saved(path: Path) -> bool:
    """Return whether a folder was written by ``save_to_disk``."""
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def read_set(rows: Selection) -> Iterator[RawDocument]:
    """Yield the documents of one split, streamed where only some of them are needed.

    Raises UserError where the library cannot open or parse it, and for a row without the field.
    """
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    short, split = Path(rows.name).name, rows.split or DEFAULT
    broken = (OSError, ValueError, KeyError, TypeError, RuntimeError, DatasetGenerationError)
    try:
        for index, row in _numbered(rows, split):
            label = short if index is None else f"{short}[{index}]"
            text = text_of(row, rows.text_field, label, rows.max_chars)
            # A drawn stream does not give the numbers of its rows.
            mark = "" if index is not None else f"#{sha256((text or '').encode()).hexdigest()[:8]}"
            yield f"{label}{mark}", text
    except broken as error:
        # The library's message on a broken file is only in the cause.
        why = refusal(error, rows.name, "data set") or reason(error.__cause__ or error)
        if isinstance(error, DatasetNotFoundError) and "gated" in why:
            why = gated(rows.name, "data set")
        raise UserError(
            f"{_not_here(rows)}data set {rows.name} (split {split}) cannot be read: {why}"
        ) from error


def _not_here(rows: Selection) -> str:
    """Return what to say of a name that may be meant as a file's: nothing is there."""
    there = Path(rows.name).exists()
    return "" if there else f"there is no file or folder {rows.name}, and "


def _numbered(rows: Selection, split: str) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield (number, row) in file order or drawn; a drawn stream gives no numbers."""
    opened: Any = _open_set(rows, split)
    if hasattr(opened, "select"):
        order = list(range(len(opened)))
        if rows.seed is not None:
            Random(rows.seed).shuffle(order)
        table, short = opened.with_format("arrow"), Path(rows.name).name
        for index in order:
            yield index, _cell(table[index], rows.text_field, f"{short}[{index}]")[1]
    elif rows.seed is None:
        yield from enumerate(opened)
    else:
        shuffled = opened.shuffle(seed=rows.seed, buffer_size=BUFFER)
        yield from ((None, row) for row in shuffled)


def _open_set(rows: Selection, split: str) -> Any:
    import datasets

    _check_place(rows)
    if is_saved(Path(rows.name)):
        return _saved_split(rows, split, datasets.load_from_disk(rows.name))
    some = rows.limit is not None or rows.count is not None  # else all of the split is read
    options = {"name": rows.config, "split": split, "streaming": some}
    if Path(rows.name).exists():
        return datasets.load_dataset(rows.name, **options)
    if constants.HF_HUB_OFFLINE:
        return datasets.load_dataset(_downloaded(rows), **options)
    if "/" not in rows.name:  # a mistyped path, more often than a data set without an owner
        check_answers(rows.name)
    options |= {} if some else _of_split(rows, split)
    return datasets.load_dataset(rows.name, revision=rows.revision, **options)


def _saved_split(rows: Selection, split: str, saved: Any) -> Any:
    if not isinstance(saved, dict):
        if rows.split is not None:
            raise UserError(
                f"--docs {rows.name} is one data set without splits; leave split={split} out."
            )
        return saved
    if split not in saved:
        raise UserError(f"--docs {rows.name} has no split {split!r}; {nearest(split, saved)}.")
    return saved[split]


def _check_place(rows: Selection) -> None:
    """Raise UserError for an option that a folder does not have."""
    path = Path(rows.name)
    config = rows.config if is_saved(path) else None  # a folder like a repository may have some
    for key, value in (("revision", rows.revision), ("config", config)):
        if path.exists() and value is not None:
            raise UserError(
                f"--docs {rows.name} is a folder without a {key}; leave {key}={value} out."
            )


def _of_split(rows: Selection, split: str) -> dict[str, Any]:
    """Return the options that read the files of one split, where the library would load all."""
    import datasets

    builder = datasets.load_dataset_builder(rows.name, name=rows.config, revision=rows.revision)
    files = (builder.config.data_files or {}).get(split, [])
    paths = [file.partition("@")[2].partition("/")[2] for file in files]
    return {"name": None, "data_files": {split: paths}} if all(paths) and paths else {}


def _downloaded(rows: Selection) -> str:
    """Return the path of a whole data set in the hub's cache; raise UserError otherwise."""
    try:
        from huggingface_hub import snapshot_download  # imports the hub's whole client

        folder: str = snapshot_download(
            rows.name, repo_type="dataset", revision=rows.revision, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{_not_here(rows)}data set {rows.name} (split {rows.split or DEFAULT}) "
            "cannot be read offline: the cache does not have it "
            f"(hf download --repo-type dataset {rows.name})."
        ) from error
    files = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*")}
    for part in filter(None, map(SHARD.fullmatch, sorted(files))):
        shards = {f"{part[1]}-{i:05}-of-{part[2]}{part[3]}" for i in range(int(part[2]))}
        if missing := sorted(shards - files):
            raise UserError(
                f"the hub's cache has only some files of data set {rows.name}: no {missing[0]}."
            )
    return folder
