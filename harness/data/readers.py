"""Read documents from files, archives and Hugging Face data sets, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import IO, Any

from huggingface_hub import constants

from harness.data.data_warnings import beginning
from harness.errors import UserError, foreign, reason
from harness.hub import gated, refusal
from harness.names import nearest

LARGEST = 16 * 2**20  # bytes of one document; tokenizing takes some 300 times as many
GIANT = 2 * LARGEST  # bytes of a row of which not even the first characters are read
PAGES = 2**20  # bytes of a column that are read at a time
UNPACKED = 256 * 2**20  # bytes that may always be unpacked at once
TIMES = 100  # the packed size is the limit beyond those; text is packed by 3 to 10


def giant(label: str) -> str:
    """Return the message for a row that is too long to be read."""
    return f"{label} is longer than {GIANT / 2**20:g} MiB; split the document."


def _check_unpacked(label: str, unpacked: int, packed: int) -> None:
    """Raise UserError for a small file that unpacks to far more than its size."""
    if unpacked > max(UNPACKED, TIMES * packed):
        raise UserError(
            f"{label} unpacks to {unpacked / 2**20:,.0f} MiB, more than {TIMES} times its size; "
            "write it in smaller parts."
        )


def parquet(path: Path, name: str, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a Parquet file with only this field, page by page."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, buffer_size=PAGES) as file:
        if field not in file.schema_arrow.names:
            yield f"{name}[0]", dict.fromkeys(file.schema_arrow.names)
            return
        yield from _batches(_row_groups(file, name, field), name, field)


def _row_groups(file: Any, name: str, field: str) -> Iterator[Any]:
    """Yield the rows of each group; raise UserError for a group whose rows are too large."""
    index = 0
    for group in range(file.num_row_groups):
        metadata = file.metadata.row_group(group)
        chunks = [metadata.column(i) for i in range(metadata.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema == field]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        if size > GIANT * max(1, metadata.num_rows):  # of no rows, some bytes are their header
            raise UserError(giant(f"{name}[{index}]"))
        label = f"{name}, row group {group}"
        _check_unpacked(label, size, sum(chunk.total_compressed_size for chunk in chunks))
        index += metadata.num_rows
        yield from file.iter_batches(batch_size=1, row_groups=[group], columns=[field])


def arrow(path: Path, name: str, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of an Arrow file or stream, with only this field."""
    import pyarrow

    check_batches(path, name)
    with pyarrow.memory_map(str(path)) as source:
        try:
            batches: Any = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        yield from _batches(batches, name, field)


def check_batches(path: Path, name: str) -> None:
    """Raise UserError before a batch is read that unpacks to too much; it has all columns."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        source.seek(8 if source.read(6) == b"ARROW1" else 0)  # a file is a stream between two marks
        for index, message in enumerate(pyarrow.ipc.MessageReader.open_stream(source)):
            if message.type in ("record batch", "dictionary"):
                label = f"{name}, batch {index}"
                try:
                    _check_unpacked(label, _unpacked(message), len(message.body))
                except struct.error as error:
                    raise UserError(f"{label} is damaged: {error}.") from None


def _unpacked(message: Any) -> int:
    """Return the bytes of all buffers of an Arrow message, if they are compressed.

    They are read from the message's own layout (Arrow's Message.fbs): pyarrow gives them only
    after everything is unpacked.
    """
    head, body = memoryview(message.metadata), memoryview(message.body)

    def below(table: int, slot: int) -> int:
        """Return the offset of a field of a flatbuffers table, 0 for a field that is not set."""
        layout = table - struct.unpack_from("<i", head, table)[0]
        if 4 + 2 * slot >= struct.unpack_from("<H", head, layout)[0]:
            return 0
        offset = struct.unpack_from("<H", head, layout + 4 + 2 * slot)[0]
        place = table + offset
        return int(place + struct.unpack_from("<I", head, place)[0]) if offset else 0

    batch = below(struct.unpack_from("<I", head, 0)[0], 2)
    if message.type == "dictionary":
        batch = below(batch, 1)
    if not below(batch, 3):
        return 0
    buffers = below(batch, 2)
    (count,) = struct.unpack_from("<I", head, buffers)
    places = struct.iter_unpack("<qq", head[buffers + 4 : buffers + 4 + 16 * count])
    # Each begins with its unpacked size, -1 where it is not compressed.
    return sum(max(0, struct.unpack_from("<q", body, at)[0]) for at, size in places if size >= 8)


def _batches(batches: Iterable[Any], name: str, field: str) -> Iterator[tuple[str, Any]]:
    index = 0
    for batch in batches:
        for row in range(batch.num_rows):
            label = f"{name}[{index}]"
            yield label, record_of(batch.slice(row, 1), field, label)
            index += 1


def record_of(row: Any, field: str, label: str) -> dict[str, Any]:
    """Return the field of an Arrow row, or all names; raise UserError for too large a row."""
    import pyarrow

    if field not in row.schema.names:
        return dict.fromkeys(row.schema.names)
    cell = row.column(field)
    if pyarrow.types.is_dictionary(cell.type):  # it has the bytes of all rows
        cell = cell.cast(cell.type.value_type)
    if cell.nbytes > GIANT:
        raise UserError(giant(label))
    return {field: cell[0].as_py()}


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


SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})(.*)")  # one of the files of a split
DEFAULT = "test"  # split
BUFFER = 100  # rows in memory from which a streamed set is drawn; its shards have any order


@dataclass(frozen=True)
class Rows:
    """The rows of a data set to read; ``some`` means that not all will be read."""

    name: str
    split: str | None
    config: str | None
    revision: str | None
    field: str
    seed: int | None
    some: bool


def is_saved(path: Path) -> bool:
    """Return whether a folder was written by ``save_to_disk``."""
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def read_set(rows: Rows, longest: int | None) -> Iterator[RawDocument]:
    """Yield the documents of one split, streamed where only some of them are needed.

    Raises UserError where the library cannot open or parse it, and for a row without the field.
    """
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    short = Path(rows.name).name
    split = rows.split or DEFAULT
    try:
        for index, row in _numbered(rows, split):
            label = short if index is None else f"{short}[{index}]"
            text = text_of(row, rows.field, label, longest)
            # A drawn stream does not give the numbers of its rows.
            mark = "" if index is not None else f"#{sha256((text or '').encode()).hexdigest()[:8]}"
            yield f"{label}{mark}", text
    except UserError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        DatasetGenerationError,
    ) as error:
        # The library's message on a broken file is only in the cause.
        why = refusal(error, rows.name, "data set") or reason(error.__cause__ or error)
        if isinstance(error, DatasetNotFoundError) and "gated" in why:
            why = gated(rows.name, "data set")
        raise UserError(
            f"{_not_here(rows)}data set {rows.name} (split {split}) cannot be read: {why}"
        ) from error


def _not_here(rows: Rows) -> str:
    """Return what to say of a name that may be meant as a file's: nothing is there."""
    there = Path(rows.name).exists()
    return "" if there else f"there is no file or folder {rows.name}, and "


