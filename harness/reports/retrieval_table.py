"""Retrieval in the layout of RULER's table: lengths across, average, effective length."""

from __future__ import annotations

import pandas as pd

from harness.reports.plots.style import length_label
from harness.reports.stats.retrieval import MEAN, effective, parts
from harness.reports.writing.tables import across, heading, text

THRESHOLD = 0.856  # of Llama 2 7B at 4k tokens in RULER's thirteen tasks (arXiv:2404.06654)
SHARE = "accuracy"  # every score is written as one, in percent


def make(frame: pd.DataFrame, *, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Return a row per model, scaling, length and part, and of the mean of all parts.

    ``average`` is the mean over all lengths, ``effective_length`` the longest length that with all
    shorter ones reaches ``threshold``; both are empty where a length has no score, or is missing:
    another method of the model has it. A length that lacks a part with every method has no mean.
    Scores are shares, 0 to 1. Raises ValueError where no task of retrieval was measured.
    """
    table = parts(frame)
    rows = []
    for _, cells in table.groupby(["model", "scaling", "part"], sort=False):
        whole = bool(cells["score"].notna().all())
        rows.append(
            cells.assign(
                average=cells["score"].mean() if whole else None,
                effective_length=effective(cells, threshold) if whole else None,
                threshold=threshold,
            )
        )
    found = pd.concat(rows, ignore_index=True).astype({"average": float})
    found["effective_length"] = found["effective_length"].astype("Int64")
    metric = found.pop("metric")
    return found.assign(task=found["part"], metric=metric)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the mean of all parts, with average and effective length, then every part."""
    known = _parts(table)
    first = "mean of all tasks" if len(known) > 1 else known[0]
    shown = table if len(known) > 1 else table[table["part"] == MEAN]
    titled = shown.assign(task=shown["part"].replace(MEAN, first))
    shares = titled.assign(metric=SHARE).to_dict("records")
    made = across(titled.assign(text=[text(cell) for cell in shares]))
    for model, rows in table[table["part"] == MEAN].groupby("model", sort=False):
        once = rows.drop_duplicates("scaling").set_index("scaling")
        mean = made[heading(first, rows["metric"].iloc[0], str(model))]
        mean["average"] = [_percent(once.loc[name, "average"]) for name in mean["scaling"]]
        mean["effective length"] = [_reach(once.loc[name], rows) for name in mean["scaling"]]
    order = sorted(made, key=lambda title: not title.startswith(first))
    return {title: made[title] for title in order}


def words(table: pd.DataFrame) -> list[str]:
    """Say what the mean is of, what lacks in it, and by which rule a length is effective."""
    each = {str(model): _counted(rows) for model, rows in table.groupby("model", sort=False)}
    alike = len(set(each.values())) == 1
    told = list(each.values())[:1] if alike else [f"{name}: {text}" for name, text in each.items()]
    if (table["status"] == "missing").any():
        told.append(
            "Missing: another method has this task at this length, this one has not, and so no "
            "average."
        )
    return [
        *told,
        f"Effective length: the longest that, with all shorter ones measured, reaches "
        f"{table['threshold'].iloc[0]:.1%}; RULER's 85.6 % is the score of Llama 2 7B at 4k in its "
        "thirteen tasks.",
    ]


def _counted(rows: pd.DataFrame) -> str:
    """Say of one model what its mean is of, on how many trials, and which lengths have none."""
    known = _parts(rows)
    scored = rows[(rows["part"] != MEAN) & rows["score"].notna()]
    counts = sorted(scored["n"].agg(["min", "max"]).dropna().astype(int).unique())
    several = "" if counts == [1] else "s"
    trials = f"{' to '.join(map(str, counts))} trial{several} each at a length"
    trials = trials if counts else "without a score at any length"
    if len(known) == 1:
        return f"{known[0]}, {trials}."
    without = sorted(set(rows["length"]) - set(rows.loc[rows["part"] == MEAN, "length"]))
    least = f" A length at which not every task was asked ({', '.join(map(str, without))} tokens) "
    left = f"{least}has no mean and is in no average." if without else ""
    return f"The mean counts {len(known)} tasks the same ({', '.join(known)}), {trials}.{left}"


def _parts(table: pd.DataFrame) -> list[str]:
    return [part for part in table["part"].unique() if part != MEAN]


def _percent(share: float) -> str:
    return "" if pd.isna(share) else f"{share:.1%}"


def _reach(row: pd.Series, rows: pd.DataFrame) -> str:
    """Return "4k", "< 1k" where the shortest length fails, or nothing where a score lacks."""
    if pd.isna(row["average"]):
        return ""
    if pd.isna(row["effective_length"]):
        return f"< {length_label(int(rows['length'].min()))}"
    return length_label(int(row["effective_length"]))
