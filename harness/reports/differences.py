"""Every method less a baseline on the same documents and trials, corrected for their number."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.writing import sentences
from harness.reports.writing.tables import across
from harness.stats.cells import cells, records
from harness.stats.checkpoints import labels, lengths
from harness.stats.decision import Family, families, family
from harness.stats.measure import SHARES, differences, values_of, weights_of
from harness.stats.paired import ALPHA, NO_DIFFERENCE, Difference, adjusted


def make(frame: pd.DataFrame, *, baseline: str | None = None) -> pd.DataFrame:
    """Return a row per cell with its difference from the ``baseline`` at the same length.

    The baseline is ``none`` by default, or the first model where models are compared as methods.

    Of models that were asked the same questions also a row per cell with its difference from the
    same method of the first of them, whose name is then the baseline.
    """
    known, baseline = list(frame["scaling"].unique()), chosen(frame, baseline)
    models = checkpoints(frame)
    if len(models) == 0 and (baseline not in known or len(known) < 2):
        raise ValueError(
            f"nothing to compare with {baseline!r}: the sweep has {', '.join(known)}; "
            "choose another by differences:baseline=NAME"
        )
    table = pd.concat([against(frame, baseline), models], ignore_index=True)
    if table.empty:
        scored = set(frame.dropna(subset="score")["scaling"])
        lacks = "no other method has a score where it has one"
        told = lacks if baseline in scored else "it has no score"
        raise ValueError(f"nothing to compare with {baseline!r}: {told}")
    return table


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people: lengths side by side."""
    return beside(table)


def words(table: pd.DataFrame) -> list[str]:
    """Say how many comparisons there are and how each came out."""
    told = []
    for (model, _, _), rows in table.groupby(["model", "task", "baseline"], sort=False):
        first = records(rows)[0]
        measured = sentences.named(first, table)
        start = f"{model}, {measured}" if table["model"].nunique() > 1 else measured
        real = rows[~rows["same"]].drop_duplicates(["measured_as", "length"])
        verdicts = real["verdict"].value_counts()
        counted = ", ".join(
            f"{verdicts.get(name, 0)} {name}"
            for name in ("better", "worse", NO_DIFFERENCE, "not compared")
            if name in verdicts or name != "not compared"
        )
        of = f"{len(real)} comparison{'' if len(real) == 1 else 's'}"
        told.append(f"{start} against `{first['baseline']}`, {of}: {counted}.")
    return told


def legend(table: pd.DataFrame) -> list[str]:
    """Say what the table's words and marks mean."""
    return [key(table)]


COPIED = ("model", "task", "metric", "trained_length", "length", "relative_length", "scaling")
FOUND = ("low", "high", "p")
Compared = dict[str, tuple[Difference, float | None]]  # by method, with the corrected probability


def chosen(frame: pd.DataFrame, baseline: str | None) -> str:
    """Return the baseline that was named, else ``none``, else of models the first."""
    first = str(frame["scaling"].iloc[0]) if "of_model" in frame else "none"
    return baseline or ("none" if "none" in set(frame["scaling"]) else first)


