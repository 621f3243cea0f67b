"""What a race or a search answers: the method to use, in one sentence, a table and a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.reports._text import as_text, folded
from ropewalk.harness.reports.verdict import sentence
from ropewalk.harness.stats.measure import Measure, Units, difference, scored
from ropewalk.harness.stats.paired import difference_columns

ENDS, MARKS = ("score", "low", "high"), ("", "_low", "_high")


@dataclass(frozen=True)
class Answer:
    """The answer of a race or a search.

    Attributes:
        scaling: the method to use.
        text: the decision, one line per subject.
        table: one row per task and method.
        next: what to type to write the method for an engine, or why nothing serves it; empty for a
            model or a function of this process.
        files: the table and what else was written.
    """

    scaling: str
    text: str
    table: pd.DataFrame
    next: str
    folder: Path
    files: tuple[Path, ...]

    def display(self) -> dict[str, pd.DataFrame]:
        """Return the table for people, in one part per task."""
        raise NotImplementedError

    def __str__(self) -> str:
        lines, tables = [*map(folded, self.text.splitlines()), ""], self.display()
        for task, table in tables.items():
            lines += [*[task] * (len(tables) > 1), as_text(table), ""]
        lines.append(f"Files: {' '.join(map(str, self.files))}")
        return "\n".join([*lines, *([f"Next:  {self.next}"] if self.next else [])])


def columns_of(units: Units, use: Units, how: Measure) -> dict[str, Any]:
    """Return a score, on how many documents or trials it rests, and its difference from another."""
    score = scored(units, how)
    ends = {"score": score.value, "low": score.low, "high": score.high, "n": score.n}
    return ends | difference_columns("difference", difference(units, use, how))


def decision(
    rows: Sequence[Mapping[str, Any]],
    use: str,
    winner: str,
    how: Measure,
    *,
    unit: str,
    window: int | None = None,
    truncation: float | None = None,
    gains: Sequence[str] = (),
) -> str:
    """Return the sentence of the reports on the candidates to choose from.

    A row has ``scaling``, ``columns_of``, its ``regret``, and where ``truncation`` has a score, its
    difference from that. The best is one of those on the most documents or trials. ``winner`` is
    the one that is significantly the best, if any, and ``gains`` are the retrieval tasks that gain
    by the longer text.
    """
    sign, most = 1 if how.lower else -1, max(row["n"] for row in rows)
    full = [row for row in rows if row["n"] == most]
    best = min(full, key=lambda row: (sign * row["score"], row["scaling"] != use))["scaling"]
    order = sorted(rows, key=lambda row: (row["scaling"] != best, sign * row["difference"]))
    return sentence(
        [
            {
                **row, "metric": how.metric, "lower": how.lower, "relative": how.relative,
                "unit": unit, "compared": row["n"], "asked": row["n"],
                **{f"compared_{end}": row[end] for end in ENDS},
                **{f"above{mark}": row[f"difference{mark}"] for mark in MARKS},
                **{f"change{mark}": row.get(f"truncation{mark}") for mark in MARKS},
                "truncation": truncation, "trained_length": window,
                "use": row["scaling"] == use, "best": row["scaling"] == best,
                "winner": row["scaling"] == best == winner,
                "failed": None, "needs_code": False, "cost_low": None, "cost_high": None,
            }
            for row in order
        ],
        gains,
    )  # fmt: skip
