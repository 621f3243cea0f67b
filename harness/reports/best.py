"""Which method to use at which length, by how much it leads, or that the data do not decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.reports.stats.checkpoints import together
from harness.reports.stats.family import MOST_PAIRED
from harness.reports.stats.needed import OF_EXP, OF_SHARE
from harness.reports.stats.paired import ENOUGH
from harness.reports.stats.ranking import choice, ranking
from harness.reports.stats.verdict import clause, failed
from harness.reports.writing import sentences
from harness.reports.writing.tables import heading

RULE = (
    "Two methods are distinguished where the mean of the paired differences and the exact sign "
    "test agree, corrected for all pairs of methods at a length of a task (Holm, of more than "
    f"{MOST_PAIRED} methods Bonferroni; 5 %), not for the rows of this table together. It needs at "
    f"least {ENOUGH} documents, and a method that failed on one that another has is not called "
    "better. Failures rarer than one document in n / 3 may be on none of the n. In brackets: the "
    "number that would distinguish the two in four of five sweeps, if they differ as seen; none: "
    f"the difference is negligible, less than {100 * OF_EXP:.2g} % (accuracy: "
    f"{100 * OF_SHARE:.0f} percentage point); ?: it is unknown, as where the mean and most "
    "documents disagree."
)
FAILED = "†: it failed on documents or trials that are left out, which favours what is left."


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task and length with the best score and what it leads by.

    Models that were asked the same questions have rows together too, for all their methods.

    ``tied`` are the methods that the samples do not distinguish from the best, by probabilities
    corrected for all pairs at a length together (Holm), and so for the choice of the best.
    ``difference`` is the best less the runner-up, relative for perplexity; ``p`` is corrected;
    ``needed`` are the units that would distinguish each of ``tied``. All is of the ``n`` units
    that the methods share; those with too few of them are ``apart``.
    """
    more = together(frame)
    return ranking(frame if more.empty else pd.concat([frame, more]))


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, one per model and task."""
    made = {}
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        texts = [
            {
                "length": f"{row['length']} ({sentences.times(row)})".removesuffix(" ()"),
                "best": _marked(row, row["best"]),
                "the same measurement": ", ".join(row["same"] or []),
                "score [95 %]": sentences.score(row),
                "runner-up": _marked(row, row["runner_up"]),
                "its score [95 %]": ""
                if row["runner_up"] is None
                else sentences.score(row, "runner_up_"),
                "not distinguished from (units that would)": _tied(row),
            }
            for row in sentences.records(rows)
        ]
        made[heading(str(task), rows["metric"].iloc[0], str(model))] = pd.DataFrame(texts)
    return made


def _marked(row: Mapping[str, Any], name: str | None) -> str | None:
    """Return a method's name, with a mark where it failed on units that its score leaves out."""
    return f"{name} †" if name in failed(row) else name


def _tied(row: Mapping[str, Any]) -> str:
    """Return every method not distinguished from the best with the number that would do so."""
    if row["tied"] is None:
        return ""
    counts = {"?": " (?)", "negligible": " (none)"}
    pairs = zip(row["tied"], row["needed"], strict=True)
    return ", ".join(f"{_marked(row, name)}{counts.get(n, f' ({n})')}" for name, n in pairs)


def words(table: pd.DataFrame) -> list[str]:
    """Say the same in sentences, and for every length what is best on all tasks together."""
    told = []
    many = table["model"].nunique() > 1
    for (model, _), rows in table.groupby(["model", "length"], sort=False):
        facts = sentences.records(rows)
        start = sentences.at(facts[0]) + (f", {model}:" if many else "")
        clauses = [clause(row, sentences.named(row, table)) for row in facts]
        told.append(" ".join([start, "; ".join(clauses) + "." + _choice(facts)]))
    return told


def legend(table: pd.DataFrame) -> list[str]:
    """Say what the table's words and marks mean."""
    return [RULE, FAILED] if table["failed"].notna().any() else [RULE]


def _choice(facts: list[dict[str, Any]]) -> str:
    """Return which methods are best, or not distinguished from it, on every task."""
    if len(facts) < 2 or all(row["runner_up"] is None for row in facts):
        return ""
    kept = choice(facts)
    if not kept:
        return " No method is best on every task."
    return f" Best or not distinguished from it on every task: {sentences.listed(kept, last='or')}."
