"""Read rows of Parquet and Arrow files; too large a row is an error before it is copied."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.errors import UserError

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
