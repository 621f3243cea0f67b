"""Keep the runs of a study in one Parquet file, which is read wherever run folders are.

The file has one row per sample. ``facts`` is JSON; ``losses`` are those of a sample's facts in
millionths of a nat, and ``record`` is the run's ``run.json``, in the first row of the run. A path
inside the file, such as ``samples.parquet/served``, names the runs whose names begin with it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.files import replacing
from ropewalk.harness.runs.record import Run, SampleRecord

TEXTS = ("run", "record", "cell", "question", "task", "frequencies", "unit", "status", "reason")
WHOLE = ("length", "weight", "session")
NUMBERS = ("value", "seconds", "peak_mib")
SCALE = 1_000_000  # losses have six decimals


def write(runs: Mapping[str, tuple[Run, Sequence[SampleRecord]]], file: Path) -> None:
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
    rows: list[dict[str, Any]] = []
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
    file = _file(path)
    runs = [file / name for name in _runs(file, file.stat().st_mtime_ns)] if file else []
    return [run for run in runs if run == path or path in run.parents]


def record_of(run: Path) -> str:
    """Return the ``run.json`` of a run in a Parquet file."""
    return str(_rows(run)["record"][0])


def samples_of(run: Path) -> Iterator[SampleRecord]:
    """Yield the samples of a run in a Parquet file, as ``samples.jsonl`` has them."""
    for row in _rows(run).drop_columns(["run", "record"]).to_pylist():
        facts, losses = json.loads(row["facts"]), row.pop("losses")
        if losses is not None:
            facts["losses"] = [number / SCALE for number in losses]
        sample = {name: cell for name, cell in row.items() if cell is not None or name == "value"}
        yield cast(SampleRecord, {**sample, "facts": facts})


def _file(path: Path) -> Path | None:
    files = (one for one in (path, *path.parents) if one.suffix == ".parquet")
    return next((file for file in files if file.is_file()), None)


def _rows(run: Path) -> Any:
    file = _file(run)
    assert file is not None  # it is one of ``runs_at``
    return _runs(file, file.stat().st_mtime_ns)[run.relative_to(file).as_posix()]


@lru_cache(maxsize=2)
def _runs(file: Path, _changed: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    with foreign(f"{file} cannot be read"):
        table, start = pq.read_table(file), 0
        runs = {}
        for name, count in Counter(table["run"].to_pylist()).items():
            runs[name] = table.slice(start, count)
            start += count
    return runs
