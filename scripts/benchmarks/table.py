"""The table as Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.setting import Row


def markdown(rows: Sequence[Row], told: Sequence[str]) -> str:
    """Return the page: what it was measured on, and a line a row."""
    lines = [
        "# What the engine saves",
        "",
        "Made by `scripts/bench`: not to be edited. Each ratio is of the usual way over the",
        "engine's, both in one process, in turns, on one thread, by CPU time; median, and least",
        "and greatest of the repeats. Results are asserted equal in the same run.",
        "",
        *(f"- {line}" for line in told),
        "",
        "| | what | median | spread | bar | met | equal |",
        "|---|---|---:|---:|---:|---|---|",
        *(line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    """Return a row of the Markdown table."""

    def told(value: float) -> str:
        return f"{value:.3g}{'' if row.unit in ('', 'x', '%') else ' '}{row.unit}"

    spread = "" if row.low == row.high else f"{row.low:.3g} – {row.high:.3g}"
    bar = "" if row.bar is None else f"{'≥' if row.above else '≤'} {told(row.bar)}"
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return (
        f"| {row.name} | {row.what} | {told(row.value)} | {spread} | {bar} | {met} | {row.equal} |"
    )


def read(file: Path) -> list[Row]:
    """Return the rows of an earlier run; none where there was none."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as opened:
        return [_row(told) for told in csv.DictReader(opened)]


def _row(told: dict[str, str]) -> Row:
    value, low, high = (float(told[name]) for name in ("value", "low", "high"))
    bar, above = float(told["bar"]) if told["bar"] else None, told["above"] == "True"
    named = told["name"], told["what"]
    return Row(*named, value, low, high, told["unit"], bar, above, told["equal"])


def write(rows: Sequence[Row], told: Sequence[str], folder: Path, name: str) -> list[Path]:
    """Write the page and the numbers; rows of other names stay from before. Return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.md", folder / f"{name}.csv"]
    names = {row.name for row in rows}
    kept = [row for row in read(files[1]) if row.name not in names]
    rows = sorted([*rows, *kept], key=lambda row: row.name)
    files[0].write_text(markdown(rows, told), encoding="utf-8")
    with files[1].open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*asdict(rows[0]), "met"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**asdict(row), "met": row.met} for row in rows)
    return files
