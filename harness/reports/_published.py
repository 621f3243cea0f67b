"""Compare a run with a published table: each value of the table beside the measured one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError, nearest
from ropewalk.harness.plugins import load, names
from ropewalk.harness.reports._comparison import Comparison
from ropewalk.harness.reports._text import signed, text
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.cells import cell_scores, records

TOLERANCE = 2.0  # percent
UNTUNED = ("no", "as published")
NOT_MEASURED = "not measured"
MEASURED = ("measured", "low", "high", "n", "status")


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
    about = f"{label} beside {name}"
    comparison = Comparison(about, table, {about: display_values(table)}, text, published=name)
    return comparison.saved(folder, f"compare-{name}")


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
    scored = cells.dropna(subset="score").rename(columns={"score": "measured"})
    scored = scored.assign(same=scored["scaling"].map(_method)).drop_duplicates(["same", "length"])
    given = rows["method"].where(rows["method"] != "", rows["scaling"])
    named = rows[["scaling", "method", "length", "value", "relation"]].assign(
        same=given.map(_method)
    )
    table = named.merge(scored[["same", "length", *MEASURED]], how="left", on=["same", "length"])
    missing = table["measured"].isna()
    if missing.all():
        names = sorted({name for name in (*rows["method"], *rows["scaling"]) if name})
        lengths = ", ".join(map(str, sorted(rows["length"].unique())))
        raise UserError(
            "no value of the table was measured in this run: its values need a scaling of "
            f"{', '.join(names)} at a length of {lengths}."
        )
    value, measured, over = table["value"], table["measured"], table["relation"] == ">"
    difference = (measured / value - 1).where(value != 0, measured)
    within = (difference.abs() <= tolerance).where(~over, difference > -tolerance)
    return table[["scaling", "method", "length"]].assign(
        published=over.map({True: "> ", False: ""}) + value.map("{:g}".format),
        **{name: table[name] for name in MEASURED},
        difference=difference.mask(over),
        verdict=within.map({True: "within", False: "outside"}).mask(missing, NOT_MEASURED),
    )


@cache
def _method(label: str) -> str:
    """Return the method of a label and all its options, set or not; of no built-in the label."""
    name = label.partition(":")[0]
    with suppress(UserError):  # options that cannot be read here, as of a file
        if name in names("method"):
            return f"{name} {load('method', label).options}"
    return label


def display_values(table: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison as texts for people."""
    rows = records(table.assign(score=table["measured"], metric=""))
    shown = table[["scaling", "length", "published"]].astype(str)
    shown["measured [95 %]"] = [text(row, 2) if row["status"] else "" for row in rows]
    return shown.assign(difference=table["difference"].map(signed), verdict=table["verdict"])
