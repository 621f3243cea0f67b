"""Compare two runs cell by cell, or a run with a published table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ropewalk.harness.errors import UserError, nearest
from ropewalk.harness.plugins import load, names
from ropewalk.harness.reports._text import as_text, counted, signed, text
from ropewalk.harness.reports._write import save, table_files
from ropewalk.harness.reports.cells import differences, notes
from ropewalk.harness.runs.compatible import MODELS, differing, reasons
from ropewalk.harness.runs.frame import called, make_frame
from ropewalk.harness.runs.provenance import machines
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.cells import cell_scores, records
from ropewalk.harness.stats.decision import SAME, against, family
from ropewalk.harness.stats.measure import measure
from ropewalk.harness.stats.paired import holm

PLACE = ["task", "scaling", "length"]
SURROUNDINGS = ("device", "threads", "python", "commit")
TOLERANCE = 2.0  # percent
UNTUNED = ("no", "as published")
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Comparison:
    """The second of two runs less the first, or a run beside a published table.

    Attributes:
        table: one row per cell that both have, with its paired difference; one row per value of a
            published table.
        display: the same for people, by title.
        text: what else differs, and what the marks mean.
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
    text = [f"{known} (the second less the first)."]
    models = [record["model"] for record in runs.values()]
    if sum(bool(model.get("served")) for model in models) == 1:
        text += _explained(parts, models)
    text += [f"{one}." for one in reasons(runs)]
    was, now = (_surroundings(record) for record in runs.values())
    text += [
        f"Differs: {name}: {now[name]} (was {was[name]})."
        for name in sorted(was.keys() & now.keys())
        if None not in (was[name], now[name]) and was[name] != now[name]
    ]
    text += notes(table)
    display = {**differences(table), **_apart(parts, table)}
    files = save(table_files(table, display, text), folder / "compare") if folder else []
    return Comparison(table, display, text, files)


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
            cells = [cell for _, cell in here.groupby("scaling", sort=False) if _paired(cell)]
            pairs = [  # the runs as two methods, whatever their frequencies
                family(cell.assign(scaling=cell["model"], frequencies=cell["model"]), how)
                for cell in cells
            ]
            firsts = [cell.drop_duplicates("model") for cell in cells]
            signs = [tuple(one["frequencies"].fillna(one["scaling"])) for one in firsts]
            own = [against(pair, before)[after]["p"] for pair in pairs]
            once = list(dict.fromkeys(zip(signs, own, strict=True)))  # equal measurements
            corrected = dict(zip(once, holm([p for _, p in once]), strict=True))
            for cell, pair, *test in zip(cells, pairs, signs, own, strict=True):
                row = records(cell_scores(cell[cell["model"] == after]))[0]
                row |= {"unit": how.units, "asked": pair.requested, "relative": how.relative}
                row |= {"failed": len(pair.lost[after]), "baseline_score": pair.score[before].score}
                row |= against(pair, before, {after: corrected[*test]})[after]
                if row["paired"] and pair.shared[before] == pair.shared[after]:
                    row["verdict"] = SAME
                rows.append(row)
    return pd.DataFrame(rows)


def _paired(cell: pd.DataFrame) -> bool:
    """Return whether both runs have a score of a cell, and of the same requests."""
    parts = [part for _, part in cell.groupby("model")]
    scored = all(part["score"].notna().any() for part in parts)
    return len(parts) == 2 and scored and set(parts[0]["question"]) == set(parts[1]["question"])


