"""Average what tasks of retrieval and their parts scored, as RULER does."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from harness.reports.stats.measure import SHARES
from tasks._intervals import proportion

MEAN = "mean"
NEEDED = (
    "model", "task", "scaling", "length", "trained_length", "metric", "status", "value", "weight",
    "part",
)  # fmt: skip
NONE = "no task of retrieval was measured; add niah, ruler or passkey to the sweep"


def parts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, scaling, length and part, and one for the mean of all parts.

    A part is a task, or what a task names so, with the Wilson interval of its trials. The mean
    counts every part the same, and is empty where one has no score; its interval is made of those
    of the parts (MOVER, Zou and Donner 2008). Raises ValueError where nothing was retrieved.
    """
    known = frame[[name for name in NEEDED if name in frame]]
    known = known[known["metric"].isin(SHARES)]
    if known.empty:
        raise ValueError(NONE)
    named = known["part"].fillna(known["task"]) if "part" in known else known["task"]
    rows: list[dict[str, Any]] = []
    cell = ["model", "scaling", "length", "trained_length"]
    for place, samples in known.assign(part=named).groupby(cell, sort=False):
        head = dict(zip(cell, place, strict=True))
        here = [
            {**head, "part": part, **_score(trials)}
            for part, trials in samples.groupby("part", sort=False)
        ]
        rows += [{**head, "part": MEAN, **mean(here)}, *here]
    table = pd.DataFrame(rows).astype({"score": float, "low": float, "high": float})
    return table.assign(relative_length=table["length"] / table["trained_length"])


def _score(trials: pd.DataFrame) -> dict[str, Any]:
    """Return the share of one part; None where a trial failed, which no share may leave out."""
    asked = len(trials)
    known = trials[trials["status"] == "ok"]
    if len(known) < asked:
        status = trials.loc[trials["status"] != "ok", "status"].iloc[0]
        return {"score": None, "low": None, "high": None, "n": len(known), "status": status}
    hits = float((known["value"] / known["weight"]).sum())
    low, high = proportion(hits, asked)
    return {"score": hits / asked, "low": low, "high": high, "n": asked, "status": "ok"}


def mean(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of parts and its interval: distances to the ends add up as squares do."""
    lacking = [row for row in scores if row["score"] is None]
    n = sum(row["n"] for row in scores)
    if lacking:
        return {"score": None, "low": None, "high": None, "n": n, "status": lacking[0]["status"]}
    count = len(scores)
    value = math.fsum(row["score"] for row in scores) / count
    below, above = (
        math.sqrt(sum((row["score"] - row[end]) ** 2 for row in scores)) / count
        for end in ("low", "high")
    )
    return {"score": value, "low": value - below, "high": value + above, "n": n, "status": "ok"}


def effective(rows: pd.DataFrame, threshold: float) -> int | None:
    """Return the longest length that, with all shorter ones, reaches a score; None for none."""
    found = None
    for row in rows.sort_values("length").to_dict("records"):
        if not row["score"] >= threshold:
            break
        found = int(row["length"])
    return found
