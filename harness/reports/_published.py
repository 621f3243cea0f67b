"""Published tables, value by value with their sources (``published.csv``), beside a run.

A row is one value of one table. ``model``, ``data`` and ``scaling`` are as the paper names them;
``method`` is the name of the same formula for ``--scaling``, if there is one. ``protocol`` is
overlapping, sliding or prefix (``tasks/perplexity.py``), ruler or l-eval; ``stride`` is the number
of tokens between two windows. ``tuned`` is "no" for a method without training, else how the
checkpoint was trained; ``trained_length`` is empty where the checkpoint was made longer.
``relation`` is ">" where the paper only says that the value is larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError, nearest
from ropewalk.harness.plugins import load, names
from ropewalk.harness.reports._text import signed, text
from ropewalk.harness.stats.cells import records

UNTUNED = ("no", "as published")
NOT_MEASURED = "not measured"


def read_tables() -> pd.DataFrame:
    """Return all values of all tables; texts are empty where nothing is known."""
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
    wanted = {name: first[name] for name in ("protocol", "stride") if pd.notna(first[name])}
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
    of yours may have. ``difference`` is relative. A published ">" agrees with any larger value.
    Raises UserError if the cells are of several tasks, or none is the table's.
    """
    if cells["task"].nunique() > 1:
        tasks = ", ".join(cells["task"].unique())
        raise UserError(
            f"the run has several tasks to compare ({tasks}); give a run of one of them."
        )
    scored = records(cells.dropna(subset="score"))
    measured = {(_method(cell["scaling"]), cell["length"]): cell for cell in scored}
    values = []
    for value in records(rows):
        cell = measured.get((_method(value["method"] or value["scaling"]), value["length"]), {})
        score, published, over = cell.get("score"), value["value"], value["relation"] == ">"
        difference = None if score is None else score / published - 1
        verdict = NOT_MEASURED
        if difference is not None:
            within = difference > -tolerance if over else abs(difference) <= tolerance
            verdict = "within" if within else "outside"
        values.append({
            "scaling": value["scaling"], "method": value["method"] or None,
            "length": value["length"], "published": f"{'> ' * over}{published:g}",
            "measured": score, **{name: cell.get(name) for name in ("low", "high", "n", "status")},
            "difference": None if over else difference, "verdict": verdict,
        })  # fmt: skip
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


def summary(table: pd.DataFrame, rows: pd.DataFrame, model: str) -> list[str]:
    """Return how many values agree, and whether the model is another."""
    counts, first = table["verdict"].value_counts(), rows.iloc[0]
    sentences = [
        f"{counts.get('within', 0)} of {len(table)} values of {first['source']} ({first['model']}, "
        f"{first['data']}) are within the tolerance, {counts.get('outside', 0)} outside, "
        f"{counts.get(NOT_MEASURED, 0)} not measured."
    ]
    if _plain(model) != _plain(first["model"]):
        sentences.append(f"The run is of {model}, not of {first['model']}.")
    return sentences


def display(table: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison as texts for people."""
    shown = [
        {
            **{name: str(row[name]) for name in ("scaling", "length", "published")},
            "measured [95 %]": text({**row, "score": row["measured"], "metric": ""}, 2)
            if row["status"]
            else "",
            "difference": signed(row["difference"]),
            "verdict": row["verdict"],
        }
        for row in records(table)
    ]
    return pd.DataFrame(shown)