def _apart(parts: Sequence[pd.DataFrame], table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table of the cells that are not compared, or have other frequencies in each run."""
    runs = {
        str(part["model"].iloc[0]): dict(tuple(part.groupby(PLACE, sort=False))) for part in parts
    }
    places = dict.fromkeys(place for cells in runs.values() for place in cells)
    compared, rows = set(table[PLACE].itertuples(index=False, name=None)), []
    for place in places:
        absent = [name for name, cells in runs.items() if place not in cells]
        known = {name: cells[place] for name, cells in runs.items() if place in cells}
        lost = [name for name, cell in known.items() if cell["score"].isna().all()]
        signs = {cell["frequencies"].iloc[0] for cell in known.values()}
        if absent:
            status = f"not in {absent[0]}"
        elif lost:
            status = f"no score in {' and '.join(lost)}"
        elif place not in compared:
            status = "other requests"
        elif len(signs) > 1:
            status = "compared, with other frequencies under the same name"
        else:
            continue
        rows.append((*place, status))
    if not rows:
        return {}
    cells = pd.DataFrame(rows, columns=[*PLACE, "status"]).astype({"length": str})
    lengths = cells.groupby(["task", "scaling", "status"], sort=False)["length"].agg(", ".join)
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
            yield (
                f"{name}, {label}: its losses are nearest to those of {nearest} of the weights, "
                f"{differences[nearest]:.2g} nats per token apart on average; from those of "
                f"{label} it is {differences[label]:.2g}. Up to {close:g} is rounding."
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


def with_table(
    run: Path,
    tasks: Sequence[str],
    folder: Path | None,
    *,
    published: str | None,
    model: str | None,
    tuned: str | None,
    tolerance: float | None,
    mixed: bool,
) -> Comparison:
    tolerance = TOLERANCE if tolerance is None else tolerance
    if tolerance < 0:
        raise UserError(f"--tolerance must be 0 or more percent, got {tolerance:g}.")
    record = read_run(run)
    label, name = record["model"]["name"], published or record.get("asked", {}).get("published")
    if name is None:
        raise UserError(
            f"{run} is compared with a second run, or with a table; name one with --published."
        )
    rows = rows_of(name, model, tuned, label)
    labels, differs = tasks_of(rows, record)
    if differs and not mixed:
        raise UserError(
            f"{run} is not comparable with {name}: {'; '.join(differs)}. With --mixed it is "
            "compared all the same."
        )
    scores = cell_scores(make_frame([run], tasks))
    table = match_values(rows, scores[scores["task"].isin(labels)], tolerance / 100)
    counts, first = table["verdict"].value_counts(), rows.iloc[0]
    text = [
        f"{counts.get('within', 0)} of {len(table)} values of {first['source']} ({first['model']}, "
        f"{first['data']}) are within the tolerance, {counts.get('outside', 0)} outside, "
        f"{counts.get(NOT_MEASURED, 0)} not measured."
    ]
    if _plain(label) != _plain(first["model"]):
        text.append(f"The run is of {label}, not of {first['model']}.")
    text += [f"Not comparable: {reason}." for reason in differs]
    display = {f"{label} beside {name}": display_values(table)}
    files = save(table_files(table, display, text), folder / f"compare-{name}") if folder else []
    return Comparison(table, display, text, files, name)


def read_tables() -> pd.DataFrame:
    """Return all values of all tables; texts are empty where nothing is known.

    A row is one value of one table. ``model``, ``data`` and ``scaling`` are as the paper names
    them; ``method`` is the name of the same formula for ``--scaling``, if there is one.
    ``protocol`` is overlapping, sliding or prefix (``tasks/perplexity.py``), or l-eval; ``stride``
    is the number of tokens between two windows. Recall is a share, also where a paper prints
    percent. ``tuned`` is "no" for a method without training, else how the checkpoint was trained;
    ``trained_length`` is empty where the checkpoint was made longer. ``relation`` is ">" where the
    paper only says that the value is larger.
    """
    counts, file = ("trained_length", "stride"), Path(__file__).with_name("published.csv")
    frame = pd.read_csv(file, dtype=dict.fromkeys((*counts, "method"), str), keep_default_na=False)
    return frame.assign(**{name: pd.to_numeric(frame[name]).astype("Int64") for name in counts})


def table_of(name: str) -> pd.DataFrame:
    """Return the values of one table; raise UserError with the names for an unknown one."""
    return _chosen(read_tables(), "table", name, f"no published table is called {name!r}")


def rows_of(name: str, model: str | None, tuned: str | None, measured_model: str) -> pd.DataFrame:
    """Return the rows of a table for one model and one kind of training.

    The model is the given one, the only one, or the one with the run's name. Without ``tuned`` the
    rows are those of models without further training. Raises UserError with the choices.
    """
    table = table_of(name)
    if model is None:
        models = list(table["model"].unique())
        plain = {_plain(each): each for each in models}
        model = models[0] if len(models) == 1 else plain.get(_plain(measured_model), measured_model)
    rows = _chosen(table, "model", model, f"the table has no --model {model}")
    if tuned is not None:
        return _chosen(rows, "tuned", tuned, f"the table has no {model} with --tuned {tuned!r}")
    untuned = rows[rows["tuned"].isin(UNTUNED)]
    return rows if untuned.empty else untuned


def _chosen(table: pd.DataFrame, column: str, value: str, missing: str) -> pd.DataFrame:
    rows = table[table[column] == value].reset_index(drop=True)
    if rows.empty:
        raise UserError(f"{missing}; {nearest(value, list(table[column].unique()))}.")
    return rows


def _plain(name: str) -> str:
    """Return a model's name in lower case, without its owner and the suffixes of hubs."""
    short = name.rpartition("/")[2].lower()
    return "".join(letter for letter in short.removesuffix("-hf") if letter.isalnum())


def tasks_of(rows: pd.DataFrame, record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the tasks of a run to compare with a table, and how its settings differ, in words.

    Raises UserError if the run has no task with the table's metric.
    """
    first, tasks = rows.iloc[0], record["tasks"]
    wanted = first[["protocol", "stride"]].replace("", None).dropna().to_dict()
    same = [label for label, task in tasks.items() if task["metric"] == first["metric"]]
    if not same:
        raise UserError(f"the table is of {first['metric']}, the run of {', '.join(tasks)}.")
    exact = [label for label in same if wanted.items() <= tasks[label]["options"].items()]
    reasons = []
    if not exact:
        settings = ",".join(f"{name}={value}" for name, value in wanted.items())
        reasons.append(f"the table was measured with {settings}, the run with {', '.join(same)}")
    trained = record["model"]["trained_length"]
    if pd.notna(first["trained_length"]) and first["trained_length"] != trained:
        reasons.append(
            f"the table's model was trained at {first['trained_length']} tokens, this at {trained}"
        )
    return exact or same, reasons


def match_values(rows: pd.DataFrame, cells: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Return one row per published value with the measured one.

    A value matches the cell of the same length whose scaling is the table's ``method``, however its
    options are written. Without a ``method``, the scaling must have the table's own name, as a file
    of yours may have. ``difference`` is relative, that from a published 0 absolute. A published ">"
    agrees with any larger value. Raises UserError if the cells are of several tasks, or none is the
    table's.
    """
    if cells["task"].nunique() > 1:
        tasks = ", ".join(cells["task"].unique())
        raise UserError(
            f"the run has several tasks to compare ({tasks}); give a run of one of them."
        )
    scored = records(cells.dropna(subset="score"))
    measured = {(_method(cell["scaling"]), cell["length"]): cell for cell in scored}
    values = []
    for row in records(rows):
        cell = measured.get((_method(row["method"] or row["scaling"]), row["length"]), {})
        published, over = row["value"], row["relation"] == ">"
        value = {
            "scaling": row["scaling"], "method": row["method"] or None, "length": row["length"],
            "published": f"{'> ' * over}{published:g}", "measured": cell.get("score"),
            **{name: cell.get(name) for name in ("low", "high", "n", "status")},
            "difference": None, "verdict": NOT_MEASURED,
        }  # fmt: skip
        if cell:
            difference = cell["score"] / published - 1 if published else cell["score"]
            within = difference > -tolerance if over else abs(difference) <= tolerance
            value |= {"difference": None if over else difference}
            value |= {"verdict": "within" if within else "outside"}
        values.append(value)
    table = pd.DataFrame(values)
    if (table["verdict"] == NOT_MEASURED).all():
        named = sorted({name for name in (*rows["method"], *rows["scaling"]) if name})
        lengths = ", ".join(map(str, sorted(rows["length"].unique())))
        raise UserError(
            "no value of the table was measured in this run: its values need a scaling of "
            f"{', '.join(named)} at a length of {lengths}."
        )
    return table


@cache
def _method(label: str) -> tuple[str, str]:
    """Return the method of a label and all its options, set or not; of no built-in the label."""
    name = label.partition(":")[0]
    with suppress(UserError):  # options that cannot be read here, as of a file
        if name in names("method"):
            return name, str(load("method", label).options)
    return label, ""


def display_values(table: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison as texts for people."""
    rows = records(table.assign(score=table["measured"], metric=""))
    shown = table[["scaling", "length", "published"]].astype(str)
    shown["measured [95 %]"] = [text(row, 2) if row["status"] else "" for row in rows]
    shown["difference"] = [signed(row["difference"]) for row in rows]
    return shown.assign(verdict=table["verdict"])
