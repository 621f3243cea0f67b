"""Every method of a model and task against one of them, length by length, on the same samples."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports import _words
from harness.reports._cells import cells
from harness.reports._measure import Measure, difference, distinct, measure, units
from harness.reports._paired import SURE, holm
from harness.reports._tables import across

FOUND = ("difference", "low", "high", "p", "needed")


def against(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return a row per cell beside the baseline's: their difference, and what is known of it.

    ``low`` and ``high`` hold for one row, ``low_all`` and ``high_all`` for all rows of a model and
    task together (Bonferroni), as ``p_all`` does (Holm), by which ``verdict`` says better, worse
    or not told apart. Methods with the baseline's frequencies are "same"; a relative difference of
    -0.1 is 10 % lower.
    """
    table = cells(frame)
    parts = []
    for (model, task), samples in frame.groupby(["model", "task"], sort=False):
        here = table[(table["model"] == model) & (table["task"] == task)]
        rows = _rows(here.dropna(subset="score"), samples, measure(samples), baseline)
        once = {(row["length"], row["first"]): row["p"] for row in rows}
        corrected = dict(zip(once, holm(list(once.values())), strict=True))
        for row in rows:
            p = corrected[row["length"], row.pop("first")]
            parts.append({**row, "p_all": p, "verdict": _verdict(row, p)})
    return pd.DataFrame(parts)


def _rows(
    here: pd.DataFrame, samples: pd.DataFrame, how: Measure, baseline: str
) -> list[dict[str, Any]]:
    """Compare every length's methods with the baseline there, once per set of frequencies."""
    pairs = []
    for length, known in here.groupby("length"):
        groups = distinct(samples[(samples["length"] == length)])
        leader = {name: first for first, names in groups.items() for name in (first, *names)}
        for cell in _words.records(known) if baseline in set(known["scaling"]) else []:
            if cell["scaling"] != baseline:
                first = leader[cell["scaling"]]
                pairs.append(({**cell, "first": first}, first == leader[baseline]))
    family = {(cell["length"], cell["first"]) for cell, same in pairs if not same}
    level = 1 - SURE / max(1, len(family))
    return [_row(cell, same, samples, how, baseline, level) for cell, same in pairs]


def _row(
    cell: dict[str, Any], same: bool, samples: pd.DataFrame, how: Measure, baseline: str,
    level: float,
) -> dict[str, Any]:  # fmt: skip
    """Compare one cell with the baseline's."""
    told = ("model", "task", "metric", "trained_length", "length", "stretch", "scaling", "score")
    head = {
        **{name: cell[name] for name in told}, "measure": how.name, "baseline": baseline,
        "better": "lower" if how.lower else "higher", "relative": how.relative,
        "units": how.units, "first": cell["first"],
    }  # fmt: skip
    if same:
        nothing = dict.fromkeys((*FOUND, "low_all", "high_all"))
        return {**head, "n": cell["n"], **nothing, "difference": 0.0, "same": True}
    rows = samples[samples["length"] == cell["length"]]
    one, other = (units(rows[rows["scaling"] == name]) for name in (cell["scaling"], baseline))
    found, wide = difference(one, other, how), difference(one, other, how, level=level)
    values = (found.value, found.low, found.high, found.p, found.needed) if found else [None] * 5
    return {
        **head, "n": found.n if found else cell["n"], **dict(zip(FOUND, values, strict=True)),
        "low_all": wide.low if wide else None, "high_all": wide.high if wide else None,
        "same": False,
    }  # fmt: skip


def _verdict(row: dict[str, Any], p: float | None) -> str:
    """Return what the corrected probability allows to say."""
    if row["same"]:
        return "same"
    if p is None or p >= SURE:
        return "not told apart"
    return "better" if (row["difference"] < 0) == (row["better"] == "lower") else "worse"


def beside(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the differences for people: a table per model and task, lengths side by side."""
    texts = table.assign(text=[signed(row) for row in _words.records(table)])
    baseline = table["baseline"].iloc[0]
    return {f"{title}, less {baseline}": made for title, made in across(texts).items()}


def signed(row: dict[str, Any]) -> str:
    """Return "−26.8% [−33, −20]", with "?" where it is not told apart, "=" for the same."""
    if row["same"]:
        return "="
    if row["difference"] is None:
        return "not compared"
    percent = row["relative"] or row["metric"] == "accuracy"
    ends = [row["difference"], row["low"], row["high"]]
    texts = ["" if end is None else _signed(end, percent=percent) for end in ends]
    unit = "%" if row["relative"] else " pt" if percent else ""
    around = f" [{texts[1]}, {texts[2]}]" if all(texts) else ""
    return f"{texts[0]}{unit}{around}{' ?' if row['verdict'] == 'not told apart' else ''}"


def _signed(value: float, *, percent: bool) -> str:
    if value == 0:
        return "0"
    text = f"{100 * value:+.1f}" if percent and abs(value) < 0.1 else (
        f"{100 * value:+,.0f}" if percent else f"{value:+.3g}"
    )  # fmt: skip
    return text.replace("-", "−")
