"""Mean over models that differ by their seed, with intervals for random seeds and documents."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ropewalk.harness.reports.writing import sentences
from ropewalk.harness.reports.writing.sentences import text
from ropewalk.harness.reports.writing.tables import across
from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.measure import SHARES
from ropewalk.harness.stats.seeds import ENDING, of_seeds

OTHER = "Models with other questions, as other tokens are, cannot be compared with each other."
CHANGE = "mean change from the trained window"
CHANGES = (
    "A change is the difference from the model's own score at the trained window under the same "
    "scaling. Changes of perplexity are relative, and “pp” means percentage points."
)


def make(frame: pd.DataFrame, *, ending: str = ENDING) -> pd.DataFrame:
    """Return one row per model without its ``ending``, a seed, and per task, scaling and length.

    - ``score`` is the mean of the seeds; for perplexity the geometric mean.
    - ``low`` and ``high`` are its 95 % interval for random seeds and random documents or trials.
      It combines Student's interval over seeds with the interval over documents or trials, and is
      conservative. Where all seeds have the same score, it is the interval over documents or
      trials.
    - ``single`` lists the scores of the seeds, ``least`` and ``most`` their range.
    - ``questions`` is equal if models have the same questions.
    - ``change`` is the mean of the seeds' changes from their own scores at the trained window under
      the same scaling, with such an interval. It is relative for perplexity, and given only for
      tasks whose scores of different lengths may be compared.

    A cell without one of the seeds has no score. A model without an ending is no seed, and neither
    are models of different windows. Raises ValueError if no model has two seeds.
    """
    return of_seeds(frame, ending)


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table of means per task by length, and one of changes."""
    many = table["scaling"].nunique() > 1
    label = [
        f"{row['model']}, {row['scaling']}" if many else str(row["model"]) for row in records(table)
    ]
    windows = table["trained_length"].map(", window of {:,} tokens".format)
    window = windows if windows.nunique() > 1 else ""
    shown = table.assign(scaling=label, model="mean of the seeds" + window)
    tables = across(shown, text)
    past = shown[shown["length"] > shown["trained_length"]].assign(model=CHANGE + window)
    if "change" in past:
        past = past[past["task"].isin(past["task"][past["change"].notna()])]
        tables |= across(past, _change)
    return {title: tables[title].rename(columns={"scaling": "model"}) for title in sorted(tables)}


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the intervals hold for."""
    counts = sentences.listed([str(n) for n in sorted(set(table["seeds"]))]).replace("`", "")
    questions = table[table["score"].notna()].groupby(["task", "trained_length", "length"])[
        "questions"
    ]
    return [
        f"Means of {counts} seeds. Intervals are for random seeds and random documents or trials. "
        "They are conservative. Where all seeds are equal, they show the variance of documents or "
        "trials alone.",
        *([CHANGES] if "change" in table else []),
        *([OTHER] if (questions.nunique() > 1).any() else []),
    ]


def _change(row: dict[str, Any]) -> str:
    """Return "+12 % [+8.1, +17]", in percentage points "−23 pp", or the status without a score."""
    if row["score"] is None:
        return str(row["status"])
    unit = " %" if row["relative"] else " pp" if row["metric"] in SHARES else ""
    return sentences.signed(row["change"], row["low_change"], row["high_change"], unit)
