"""The longest length to which each method keeps the model's retrieval or tail perplexity."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ropewalk.harness.reports.writing.tables import heading
from ropewalk.harness.stats.cells import cells, records
from ropewalk.harness.stats.checkpoints import renamed, separated
from ropewalk.harness.stats.decision import FAILED, needed_of, requested_units
from ropewalk.harness.stats.decision import KEPT as KEPT_UNITS
from ropewalk.harness.stats.measure import Measure, Units, difference, measure, units

KEPT = 0.85  # of the model's own score inside the window (NoLiMa, arXiv:2502.05167)
ROUNDING = 1e-12  # 119 of 250 are 85 % of 140, and in floats less
ENDS = ("length", "low", "high")
COUNTS = (
    "A length past the window counts if the score is kept at all lengths from there up to it; "
    "the cost inside the window does not."
)
NONE = (
    "no length can be judged: it needs scores above 0 inside the trained window, of retrieval or "
    "of perplexity with protocol=tail; add a length of 1x and the scaling none to the sweep"
)


def make(frame: pd.DataFrame, *, kept: float = KEPT) -> pd.DataFrame:
    """Return one row per model, task and scaling; a length counts if all past the window to it do.

    If a higher score is better, a length holds while ``kept`` of the model's own score is left.
    That score is the one of its unscaled embedding at the longest length inside the window. ``low``
    is the length up to which the score's whole interval lies there, and ``high`` the length up to
    which any of it does.

    Perplexity holds while it is no higher than there, document by document. ``low`` is the length
    up to which that is significant, and ``high`` the one up to which it is not refuted. Empty:
    neither inside the window nor at the first length beyond.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept:g} is invalid: it is a share above 0 and at most 1, as 0.85")
    rows: list[dict[str, Any]] = []
    single = separated(frame)  # each model has a score of its own to keep
    table = cells(single)
    for (model, task), samples in needed_of(single).groupby(["model", "task"], sort=False):
        how = measure(samples)
        here = table[(table["model"] == model) & (table["task"] == task)]
        inside = here[(here["length"] <= here["trained_length"]) & here["score"].notna()]
        plain = (inside[inside["scaling"] == name] for name in ("none", "native"))
        baseline = next((rows.iloc[-1] for rows in plain if len(rows)), None)
        judged = how.across and how.form != "unknown" and how.metric != "window_kl"
        if baseline is not None and judged and baseline["score"] > 0:
            paired = samples.groupby(["scaling", "length"]) if how.lower else ()
            of = {key: units(rows) for key, rows in paired}
            every = max(requested_units(rows) for _, rows in samples.groupby("length"))
            beyond = here[here["length"] >= baseline["length"]]
            for _, lengths in beyond.groupby("scaling", sort=False):
                row = _row(records(lengths), of, baseline, how, kept)
                rows.append({**row, "asked": every})
    if not rows:
        raise ValueError(NONE)
    whole = ("effective_length", "low", "high")
    return renamed(pd.DataFrame(rows).astype(dict.fromkeys(whole, "Int64")), frame)


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, one per model and task, the furthest method first."""
    tables = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        order = ["effective_length", "low", "high"]
        ordered = rows.sort_values(order, ascending=False, kind="stable")
        texts = []
        for row in records(ordered):
            lacking = f" ({row['n']} of {row['asked']})" * (row["n"] < row["asked"])
            texts.append({
                "scaling": row["scaling"],
                "effective length": f"{_length(row, 'effective_length')}{lacking}",
                "at least (95 %)": _length(row, "low"), "at most (95 %)": _length(row, "high"),
            })  # fmt: skip
        tables[heading(str(task), rows["metric"].iloc[0], str(model))] = pd.DataFrame(texts)
    return tables


def _length(row: dict[str, Any], end: str) -> str:
    """Return "1024 (4×)", "≥ 2048 (8×)" at the longest length measured, "none" below the window."""
    if row[end] is None:
        return "none"
    text = f"{row[end]} ({row[end] / row['trained_length']:.3g}×)"
    return f"≥ {text}" if row[end] == row["longest"] else text


def notes(table: pd.DataFrame) -> list[str]:
    """Return when a score holds, by task."""
    rules = {}
    for row in records(table):
        baseline = f"`{row['own_scaling']}` inside the window"
        kept = row["least_score"] and row["least_score"] / row["own_score"]
        rule = f"at least {100 * kept:.3g} % of that" if kept else "no higher than that"
        measured = row["measure"]
        rules[measured] = (
            f"{measured[0].upper()}{measured[1:]} is kept if it is {rule} of {baseline}."
        )
    return [" ".join([COUNTS, *rules.values()])]


def _row(
    lengths: list[dict[str, Any]],
    of: dict[Any, Units],
    baseline: pd.Series[Any],
    how: Measure,
    kept: float,
) -> dict[str, Any]:
    """Walk up the lengths of one method from that of the model's own score."""
    least = None if how.lower else kept * float(baseline["score"])
    furthest: dict[str, int | None] = dict.fromkeys(ENDS)
    open_ends, counts = set(ENDS), [int(baseline["n"])]
    for cell in lengths:
        holds, n = _holds(cell, of, baseline, how, least)
        held = {end for end in ENDS if holds[end]}
        if cell["length"] > baseline["length"]:
            held = open_ends = open_ends & held
        if "length" in held:
            counts.append(n)
        furthest |= dict.fromkeys(held, int(cell["length"]))
    return {
        **baseline[["model", "task", "metric", "trained_length"]], "measure": how.name,
        "scaling": lengths[0]["scaling"],
        "effective_length": furthest["length"], "low": furthest["low"], "high": furthest["high"],
        "longest": int(lengths[-1]["length"]), "least_score": least,
        "own_score": baseline["score"], "own_scaling": baseline["scaling"],
        "n": min(counts), "units": how.units,
    }  # fmt: skip


def _holds(
    cell: dict[str, Any],
    of: dict[Any, Units],
    baseline: pd.Series[Any],
    how: Measure,
    least: float | None,
) -> tuple[dict[str, bool], int]:
    """Return whether a length holds, by its score and both ends of its interval; on how many units.

    If the method failed on some units, the length does not hold by the lower end. With too few
    units, or with none, it holds by the upper end alone, unless the method failed. Units that ran
    out of memory or were not measured prove nothing.
    """
    failed = any(status in str(cell["status"]) for status in FAILED)
    if cell["score"] is None:
        return {"length": False, "low": False, "high": not failed}, 0
    if (cell["length"], cell["frequencies"]) == (baseline["length"], baseline["frequencies"]):
        return dict.fromkeys(ENDS, True), int(baseline["n"])
    value, low, high, n = cell["score"], cell["low"], cell["high"], int(cell["n"])
    if least is None:
        there, inside = ((row["scaling"], row["length"]) for row in (cell, baseline))
        result = difference(of[there], of[inside], how)
        value, low, high, n = -1.0, None, None, 0
        if result is not None:
            low, high = (None if end is None else -end for end in (result.high, result.low))
            value, n = -result.value, result.n
    if n < KEPT_UNITS * int(baseline["n"]):
        return {"length": False, "low": False, "high": True}, n
    least = (least or 0) - ROUNDING
    return {
        "length": value >= least,
        "low": low is not None and low >= least and not failed,
        "high": high is None or high >= least,  # no interval proves nothing
    }, n
