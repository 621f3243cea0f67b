"""Every method of a model and task against one of them, length by length, on the same samples."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.cells import cells
from harness.reports.stats.checkpoints import labels, lengths
from harness.reports.stats.family import MOST_PAIRED, Family, families, family
from harness.reports.stats.measure import SHARES, Measure
from harness.reports.stats.paired import ENOUGH, SURE
from harness.reports.writing import sentences
from harness.reports.writing.tables import across

COPIED = ("model", "task", "metric", "trained_length", "length", "relative_length", "scaling")
FOUND = ("low", "high", "p")


def chosen(frame: pd.DataFrame, baseline: str | None) -> str:
    """Return the baseline that was named, else ``none``, else of models the first."""
    first = str(frame["scaling"].iloc[0]) if "of_model" in frame else "none"
    return baseline or ("none" if "none" in set(frame["scaling"]) else first)


def against(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return a row per cell beside the baseline's: their difference, and what is known of it.

    ``low`` and ``high`` hold for one row, ``low_all`` and ``high_all`` for all pairs of methods
    at a length together (Bonferroni), as ``p_all`` does (Holm), by which ``verdict`` says better,
    worse or not distinguished: the comparisons and the verdicts are those of ``best``. Methods with
    the baseline's frequencies are "same"; those with too few units in common with the others are
    "not compared"; a relative difference of -0.1 is 10 % lower.
    """
    table = cells(frame)
    rows = []
    for (model, task, length), of in families(frame).items():
        here = (table["model"] == model) & (table["task"] == task) & (table["length"] == length)
        known = table[here].dropna(subset="score")
        if baseline in set(known["scaling"]):
            others = known[known["scaling"] != baseline]
            rows += [_row(cell, of, of.how, baseline) for cell in sentences.records(others)]
    return pd.DataFrame(rows)


def checkpoints(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell of a model beside that of the same method of the first model like it.

    Models are alike that were asked the same questions. The pairs that are corrected together are
    those of all methods of all these models, as in ``best``; ``baseline`` is the first model.
    """
    rows, named = [], labels(frame)
    for models, samples, how in lengths(frame):
        of, table = family(samples, how), cells(samples).dropna(subset="score")
        known = {cell["scaling"]: cell for cell in sentences.records(table)}
        for model in models[1:]:
            for scaling in frame.loc[frame["model"] == model, "scaling"].unique():
                one, other = named[model, scaling], named.get((models[0], scaling), "")
                if one in known and other in known:
                    row = _row(known[one], of, how, other)
                    rows.append({**row, "model": model, "scaling": scaling, "baseline": models[0]})
    return pd.DataFrame(rows)


def _row(cell: dict[str, Any], of: Family, how: Measure, baseline: str) -> dict[str, Any]:
    """Compare one cell with the baseline's."""
    one, other = of.first(cell["scaling"]), of.first(baseline)
    same, score = one == other, of.score(one)
    found = None if same else of.between(one, other)
    wide = found.interval(1 - SURE / max(1, of.count)) if found else (None, None)
    values = {name: getattr(found, name, None) for name in FOUND}
    value = 0.0 if same else getattr(found, "value", None)
    return {
        **{name: cell[name] for name in COPIED}, "score": score.score, "measure": how.name,
        "baseline": baseline, "better": "lower" if how.lower else "higher",
        "relative": how.relative, "units": how.units, "n": found.n if found else of.own[one],
        "asked": of.asked, "status": of.status(one), "difference": value, **values,
        "needed": of.needed(one, other), "low_all": wide[0], "high_all": wide[1],
        "same": same, "p_all": of.p(one, other),
        "better_on": (found.lower if how.lower else found.higher) if found else None,
        "enough": getattr(found, "enough", None), "carrier": getattr(found, "carrier", None),
        "failed": len(of.lost[one] - of.lost[other]), "verdict": of.verdict(one, other),
    }  # fmt: skip


def beside(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the differences for people: a table per model and task, lengths side by side."""
    texts = table.assign(text=[signed(row) for row in sentences.records(table)])
    return {
        f"{title}, less {baseline}": made
        for baseline, rows in texts.groupby("baseline", sort=False)
        for title, made in across(rows).items()
    }


def signed(row: dict[str, Any]) -> str:
    """Return "−26.8% [−33, −20]", with "?" where it is not distinguished, "=" for the same.

    "*" marks a difference that depends on one unit, "†" a method that failed on units left out;
    "(20 of 23)" counts the units where some lack.
    """
    if row["same"]:
        return "="
    lacking = f" ({row['n']} of {row['asked']})" if row["n"] < row["asked"] else ""
    if row["difference"] is None:
        return f"not compared{lacking}{' †' if row['failed'] else ''}"
    unit = "%" if row["relative"] else " pp" if row["metric"] in SHARES else ""
    found = sentences.signed(row["difference"], row["low"], row["high"], unit)
    marks = (
        f"{' ?' if row['verdict'] == 'not distinguished' else ''}{' *' if row['carrier'] else ''}"
    )
    marks += " †" if row["failed"] else ""
    return f"{found}{lacking}{marks}"


def key(table: pd.DataFrame) -> str:
    """Say what the verdicts and the signs of such a table mean, and what must be known of them."""
    real = table[~table["same"]]
    units = " and ".join(dict.fromkeys(table["units"]))
    told = [
        f"Paired by {units}; better or worse: the mean and the sign test agree, corrected for all "
        f"pairs of methods at a length (Holm, of more than {MOST_PAIRED} methods Bonferroni; 5 %), "
        "not for the lengths and tasks together.",
        "Brackets: 95 % intervals of each comparison alone; pp: percentage points; ?: not "
        "distinguished; =: the same measurement.",
    ]
    if table["baseline"].nunique() > 1:
        told.append(
            "Less another model: the same method on the same documents and trials; its pairs are "
            "those of all methods of these models."
        )
    few = real[real["enough"].eq(False)]
    if len(few):
        least = int(few["n"].min())
        told.append(
            f"{sentences.counted(least, few['units'].iloc[0])} {sentences.are(least)} too "
            f"few for a verdict; it needs at least {ENOUGH}."
        )
    if (real["n"] < real["asked"]).any():
        told.append(f"(… of …): on the {units} that all methods compared have.")
    if real["failed"].any():
        told.append(
            f"†: it failed on {units} that are left out; what is left favours it, so it is not "
            "called better."
        )
    single = real[real["carrier"].notna()]
    if len(single):
        names = sentences.listed(list(dict.fromkeys(single["carrier"])))
        told.append(f"*: without one document it changes by more than half: {names}.")
    return " ".join(told)
