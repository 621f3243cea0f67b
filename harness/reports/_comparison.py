"""Compare two runs cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.reports._text import RenderedTable, counted
from ropewalk.harness.reports._write import save
from ropewalk.harness.reports.cells import differences, notes
from ropewalk.harness.runs.compatible import MODELS, differing, reasons
from ropewalk.harness.runs.frame import called, make_frame
from ropewalk.harness.runs.provenance import machines
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.cells import cell_scores, records
from ropewalk.harness.stats.decision import SAME, against, family
from ropewalk.harness.stats.measure import measure
from ropewalk.harness.stats.paired import ALPHA, NO_DIFFERENCE, holm

PLACE = ["task", "scaling", "length"]
SURROUNDINGS = ("device", "threads", "python", "commit")


@dataclass(frozen=True)
class Comparison(RenderedTable):
    """The second of two runs less the first, or a run beside a published table.

    Attributes:
        table: one row per cell that both have, with its paired difference; one row per value of a
            published table.
        notes: what else differs, and what the marks mean.
        files: what was written.
        published: the name of the published table.
    """

    files: Sequence[Path] = ()
    published: str | None = None

    JSON: ClassVar[tuple[str, ...]] = ("published", "table", "notes", "files")

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.files)])

    def saved(self, folder: Path | None, stem: str) -> Comparison:
        """Write the tables into a folder, if there is one."""
        if folder is None:
            return self
        files = {f"{stem}.{suffix}": content for suffix, content in self.contents().items()}
        return replace(self, files=save(files, folder))

    @property
    def status(self) -> int:
        """The exit status of the command: 1 where a value is outside the tolerance."""
        return int((self.table["verdict"] == "outside").any())


def two_runs(run: Path, other: Path, tasks: Sequence[str], folder: Path | None) -> Comparison:
    if run.resolve() == other.resolve():
        raise UserError(f"{run} was given twice; name two runs.")
    runs = {one: read_run(one) for one in (run, other)}
    for aspect in differing(*runs.values()):
        if aspect != MODELS:  # to compare other weights under the same name may be the purpose
            raise UserError(
                f"{run} and {other} are not comparable: they have different {aspect}. Name runs of"
                " the same tasks and options, --seed and --docs."
            )
    parts = [make_frame([one], tasks).assign(model=called(one, runs)) for one in runs]
    table = between(*parts)
    if table.empty:
        raise UserError(
            f"{run} and {other} have no cell in common: no task, scaling and length at which both "
            "have a score of the same requests."
        )
    verdicts = [f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items()]
    known = f"{counted(len(table), 'cells')} in both runs: {', '.join(verdicts)}"
    said = [f"{known} (the second less the first)."]
    models = [record["model"] for record in runs.values()]
    if sum(bool(model.get("served")) for model in models) == 1:
        said += _explained(parts, models)
    said += [f"{one}." for one in reasons(runs)]
    was, now = (_surroundings(record) for record in runs.values())
    said += [
        f"Differs: {name}: {now[name]} (was {was[name]})."
        for name in sorted(was.keys() & now.keys())
        if None not in (was[name], now[name]) and was[name] != now[name]
    ]
    said += notes(table)
    display = {**differences(table), **_apart(parts, table)}
    comparison = Comparison("The second run less the first.", table, display, said)
    return comparison.saved(folder, "compare")


def between(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell that two runs have, each a ``model``: the second less the first.

    Cells are compared that have a score and the same requests in both; ``baseline_score`` is that
    of the first run. Cells of equal samples are "same". ``p_all`` is corrected for all methods of a
    task at one length (Holm); methods that are the same measurement in both runs count once.
    """
    before, after = (str(part["model"].iloc[0]) for part in (first, second))
    rows = []
    for _, samples in pd.concat([first, second], ignore_index=True).groupby("task", sort=False):
        how = measure(samples.assign(scaling=samples["model"] + " " + samples["scaling"]))
        for _, here in samples.groupby("length"):
            of_sign = dict[tuple[str, ...], float | None]()  # equal measurements are one
            compared = []
            for _, cell in here.groupby("scaling", sort=False):
                if not _paired(cell):
                    continue
                # The runs as two methods, whatever their frequencies.
                runs = cell.assign(scaling=cell["model"], frequencies=cell["model"])
                pair = family(runs, how)
                row = records(cell_scores(cell[cell["model"] == after]))[0]
                row |= {"unit": how.units, "asked": pair.requested, "relative": how.relative}
                row |= {"failed": len(pair.lost[after]), "baseline_score": pair.score[before].value}
                row |= against(pair, before)[after]
                if row["paired"] and pair.shared[before] == pair.shared[after]:
                    row["verdict"] = SAME
                once = cell.drop_duplicates("model")
                sign = tuple(once["frequencies"].fillna(once["scaling"]))
                of_sign[sign] = row["p"]
                compared.append((sign, row))
            corrected = dict(zip(of_sign, holm([*of_sign.values()]), strict=True))
            for sign, row in compared:
                row["p_all"] = corrected[sign]
                if row["verdict"] in ("better", "worse") and (row["p_all"] or 0) >= ALPHA:
                    row["verdict"] = NO_DIFFERENCE
                rows.append(row)
    return pd.DataFrame(rows)


