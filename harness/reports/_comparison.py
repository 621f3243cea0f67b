"""Compare two runs cell by cell, or a run with a published table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder
from ropewalk.harness.reports import _published
from ropewalk.harness.reports._write import save_table
from ropewalk.harness.reports.differences import between, notes
from ropewalk.harness.reports.differences import display as display_differences
from ropewalk.harness.reports.writing.sentences import counted
from ropewalk.harness.reports.writing.tables import as_text
from ropewalk.harness.runs.compatible import MODELS, differing, reasons
from ropewalk.harness.runs.frame import called, make_frame
from ropewalk.harness.runs.provenance import machines
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.cells import cells
from ropewalk.harness.stats.paired import NO_DIFFERENCE

Place = tuple[str, str, int]
PLACE = ["task", "scaling", "length"]
SURROUNDINGS = ("device", "threads", "python", "commit")
TOLERANCE = 2.0  # percent
VERDICTS = {
    "better": "significantly better in the second",
    "worse": "significantly worse",
    NO_DIFFERENCE: f"with {NO_DIFFERENCE}",
    "same": "equal in every sample",
    "not compared": "not compared (too few documents or trials in common)",
}


@dataclass(frozen=True)
class Comparison:
    """The second of two runs less the first.

    Attributes:
        table: one row per cell that both have, with its paired difference.
        display: the same for people, by title.
        text: what is only in one run, what else differs, and what the marks mean.
        files: what was written.
    """

    table: pd.DataFrame
    display: Mapping[str, pd.DataFrame]
    text: tuple[str, ...]
    files: tuple[Path, ...]

    JSON: ClassVar[tuple[str, ...]] = ("table", "text", "files")

    def __str__(self) -> str:
        lines = []
        for title, table in self.display.items():
            lines += [title, as_text(table), ""]
        return "\n".join([*lines, *self.text, *map(str, self.files)])


@dataclass(frozen=True)
class PublishedComparison(Comparison):
    """A run beside the published table of a name: one row per value, and sentences."""

    published: str

    JSON = ("published", *Comparison.JSON)

    @property
    def reproduced(self) -> bool:
        """Return whether every value is within the tolerance."""
        return not (self.table["verdict"] == "outside").any()

    @property
    def status(self) -> int:
        """The exit status of the command: 1 where a value is outside the tolerance."""
        return int(not self.reproduced)


def two_runs(run: Path, other: Path, tasks: Sequence[str], folder: Path | None) -> Comparison:
    if run.resolve() == other.resolve():
        raise UserError(f"{run} was given twice; name two runs.")
    records = {one: read_run(one) for one in (run, other)}
    differs = differing(records[run], records[other])
    for aspect in differs:
        if aspect != MODELS:  # to compare other weights under the same name may be the purpose
            raise UserError(
                f"{run} and {other} are not comparable: they have different {aspect}. Name runs of"
                " the same tasks and options, --seed and --docs."
            )
    names = [called(one, records) for one in records]
    parts = [
        make_frame([one], tasks).assign(model=name)
        for one, name in zip(records, names, strict=True)
    ]
    table = between(pd.concat(parts, ignore_index=True))
    if table.empty:
        raise UserError(
            f"{run} and {other} have no cell in common: no task, scaling and length at which both "
            "have a score of the same requests."
        )
    text = [_verdicts(table), *_not_compared(parts, names, table)]
    text += [f"{one}." for one in reasons(records)]
    text += [f"Differs: {one}." for one in sorted(_surroundings(run, other))]
    text += notes(table)
    display = display_differences(table)
    return Comparison(table, display, tuple(text), _saved(table, display, text, folder, "compare"))


def _surroundings(run: Path, other: Path) -> Iterator[str]:
    """Yield what else differs between the last machines: packages, device, commit."""
    last = (machines(read_run(place)["sessions"][-1])[0] for place in (run, other))
    was, now = (
        {name: one.get(name) for name in SURROUNDINGS} | dict(one.get("versions") or {})
        for one in last
    )
    for name in was.keys() & now.keys():
        if None not in (was[name], now[name]) and was[name] != now[name]:
            yield f"{name}: {now[name]} (was {was[name]})"


def _saved(
    table: pd.DataFrame, display: Any, text: Sequence[str], folder: Path | None, name: str
) -> tuple[Path, ...]:
    """Write a comparison into a folder, where one is named, and return the files."""
    if folder is None:
        return ()
    make_folder(folder)
    return tuple(save_table(table, [(display, text)], folder / name))


def _verdicts(table: pd.DataFrame) -> str:
    """Return how many cells are better and worse."""
    counts = table["verdict"].value_counts()
    parts = [f"{counts[verdict]} {text}" for verdict, text in VERDICTS.items() if verdict in counts]
    return f"{counted(len(table), 'cells')} in both runs: {', '.join(parts)}."


def _not_compared(
    parts: Sequence[pd.DataFrame], names: Sequence[str], table: pd.DataFrame
) -> list[str]:
    """Return sentences on the cells of only one run, without a score, or of other requests."""
    every = [_cells(part) for part in parts]
    scored = [_cells(part[part["score"].notna()]) for part in parts]
    frequencies = [part.drop_duplicates(PLACE).set_index(PLACE)["frequencies"] for part in parts]
    compared = _cells(table)
    both = [place for place in scored[0] if place in scored[1]]
    groups = {
        f"Only in {names[0]}": [place for place in every[0] if place not in every[1]],
        f"Only in {names[1]}": [place for place in every[1] if place not in every[0]],
    }
    for name, own, of in zip(names, every, scored, strict=True):
        groups[f"Without a score in {name}"] = [
            place for place in own if place in every[0] and place in every[1] and place not in of
        ]
    groups["Not compared, because the requests differ"] = [
        place for place in both if place not in compared
    ]
    groups["Measured with other frequencies under the same name"] = [
        place for place in compared if frequencies[0][place] != frequencies[1][place]
    ]
    return [f"{title}: {_named(places)}." for title, places in groups.items() if places]


def _cells(frame: pd.DataFrame) -> dict[Place, None]:
    """Return the cells of a frame, in their order."""
    return dict.fromkeys(frame[PLACE].itertuples(index=False, name=None))


def _named(places: Sequence[Place]) -> str:
    """Return "perplexity, yarn at 512 and 1024 tokens; …"."""
    lengths: dict[tuple[str, str], list[str]] = {}
    for task, scaling, length in places:
        lengths.setdefault((task, scaling), []).append(str(length))
    return "; ".join(
        f"{task}, {scaling} at {', '.join(own)} tokens" for (task, scaling), own in lengths.items()
    )


def with_table(
    run: Path, tasks: Sequence[str], folder: Path | None, **options: Any
) -> PublishedComparison:
    tolerance = TOLERANCE if options["tolerance"] is None else options["tolerance"]
    if tolerance < 0:
        raise UserError(f"--tolerance must be 0 or more percent, got {tolerance:g}.")
    record = read_run(run)
    label = record["model"]["name"]
    name = options["published"] or record.get("asked", {}).get("published")
    if name is None:
        raise UserError(
            f"{run} is compared with a second run, or with a table; name one with --published."
        )
    rows = _published.rows_of(name, options["model"], options["tuned"], label)
    labels, differs = _published.tasks_of(rows, record)
    if differs and not options["mixed"]:
        raise UserError(
            f"{run} is not comparable with {name}: {'; '.join(differs)}. With --mixed it is "
            "compared all the same."
        )
    scores = cells(make_frame([run], tasks))
    scores = scores[scores["task"].isin(labels)]
    table = _published.match_values(rows, scores, tolerance / 100)
    text = _published.summary(table, rows, label)
    text += [f"Not comparable: {reason}." for reason in differs]
    display = {f"{label} beside {name}": _published.display(table)}
    files = _saved(table, display, text, folder, f"compare-{name}")
    return PublishedComparison(table, display, tuple(text), files, name)
