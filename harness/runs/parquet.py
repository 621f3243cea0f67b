"""Keep the runs of a study in one Parquet file, which is read wherever run folders are.

The file has one row per sample. ``facts`` is JSON; ``losses`` are those of a sample's facts in
millionths of a nat, and ``record`` is the run's ``run.json``, in the first row of the run. A path
inside the file, such as ``samples.parquet/served``, names the runs whose names begin with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.files import replacing

TEXTS = ("run", "record", "cell", "question", "task", "frequencies", "unit", "status", "reason")
WHOLE = ("length", "weight", "session")
NUMBERS = ("value", "seconds", "peak_mib")
SCALE = 1_000_000  # losses have six decimals


def write(runs: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]], file: Path) -> None:
    """Write the record and the samples of each run, by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        **dict.fromkeys((*TEXTS, "facts"), pa.string()),
        **dict.fromkeys(WHOLE, pa.int64()),
        **dict.fromkeys(NUMBERS, pa.float64()),
        "shared": pa.bool_(),
        "losses": pa.list_(pa.int32()),
    }
    rows = []
    for name, (record, samples) in runs.items():
        if not samples:
            raise UserError(f"{name} has no samples; leave it out.")
        rows += [{"run": name, **sample, **_facts(sample["facts"])} for sample in samples]
        rows[-len(samples)]["record"] = json.dumps(record, ensure_ascii=False)
    with replacing(file) as new:
        pq.write_table(
            pa.Table.from_pylist(rows, pa.schema(kinds)),
            new,
            compression="zstd",
            compression_level=19,
            use_dictionary=[*(set(TEXTS) - {"record"}), *WHOLE],
            use_byte_stream_split=["losses.list.element"],
            data_page_size=2**26,
            row_group_size=len(rows),
        )


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as JSON, and apart from them losses that have six decimals."""
    losses = facts.get("losses")
    if isinstance(losses, list):
        whole = [round(SCALE * loss) for loss in losses]
        if [number / SCALE for number in whole] == losses and max(whole, default=0) < 2**31:
            rest = {name: fact for name, fact in facts.items() if name != "losses"}
            return {"facts": json.dumps(rest), "losses": whole}
    return {"facts": json.dumps(facts)}


def runs_at(path: Path) -> list[Path]:
    """Return the runs that a path into a Parquet file names; none if it is no such path."""
    file = next((one for one in (path, *path.parents) if one.suffix == ".parquet"), None)
    if file is None or not file.is_file():
        return []
    _, runs = _read(file, file.stat().st_mtime_ns)
    return [run for run in map(file.joinpath, runs) if run == path or path in run.parents]


def record_of(run: Path) -> str:
    """Return the ``run.json`` of a run in a Parquet file."""
    return str(_rows(run)["record"][0])


def samples_of(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of a run in a Parquet file, as ``samples.jsonl`` has them."""
    for row in _rows(run).drop_columns(["run", "record"]).to_pylist():
        facts, losses = json.loads(row["facts"]), row.pop("losses")
        if losses is not None:
            facts["losses"] = [number / SCALE for number in losses]
        known = {name: cell for name, cell in row.items() if cell is not None or name == "value"}
        yield {**known, "facts": facts}


def _rows(run: Path) -> Any:
    file = next(one for one in run.parents if one.suffix == ".parquet")
    table, runs = _read(file, file.stat().st_mtime_ns)
    return table.slice(*runs[run.relative_to(file).as_posix()])


@lru_cache(maxsize=2)
def _read(file: Path, _changed: int) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Return the table of a file and, by run, its first row and number of rows."""
    import pyarrow.parquet as pq

    with foreign(f"{file} cannot be read"):
        table = pq.read_table(file)
        missing = {"run", "record", "facts", "losses"} - set(table.column_names)
        if missing:
            raise ValueError(f"it has no column {', '.join(sorted(missing))}")
        runs, start = {}, 0
        for name, rows in groupby(table["run"].to_pylist()):
            runs[name] = start, len(list(rows))
            start += runs[name][1]
    return table, runs
