"""Read published tables, value by value with their sources, from ``published.csv`` here.

A row is one value of one table. Its columns:

==============  ==================================================================================
table           the short name of the table
source          the paper, and the table in it
model, data     as the paper names them; a checkpoint that it publishes by the hub's name
protocol        overlapping, sliding or prefix (``tasks/perplexity.py``), ruler, or l-eval, which no
                task here measures
stride          tokens between two windows of overlapping or sliding; empty for other protocols
scaling         the method as the paper names it
method          its name for ``--scaling``; empty where no method here has the same formula
tuned           "no" for a method without training, else how the checkpoint was trained
trained_length  tokens in a window of pretraining; empty where the checkpoint was made longer
length          tokens
metric          perplexity, or ruler_mean_score or l_eval_mean_score (percent)
relation        "=", or ">" where the paper only says that the value is larger
value           the number as printed
==============  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.names import nearest
from ropewalk.harness.plugins import load, names

FILE = Path(__file__).with_name("published.csv")


def read_tables() -> pd.DataFrame:
    """Return all values of all tables; texts are empty where nothing is known."""
    counts = ("trained_length", "stride")
    frame = pd.read_csv(FILE, dtype=dict.fromkeys((*counts, "method"), str), keep_default_na=False)
    return frame.assign(**{name: pd.to_numeric(frame[name]).astype("Int64") for name in counts})


def read_table(name: str) -> pd.DataFrame:
    """Return one table; raise UserError for an unknown name."""
    frame = read_tables()
    known = list(frame["table"].unique())
    if name not in known:
        raise UserError(
            f"no published table is called {reason(repr(name))}; {nearest(name, known)}."
        )
    return frame[frame["table"] == name].reset_index(drop=True)


UNTUNED = ("no", "as published")
NOT_MEASURED = "not measured"


def rows_of(
    table: pd.DataFrame, model: str | None, tuned: str | None, measured_model: str
) -> pd.DataFrame:
    """Choose the rows of one model and one kind of training.

    The model is the given one, the only one, or the one with the run's name. Without ``tuned`` the
    rows are those of models without further training. Raises UserError with the choices.
    """
    models = list(table["model"].unique())
    plain = {_plain(name): name for name in models}
    name = model or (models[0] if len(models) == 1 else plain.get(_plain(measured_model)))
    if name not in models:
        hint = nearest(model or measured_model, models)
        raise UserError(
            f"the table has no model {name or measured_model!r}: choose by --model; {hint}."
        )
    rows = table[table["model"] == name]
    kinds = list(rows["tuned"].unique())
    if tuned is not None and tuned not in kinds:
        raise UserError(
            f"the table has no rows of {name} tuned {tuned!r}; {nearest(tuned, kinds)}."
        )
    chosen = rows[rows["tuned"] == tuned] if tuned else rows[rows["tuned"].isin(UNTUNED)]
    return rows if chosen.empty else chosen


def _plain(name: str) -> str:
    """Return a model's name in lower case, without its owner and the suffixes of hubs."""
    short = name.rpartition("/")[2].lower()
    return "".join(sign for sign in short.removesuffix("-hf") if sign.isalnum())


def unlike(rows: pd.DataFrame, record: Mapping[str, Any]) -> list[str]:
    """Return the differences between the settings of the run and of the table, in words."""
    first = rows.iloc[0]
    reasons = []
    metrics = {task["metric"] for task in record["tasks"].values()}
    if first["metric"] not in metrics:
        reasons.append(f"it is of {first['metric']}, the run of {', '.join(sorted(metrics))}")
    elif not tasks_of(rows, record):
        stride = "" if pd.isna(first["stride"]) else f",stride={first['stride']}"
        reasons.append(
            f"it was measured with protocol={first['protocol']}{stride}, the run with "
            f"{', '.join(sorted(record['tasks']))}"
        )
    trained = record["model"]["trained_length"]
    if pd.notna(first["trained_length"]) and int(first["trained_length"]) != trained:
        reasons.append(
            f"its model was trained at {first['trained_length']} tokens, this at {trained}"
        )
    return reasons


