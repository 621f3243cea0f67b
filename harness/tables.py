"""Rows of Parquet and Arrow files, of which a giant is refused before it is copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.errors import UserError

LARGEST = 16 * 2**20  # bytes of one document; tokenizing takes some 300 times as many
GIANT = 2 * LARGEST  # bytes of a row that is not even read to its first characters
PAGES = 2**20  # bytes of a column that are read at a time


def giant(label: str) -> str:
    """Say that a row is too long to be looked into."""
    return f"{label} is longer than {GIANT / 2**20:g} MiB; split the document."


def parquet(path: Path, name: str, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a Parquet file with the field alone, page by page."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, buffer_size=PAGES) as file:
        if field not in file.schema_arrow.names:
            yield f"{name}[0]", dict.fromkeys(file.schema_arrow.names)
            return
        yield from _batches(_row_groups(file, name, field), name, field)


def _row_groups(file: Any, name: str, field: str) -> Iterator[Any]:
    """Yield the rows of each group in turn; raise UserError for one that only giants can fill."""
    index = 0
    for group in range(file.num_row_groups):
        told = file.metadata.row_group(group)
        chunks = (told.column(i) for i in range(told.num_columns))
        size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema == field)
        if size > GIANT * told.num_rows:
            raise UserError(giant(f"{name}[{index}]"))
        index += told.num_rows
        yield from file.iter_batches(batch_size=1, row_groups=[group], columns=[field])


def arrow(path: Path, name: str, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of an Arrow file, in either of its two forms, with the field alone."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        try:
            batches: Any = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        yield from _batches(batches, name, field)


def _batches(batches: Iterable[Any], name: str, field: str) -> Iterator[tuple[str, Any]]:
    index = 0
    for batch in batches:
        for row in range(batch.num_rows):
            label = f"{name}[{index}]"
            yield label, record_of(batch.slice(row, 1), field, label)
            index += 1


def record_of(row: Any, field: str, label: str) -> dict[str, Any]:
    """Return the field of an Arrow row, or all names; raise UserError before a giant is copied."""
    import pyarrow

    if field not in row.schema.names:
        return dict.fromkeys(row.schema.names)
    cell = row.column(field)
    if pyarrow.types.is_dictionary(cell.type):  # its bytes are those of all rows
        cell = cell.cast(cell.type.value_type)
    if cell.nbytes > GIANT:
        raise UserError(giant(label))
    return {field: cell[0].as_py()}