def _paired(cell: pd.DataFrame) -> bool:
    """Return whether both runs have a score of a cell, and of the same requests."""
    parts = [part for _, part in cell.groupby("model")]
    scored = all(part["score"].notna().any() for part in parts)
    return len(parts) == 2 and scored and set(parts[0]["question"]) == set(parts[1]["question"])


def _apart(parts: Sequence[pd.DataFrame], table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table of the cells that are not compared, or have other frequencies in each run."""
    cells: dict[str, dict[Any, Any]] = {
        str(part["model"].iloc[0]): part.groupby(PLACE, sort=False).first().to_dict("index")
        for part in parts
    }
    compared, rows = set(table[PLACE].itertuples(index=False, name=None)), []
    for place in dict.fromkeys(place for of in cells.values() for place in of):
        known = {name: of[place] for name, of in cells.items() if place in of}
        lost = [name for name, cell in known.items() if pd.isna(cell["score"])]
        if len(known) == 1:
            (absent,) = cells.keys() - known.keys()
            status = f"not in {absent}"
        elif lost:
            status = f"no score in {' and '.join(lost)}"
        elif place not in compared:
            status = "other requests"
        elif len({cell["frequencies"] for cell in known.values()}) > 1:
            status = "compared, with other frequencies under the same name"
        else:
            continue
        rows.append((*place, status))
    if not rows:
        return {}
    apart = pd.DataFrame(rows, columns=[*PLACE, "status"]).astype({"length": str})
    lengths = apart.groupby(["task", "scaling", "status"], sort=False)["length"].agg(", ".join)
    return {"Cells that differ": lengths.reset_index()}


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
        if label in differences:
            nearest = min(differences, key=lambda method: (differences[method], method != label))
            own = f"; from those of {label} it is {differences[label]:.2g}" * (nearest != label)
            yield (
                f"{name}, {label}: its losses are nearest to those of {nearest} of the weights, "
                f"{differences[nearest]:.2g} nats per token apart on average{own}. Up to {close:g} "
                "is rounding."
            )


def _losses(part: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return by method the losses of every request, by its digest."""
    found: dict[str, dict[str, Any]] = {}
    for row in part[part["status"] == "ok"].to_dict("records"):
        if isinstance(row.get("losses"), Sequence):
            by = found.setdefault(row["scaling"], {})
            by[f"{row['task']} {row['length']} {row['question']}"] = np.array(row["losses"])
    return found


def _surroundings(record: Mapping[str, Any]) -> dict[str, Any]:
    last = machines(record["sessions"][-1])[0]
    return {name: last.get(name) for name in SURROUNDINGS} | dict(last.get("versions") or {})