def tasks_of(rows: pd.DataFrame, record: Mapping[str, Any]) -> list[str]:
    """Return the tasks of a run with the protocol of the table, and its stride."""
    first = rows.iloc[0]
    wanted = {name: first[name] for name in ("protocol", "stride") if pd.notna(first[name])}
    return [
        label
        for label, task in record["tasks"].items()
        if task["metric"] == first["metric"]
        and all(task["options"].get(name) == value for name, value in wanted.items())
    ]


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
    values = []
    measured = [_method(label) for label in cells["scaling"]]
    for value in rows.to_dict("records"):
        wanted = _method(value["method"] or value["scaling"])
        alike = cells.loc[[method == wanted for method in measured]]
        known = alike[(alike["length"] == value["length"]) & alike["score"].notna()]
        score = float(known["score"].iloc[0]) if len(known) else None
        rest = {name: known[name].iloc[0] if len(known) else None for name in ("low", "high", "n")}
        over = value["relation"] == ">"
        published = float(value["value"])
        row = {
            "scaling": value["scaling"],
            "method": value["method"] or None,
            "length": value["length"],
            "published": f"{'> ' * over}{published:g}",
            "measured": score,
            **rest,
            "difference": None if score is None or over else score / published - 1,
            "verdict": _verdict(score, published, tolerance, over=over),
        }
        values.append(row)
    table = pd.DataFrame(values)
    if (table["verdict"] == NOT_MEASURED).all():
        named = sorted({text for text in (*rows["method"], *rows["scaling"]) if text})
        lengths = ", ".join(map(str, sorted(rows["length"].unique())))
        raise UserError(
            "no value of the table was measured in this run: its values need a scaling of "
            f"{', '.join(named)} at a length of {lengths}."
        )
    return table


@cache
def _method(label: str) -> tuple[str, Mapping[str, Any] | None]:
    """Return the method of a label and all its options, set or not; of no built-in the label."""
    name = label.partition(":")[0]
    with suppress(UserError):  # options that cannot be read here, as of a file
        if name in names("method"):
            return name, load("method", label).options
    return label, None


def _verdict(score: float | None, published: float, tolerance: float, *, over: bool) -> str:
    if score is None:
        return NOT_MEASURED
    if over:
        return "within" if score > published * (1 - tolerance) else "outside"
    return "within" if abs(score - published) <= tolerance * abs(published) else "outside"


def summarize(
    table: pd.DataFrame, rows: pd.DataFrame, cells: pd.DataFrame, tolerance: float, model: str
) -> list[str]:
    """Return how many values agree, which differs most, what is partial, and another model."""
    counts = table["verdict"].value_counts()
    first = rows.iloc[0]
    text = (
        f"{counts.get('within', 0)} of {len(table)} values of {first['source']} ({first['model']}, "
        f"{first['data']}) are within {100 * tolerance:g} %, {counts.get('outside', 0)} outside, "
        f"{counts.get(NOT_MEASURED, 0)} not measured"
    )
    known = [row for row in table.to_dict("records") if pd.notna(row["difference"])]
    if known:
        worst = max(known, key=lambda row: abs(row["difference"]))
        text += (
            f"; furthest off: {worst['scaling']} at {worst['length']} tokens, "
            f"{worst['measured']:.4g} for {worst['published']} ({100 * worst['difference']:+.1f} %)"
        )
    alike = _plain(model) == _plain(first["model"])
    other = [] if alike else [f"The run is of {model}, not of {first['model']}."]
    some = cells[cells["score"].notna() & (cells["status"] != "ok")]
    named = [
        f"{row['scaling']} at {row['length']} tokens ({row['status']})"
        for row in some.to_dict("records")
    ]
    partial = [f"Measured in part: {'; '.join(named)}."] if named else []
    return [f"{text}.", *other, *partial]


def display_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison as texts for people."""
    rows = []
    for row in table.to_dict("records"):
        measured = "" if pd.isna(row["measured"]) else f"{row['measured']:.4g}"
        if measured and pd.notna(row["low"]):
            measured += f" [{row['low']:.4g}, {row['high']:.4g}]"
        less = "" if pd.isna(row["difference"]) else f"{100 * row['difference']:+.1f} %"
        texts = {"measured [95 %]": measured, "difference": less, "verdict": row["verdict"]}
        known = {name: str(row[name]) for name in ("scaling", "length", "published")}
        rows.append(known | texts)
    return pd.DataFrame(rows)
