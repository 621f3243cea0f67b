"""One row a method: scores inside the window and at the longest length, reach, and where best."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.effective_length import REACH, reach, reached, uneven
from harness.reports.writing import sentences
from harness.reports.writing.sentences import text
from harness.stats.cells import cells, coinciding, ranked, records
from harness.stats.decision import decisions
from harness.stats.measure import SHARES

Key = tuple[str, str]  # a model and a task, or a scaling
MOST = 4  # methods whose uneven reach is given in words


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model and scaling, with four columns a task.

    ``TASK in window`` is the score at the task's longest length inside the window, ``TASK at
    longest`` that at its longest of all, each as text with its interval, and empty for a method
    without that length; ``TASK best at`` has the lengths beyond the window at which the method may
    be the best: it is not significantly worse than the best, and not all scored 0;
    ``TASK reach`` is the effective length, of a task that can have one. Methods that coincide
    everywhere share a row; the most often best come first, of those that are as often, the one of
    the best mean place at the longest lengths.
    """
    each = cells(frame)
    table = coinciding(each)
    if table["score"].isna().all():
        raise ValueError("no scores to sum up: nothing was measured")
    inside = table["length"].where(table["length"] <= table["trained_length"])
    ends = table.assign(inside=inside, longest=table["length"]).groupby(["model", "task"])
    table = table.join(ends[["inside", "longest"]].transform("max")).assign(first=each["scaling"])
    try:
        judged = reach(frame)
    except ValueError:  # nothing inside the window, or no task whose lengths compare
        judged = pd.DataFrame(columns=["model", "task", "scaling", "effective_length"])
    led = _leading(frame)
    known = judged[["model", "task", "scaling", "effective_length"]]
    far = {(model, task, name): length for model, task, name, length in known.to_numpy()}
    kin: dict[Key, list[dict[str, Any]]] = {}
    for cell in records(table):
        kin.setdefault((cell["model"], cell["scaling"]), []).append(cell)
    best = {name: place for place, name in enumerate(ranked(each))}
    by_place = sorted(kin.values(), key=lambda own: best[own[0]["first"]])
    made = pd.DataFrame([_row(own, led, far) for own in by_place])
    made = made.astype({name: "Int64" for name in made if str(name).endswith(REACH)})
    made = made.sort_values(["model", "places"], ascending=[True, False], kind="stable")
    return made.reset_index(drop=True)


def _leading(frame: pd.DataFrame) -> dict[Key, list[tuple[int, list[str]]]]:
    """Return by model and task the lengths beyond the window, with the methods that may be best."""
    led: dict[Key, list[tuple[int, list[str]]]] = {}
    for (model, task, length), found in decisions(frame).items():
        nothing = found.of.how.metric in SHARES and found.of.score(found.best).score == 0
        beyond = length > (found.facts["trained_length"] or length)
        if beyond and not nothing and found.of.selection is not None and len(found.of.names) > 1:
            names = [one for name in found.of.names if found.possible(name)
                     for one in found.of.everyone(name)]  # fmt: skip
            led.setdefault((model, task), []).append((length, names))
    return led


def _row(
    kin: list[dict[str, Any]],
    led: dict[Key, list[tuple[int, list[str]]]],
    far: dict[tuple[str, str, str], Any],
) -> dict[str, Any]:
    """Sum up one method on every task."""
    model, scaling, name = (kin[0][part] for part in ("model", "scaling", "first"))
    row: dict[str, Any] = {"model": model, "scaling": scaling, "places": 0, "out_of": 0}
    for task in dict.fromkeys(cell["task"] for cell in kin):
        known = [cell for cell in kin if cell["task"] == task]
        scored = {cell["length"]: text(cell) for cell in known}
        beyond = led.get((model, task), [])
        at = [length for length, names in beyond if name in names]
        row["places"] += len(at)
        row["out_of"] += len(beyond)
        row |= {
            f"{task} in window": scored.get(known[0]["inside"]),
            f"{task} at longest": scored.get(known[0]["longest"]),
            **({f"{task}{REACH}": far[model, task, name]} if (model, task, name) in far else {}),
            f"{task} best at": ", ".join(map(str, at)) or None,
        }
    return row


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, a table per model."""
    known = table.astype(object).where(table.notna(), None)
    made = {}
    for model, rows in known.groupby("model", sort=False):
        shown = rows.drop(columns=["model", "places", "out_of"])
        names = [str(name) for name in shown if str(name).endswith(REACH)]
        made[f"Summary, {model}"] = shown.assign(**{name: reached(rows, name) for name in names})
    return made


def words(table: pd.DataFrame) -> list[str]:
    """Say who leads most often, and who reads on without retrieving."""
    told = []
    for model, rows in table.groupby("model", sort=False):
        start = f"{model}: " if table["model"].nunique() > 1 else ""
        top = int(rows["places"].max())
        first = rows[rows["places"] == top]["scaling"].tolist()
        if top and top == rows["out_of"].max() and len(first) == len(rows) > 1:
            told.append(f"{start}Beyond the window every method may be the best.")
        elif top and len(rows) > 1:
            told.append(
                f"{start}Most often not significantly worse than the best beyond the window: "
                f"{sentences.listed(first)}, in {top} of {rows['out_of'].max()} (task, length)."
            )
        if apart := [text for row in records(rows) if (text := uneven(row))]:
            told.append(f"{start}Reach differs by task: {'; '.join(apart[:MOST])}.")
    return told