def _numbered(rows: Rows, split: str) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield (number, row) in file order or drawn; a drawn stream gives no numbers."""
    found: Any = _open_set(rows, split)
    if hasattr(found, "select"):
        order = list(range(len(found)))
        if rows.seed is not None:
            Random(rows.seed).shuffle(order)
        table, short = found.with_format("arrow"), Path(rows.name).name
        for index in order:
            yield index, record_of(table[index], rows.field, f"{short}[{index}]")
    elif rows.seed is None:
        yield from enumerate(found)
    else:
        shuffled = found.shuffle(seed=rows.seed, buffer_size=BUFFER)
        yield from ((None, row) for row in shuffled)


def _open_set(rows: Rows, split: str) -> Iterable[dict[str, Any]]:
    import datasets

    _check_place(rows)
    if not is_saved(Path(rows.name)):
        options = {"name": rows.config, "split": split, "streaming": rows.some}
        if Path(rows.name).exists():
            return datasets.load_dataset(rows.name, **options)  # type: ignore[no-any-return]
        if constants.HF_HUB_OFFLINE:
            return datasets.load_dataset(_downloaded(rows), **options)  # type: ignore[no-any-return]
        options |= {} if rows.some else _of_split(rows, split)
        return datasets.load_dataset(  # type: ignore[no-any-return]
            rows.name, revision=rows.revision, **options
        )
    for file in sorted(Path(rows.name).rglob("*.arrow")):
        check_batches(file, f"{Path(rows.name).name}/{file.name}")
    found: Any = datasets.load_from_disk(rows.name)
    if not isinstance(found, datasets.DatasetDict):
        if rows.split is not None:
            raise UserError(
                f"--docs {rows.name} is one data set without splits; leave split={split} out."
            )
        return found  # type: ignore[no-any-return]
    if split not in found:
        raise UserError(f"--docs {rows.name} has no split {split!r}; {nearest(split, found)}.")
    return found[split]  # type: ignore[no-any-return]


def _check_place(rows: Rows) -> None:
    """Raise UserError for an option that a folder does not have."""
    path = Path(rows.name)
    config = rows.config if is_saved(path) else None  # a folder like a repository may have some
    for key, value in (("revision", rows.revision), ("config", config)):
        if path.exists() and value is not None:
            raise UserError(
                f"--docs {rows.name} is a folder without a {key}; leave {key}={value} out."
            )


def _of_split(rows: Rows, split: str) -> dict[str, Any]:
    """Return the options that read the files of one split, where the library would load all."""
    import datasets

    builder = datasets.load_dataset_builder(rows.name, name=rows.config, revision=rows.revision)
    files = (builder.config.data_files or {}).get(split, [])
    paths = [file.partition("@")[2].partition("/")[2] for file in files]
    return {"name": None, "data_files": {split: paths}} if all(paths) and paths else {}


def _downloaded(rows: Rows) -> str:
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
    found = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*")}
    for name in sorted(found):
        part = SHARD.fullmatch(name)
        others = (
            [f"{part[1]}-{i:05}-of-{part[2]}{part[3]}" for i in range(int(part[2]))] if part else []
        )
        lacking = [other for other in others if other not in found]
        if lacking:
            raise UserError(
                f"the hub's cache has only some files of data set {rows.name}: no {lacking[0]}."
            )
    return folder
