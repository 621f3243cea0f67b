"""One row a method: scores inside the window and at the longest length, reach, and where best."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.cells import cells, coinciding
from harness.reports.stats.ranking import choice, ranking
from harness.reports.stats.reach import REACH, reach, uneven
from harness.reports.writing import sentences
from harness.reports.writing.tables import text

Key = tuple[str, str]  # a model and a task, or a scaling
MOST = 4  # methods whose uneven reach is given in words


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model and scaling, with four columns a task.

    ``TASK in window`` is the score at the longest length inside the window, ``TASK at longest``
    that at the longest of all, each as text with its interval; ``TASK best at`` has the lengths
    beyond the window at which the method is the best or not distinguished from it; ``TASK reach``
    is the effective length, of a task that can have one. Methods that coincide everywhere share
    a row; the most often best come first.
    """
    table = coinciding(cells(frame))
    if table["score"].isna().all():
        message = "no scores to sum up: nothing was measured"
        raise ValueError(message)
    places = ranking(frame)
    try:
        reached = reach(frame)
    except ValueError:  # nothing inside the window, or no task whose lengths compare
        reached = pd.DataFrame(columns=["model", "task", "scaling", "effective_length"])
    led: dict[Key, list[tuple[int, list[str]]]] = {}
    for place in sentences.records(places[places["length"] > places["trained_length"]]):
        led.setdefault((place["model"], place["task"]), []).append(
            (place["length"], choice([place]))
        )
    known = reached[["model", "task", "scaling", "effective_length"]]
    far = {(model, task, name): length for model, task, name, length in known.to_numpy()}
    kin: dict[Key, list[dict[str, Any]]] = {}
    for cell in sentences.records(table):
        kin.setdefault((cell["model"], cell["scaling"]), []).append(cell)
    rows = [_row(own, led, far) for own in kin.values()]
    made = pd.DataFrame(rows)
    made = made.astype({name: "Int64" for name in made if str(name).endswith(REACH)})
    made = made.sort_values(["model", "places"], ascending=[True, False], kind="stable")
    return made.reset_index(drop=True)


def _row(
    kin: list[dict[str, Any]],
    led: dict[Key, list[tuple[int, list[str]]]],
    far: dict[tuple[str, str, str], Any],
) -> dict[str, Any]:
    """Sum up one method on every task."""
    model, scaling = kin[0]["model"], kin[0]["scaling"]
    name = str(scaling).split(" = ")[0]
    row: dict[str, Any] = {"model": model, "scaling": scaling, "places": 0, "out_of": 0}
    for task in dict.fromkeys(cell["task"] for cell in kin):
        known = [cell for cell in kin if cell["task"] == task]
        inside = [cell for cell in known if cell["length"] <= cell["trained_length"]]
        beyond = led.get((model, task), [])
        at = [length for length, names in beyond if name in names]
        row["places"] += len(at)
        row["out_of"] += len(beyond)
        row |= {
            f"{task} in window": text(inside[-1]) if inside else None,
            f"{task} at longest": text(known[-1]),
            **({f"{task}{REACH}": far[model, task, name]} if (model, task, name) in far else {}),
            f"{task} best at": ", ".join(map(str, at)) or None,
        }
    return row


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the table for people, a table per model."""
    lost = {name: "none" for name in table.columns if name.endswith(REACH)}
    known = table.astype(object).where(table.notna(), None).fillna(lost)
    return {
        f"Summary, {model}": rows.drop(columns=["model", "places", "out_of"])
        for model, rows in known.groupby("model", sort=False)
    }


def words(table: pd.DataFrame) -> list[str]:
    """Say who leads most often, and who reads on without retrieving."""
    told = []
    for model, rows in table.groupby("model", sort=False):
        start = f"{model}: " if table["model"].nunique() > 1 else ""
        top = int(rows["places"].max())
        first = rows[rows["places"] == top]["scaling"].tolist()
        if top and top == rows["out_of"].max() and len(first) == len(rows) > 1:
            told.append(f"{start}Beyond the window no method is distinguished from the best.")
        elif top and len(rows) > 1:
            told.append(
                f"{start}Most often the best, or not distinguished from it, beyond the window: "
                f"{sentences.listed(first)}, in {top} of {rows['out_of'].max()} (task, length)."
            )
        if apart := [text for row in sentences.records(rows) if (text := uneven(row))]:
            told.append(f"{start}Reach differs by task: {'; '.join(apart[:MOST])}.")
    return told
