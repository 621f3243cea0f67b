"""Compare two runs cell by cell, or a run with a published table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder
from ropewalk.harness.reports import _published
from ropewalk.harness.reports._text import as_text, counted
from ropewalk.harness.reports._write import save, table_files
from ropewalk.harness.reports.differences import between, notes
from ropewalk.harness.reports.differences import display as display_differences
from ropewalk.harness.runs.compatible import MODELS, differing, reasons
from ropewalk.harness.runs.frame import called, make_frame
from ropewalk.harness.runs.provenance import machines
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.cells import cell_scores
from ropewalk.harness.stats.paired import NO_DIFFERENCE

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
    """The second of two runs less the first, or a run beside a published table.

    Attributes:
        table: one row per cell that both have, with its paired difference; one row per value of a
            published table.
        display: the same for people, by title.
        text: what is only in one run, what else differs, and what the marks mean.
        files: what was written.
        published: the name of the published table.
    """

    table: pd.DataFrame
    display: Mapping[str, pd.DataFrame]
    text: Sequence[str]
    files: Sequence[Path]
    published: str | None = None

    JSON: ClassVar[tuple[str, ...]] = ("published", "table", "text", "files")

    def __str__(self) -> str:
        lines = []
        for title, table in self.display.items():
            lines += [title, as_text(table), ""]
        return "\n".join([*lines, *self.text, *map(str, self.files)])

    @property
    def reproduced(self) -> bool:
        """Return whether no value is outside the tolerance."""
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
    counts = table["verdict"].value_counts()
    verdicts = (f"{counts[name]} {text}" for name, text in VERDICTS.items() if name in counts)
    text = [f"{counted(len(table), 'cells')} in both runs: {', '.join(verdicts)}."]
    models = [record["model"] for record in records.values()]
    if sum(bool(model.get("served")) for model in models) == 1:
        text += _explained(parts, models)
    text += _not_compared(parts, names, table)
    text += [f"{one}." for one in reasons(records)]
    text += [f"Differs: {one}." for one in sorted(_surroundings(run, other))]
    text += notes(table)
    display = display_differences(table)
    return Comparison(table, display, text, _saved(table, display, text, folder, "compare"))


def _explained(parts: Sequence[pd.DataFrame], models: Sequence[Any]) -> Iterator[str]:
    """Say which method's losses, of the weights, are those of each method of a served run."""
    from ropewalk.harness.sweep.identity import CLOSE, OTHER_CLOSE  # with torch

    served = int(bool(models[1].get("served")))
    name, dtype = models[served]["served"], models[served]["dtype"]
    known, close = _losses(parts[1 - served]), CLOSE.get(dtype, OTHER_CLOSE)
    for label, losses in _losses(parts[served]).items():
        differences = {
            method: float(np.mean(np.abs(np.concatenate([losses[q] - own[q] for q in both]))))
            for method, own in known.items()
            if (both := sorted(own.keys() & losses.keys()))
        }
        if label not in differences:
            continue
        nearest = min(differences, key=lambda method: (differences[method], method != label))
        text = (
            f"{name}, {label}: its losses differ from those of the weights by "
            f"{differences[label]:.2g} nats per token on average"
        )
        if differences[nearest] > close:
            yield f"{text}, which no method of the other run explains."
        elif nearest == label:
            yield f"{text}, which is rounding."
        else:
            yield f"{text}; they match those of {nearest} ({differences[nearest]:.2g} nats)."


def _losses(part: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return by method the losses of every request, by its digest."""
    found: dict[str, dict[str, Any]] = {}
    for row in part[part["status"] == "ok"].to_dict("records"):
        if isinstance(row.get("losses"), Sequence):
            by = found.setdefault(row["scaling"], {})
            by[f"{row['task']} {row['length']} {row['question']}"] = np.array(row["losses"])
    return found


def _surroundings(run: Path, other: Path) -> Iterator[str]:
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
) -> list[Path]:
    if folder is None:
        return []
    make_folder(folder)
    return save(table_files(table, display, text), folder / name)


def _not_compared(
    parts: Sequence[pd.DataFrame], names: Sequence[str], table: pd.DataFrame
) -> Iterator[str]:
    """Yield a sentence on the cells of only one run, without a score, or of other requests."""
    first, second = (
        {
            place: (bool(rows["score"].notna().any()), rows["frequencies"].iloc[0])
            for place, rows in part.groupby(PLACE, sort=False)
        }
        for part in parts
    )
    compared = dict.fromkeys(table[PLACE].itertuples(index=False, name=None))
    both = [place for place in first if place in second]
    groups = {
        f"Only in {names[0]}": [place for place in first if place not in second],
        f"Only in {names[1]}": [place for place in second if place not in first],
        f"Without a score in {names[0]}": [place for place in both if not first[place][0]],
        f"Without a score in {names[1]}": [place for place in both if not second[place][0]],
        "Not compared, because the requests differ": [
            p for p in both if first[p][0] and second[p][0] and p not in compared
        ],
        "Measured with other frequencies under the same name": [
            place for place in compared if first[place][1] != second[place][1]
        ],
    }
    for title, places in groups.items():
        lengths: dict[tuple[str, str], list[str]] = {}
        for task, scaling, length in places:
            lengths.setdefault((task, scaling), []).append(str(length))
        cells = [f"{', '.join(k)} at {', '.join(v)} tokens" for k, v in lengths.items()]
        if cells:
            yield f"{title}: {'; '.join(cells)}."


def with_table(run: Path, tasks: Sequence[str], folder: Path | None, **options: Any) -> Comparison:
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
    scores = cell_scores(make_frame([run], tasks))
    scores = scores[scores["task"].isin(labels)]
    table = _published.match_values(rows, scores, tolerance / 100)
    text = _published.summary(table, rows, label)
    text += [f"Not comparable: {reason}." for reason in differs]
    display = {f"{label} beside {name}": _published.display(table)}
    files = _saved(table, display, text, folder, f"compare-{name}")
    return Comparison(table, display, text, files, name)
