"""The table as Markdown and CSV: each row with the run that measured it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.setting import Row


@dataclass(frozen=True)
class Measured:
    """What rows of one run share: the day, the machine with its versions, and its speed then."""

    date: str
    machine: str
    speed: str


Line = tuple[Row, Measured]


def markdown(lines: Sequence[Line]) -> str:
    """Return the page: what each run was measured on, and a line a row with its run's number."""
    runs = sorted(dict.fromkeys(run for _, run in lines), key=lambda run: run.date)
    number = {run: str(index) for index, run in enumerate(runs, 1)}
    page = [
        "# What the engine saves",
        "",
        "Made by `scripts/bench`: not to be edited. Each ratio is of the usual way over the",
        "engine's, both in one process, in turns, on one thread, by CPU time (on a GPU, of a",
        "wall); median, and least and greatest of the repeats. What is said to be equal was",
        "compared in the same run. The last column is the run that measured the row:",
        "",
        *(f"{n}. {run.date}, {run.machine}; {run.speed}" for run, n in number.items()),
        "",
        "| | what | median | spread | bar | met | equal | run |",
        "|---|---|---:|---:|---:|---|---|---:|",
        *(f"{line(row)} {number[run]} |" for row, run in lines),
    ]
    return "\n".join(page) + "\n"


def line(row: Row) -> str:
    """Return a row of the Markdown table, without its run."""

    def told(value: float) -> str:
        return f"{value:.3g}{'' if row.unit in ('', 'x', '%') else ' '}{row.unit}"

    spread = "" if row.low == row.high else f"{row.low:.3g} – {row.high:.3g}"
    bar = "" if row.bar is None else f"{'≥' if row.above else '≤'} {told(row.bar)}"
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return (
        f"| {row.name} | {row.what} | {told(row.value)} | {spread} | {bar} | {met} | {row.equal} |"
    )


def read(file: Path) -> list[Line]:
    """Return the rows of earlier runs; none where there was none."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as opened:
        return [_line(told) for told in csv.DictReader(opened)]


def _line(told: dict[str, str]) -> Line:
    value, low, high = (float(told[name]) for name in ("value", "low", "high"))
    bar, above = float(told["bar"]) if told["bar"] else None, told["above"] == "True"
    named = told["name"], told["what"]
    row = Row(*named, value, low, high, told["unit"], bar, above, told["equal"])
    return row, Measured(told["date"], told["machine"], told["speed"])


def write(rows: Sequence[Row], run: Measured, folder: Path, name: str) -> list[Path]:
    """Write the page and the numbers; rows of other names stay. Return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.md", folder / f"{name}.csv"]
    names = {row.name for row in rows}
    kept = [(row, then) for row, then in read(files[1]) if row.name not in names]
    lines = sorted([*((row, run) for row in rows), *kept], key=lambda found: found[0].name)
    save(lines, files)
    return files


def save(lines: Sequence[Line], files: Sequence[Path]) -> None:
    """Write rows and their runs into the page and the file of numbers."""
    files[0].write_text(markdown(lines), encoding="utf-8")
    told = [{**asdict(row), "met": row.met, **asdict(run)} for row, run in lines]
    with files[1].open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*told[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(told)