def against(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return one row per cell with its difference from the baseline's cell.

    ``low``, ``high`` and ``p`` are of one comparison; ``p_all``, by which the ``verdict`` says
    better or worse, is corrected for all comparisons with the baseline at a length of a task.
    Methods with the baseline's frequencies are "same"; those with too few units in common with the
    others are "not compared"; a relative difference of -0.1 is 10 % lower.
    """
    table = cells(frame)
    rows = []
    for (model, task, length), of in families(frame).items():
        here = (table["model"] == model) & (table["task"] == task) & (table["length"] == length)
        known = table[here].dropna(subset="score")
        if baseline in set(known["scaling"]):
            others, found = known[known["scaling"] != baseline], _compared(of, baseline)
            rows += [_row(cell, of, baseline, found) for cell in records(others)]
    return pd.DataFrame(rows)


def checkpoints(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell of a model beside that of the same method of the first model like it.

    Models are alike that were asked the same questions; ``baseline`` is the first of them. The
    comparisons with one method of the first model are corrected together.
    """
    rows, named = [], labels(frame)
    for models, samples, how in lengths(frame):
        of, table = family(samples, how), cells(samples).dropna(subset="score")
        known = {cell["scaling"]: cell for cell in records(table)}
        for model in models[1:]:
            for scaling in frame.loc[frame["model"] == model, "scaling"].unique():
                one, other = named[model, scaling], named.get((models[0], scaling), "")
                if one in known and other in known:
                    row = _row(known[one], of, other, _compared(of, other))
                    rows.append({**row, "model": model, "scaling": scaling, "baseline": models[0]})
    return pd.DataFrame(rows)


def _row(cell: dict[str, Any], of: Family, baseline: str, found: Compared) -> dict[str, Any]:
    """Compare one cell with the baseline's."""
    one, other = of.first(cell["scaling"]), of.first(baseline)
    same, score, how = one == other, of.score(one), of.how
    apart, p = found.get(one, (None, None))
    value = 0.0 if same else getattr(apart, "value", None)
    return {
        **{name: cell[name] for name in COPIED}, "score": score.score, "measure": how.name,
        "baseline": baseline, "better": "lower" if how.lower else "higher",
        "relative": how.relative, "units": how.units, "n": apart.n if apart else of.own[one],
        "asked": of.asked, "status": of.status(one), "difference": value, "measured_as": one,
        **{name: getattr(apart, name, None) for name in FOUND}, "p_all": p, "same": same,
        "better_on": (apart.lower if how.lower else apart.higher) if apart else None,
        "failed": len(of.lost[one] - of.lost[other]),
        "verdict": "same" if same else _verdict(of, one, other, apart, p),
    }  # fmt: skip


def _compared(of: Family, baseline: str) -> Compared:
    """Compare all methods with the baseline, each with its corrected probability."""
    other = of.first(baseline)
    names = [name for name in of.names if name != other]
    if other not in of.of:
        return {}
    found = differences([of.of[name] for name in names], of.of[other], of.how)
    if not found:
        return {}
    less = values_of([of.of[name] for name in names]) - values_of([of.of[other]])
    corrected = adjusted(less, weights_of(of.of[other]), found, shares=of.how.share)
    return dict(zip(names, zip(found, corrected, strict=True), strict=True))


def _verdict(of: Family, one: str, other: str, apart: Difference | None, p: float | None) -> str:
    """Return better, worse, no significant difference, or not compared.

    A method that failed on a unit that the other has is not called better.
    """
    if apart is None:
        return "not compared"
    better = (apart.value < 0) == of.how.lower
    first, second = (one, other) if better else (other, one)
    if p is None or p >= ALPHA or of.lost[first] - of.lost[second]:
        return NO_DIFFERENCE
    return "better" if better else "worse"


def beside(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the differences for people: a table per model and task, lengths side by side."""
    texts = table.assign(text=[signed(row) for row in records(table)])
    return {
        f"{title}, less {baseline}": made
        for baseline, rows in texts.groupby("baseline", sort=False)
        for title, made in across(rows).items()
    }


def signed(row: dict[str, Any]) -> str:
    """Return "−26.8% [−33, −20]", with "?" where it is not significant, "=" for the same.

    "†" marks a method that failed on units left out; "(20 of 23)" counts the units where some lack.
    """
    if row["same"]:
        return "="
    lacking = f" ({row['n']} of {row['asked']})" if row["n"] < row["asked"] else ""
    if row["difference"] is None:
        return f"not compared{lacking}{' †' if row['failed'] else ''}"
    unit = "%" if row["relative"] else " pp" if row["metric"] in SHARES else ""
    found = sentences.signed(row["difference"], row["low"], row["high"], unit)
    marks = " ?" if row["verdict"] == NO_DIFFERENCE else ""
    marks += " †" if row["failed"] else ""
    return f"{found}{lacking}{marks}"


def key(table: pd.DataFrame) -> str:
    """Return what the signs of such a table mean."""
    real = table[~table["same"]]
    units = " and ".join(dict.fromkeys(table["units"]))
    told = [
        f"Paired by {units}. Brackets: 95 % intervals of each comparison alone; pp: percentage "
        "points; ?: no significant difference (5 %, corrected for all comparisons with the same "
        "baseline at one length of a task); =: the same measurement.",
    ]
    if table["baseline"].nunique() > 1:
        told.append("Less another model: the same method on the same documents and trials.")
    if (real["n"] < real["asked"]).any():
        told.append(f"(… of …): on the {units} that all methods compared have.")
    if real["failed"].any():
        told.append(
            f"†: it failed on {units} that are left out; what is left favours it, so it is not "
            "called better."
        )
    return " ".join(told)
