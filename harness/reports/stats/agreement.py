"""Pair the perplexity of methods with what they retrieve, and correlate the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import ndtri

from harness.reports.stats.cells import CELL, cells
from harness.reports.stats.key_tokens import measured
from harness.reports.stats.measure import LOWER, SHARES
from tasks._intervals import CONFIDENCE

METHODS = 5  # the fewest of which a rank correlation says anything
ON = ["model", "scaling", "length"]
NONE = (
    "nothing to set against each other: it needs perplexity by the protocol tail and a task of "
    "retrieval of one model at a length beyond the trained window, of two methods that differ"
)


def pairs(
    frame: pd.DataFrame, drawn: Callable[[pd.DataFrame], pd.DataFrame], evaluator: str
) -> pd.DataFrame:
    """Return a row per task and kind of perplexity, of retrieval, length and method with both.

    ``score``, ``low`` and ``high`` are the perplexity's, ``kept``, ``kept_low`` and ``kept_high``
    what is retrieved. ``drawn`` names the methods and leaves out those that coincide at all
    lengths; those that do at one length have equal ``frequencies`` there. Raises ValueError where
    no two methods have both.
    """
    table = drawn(cells(frame)).dropna(subset="score")
    table["frequencies"] = table["frequencies"].fillna(table["scaling"])
    table = table[table["length"] > table["trained_length"]]
    lower = table["metric"].isin(LOWER)
    tails = table[lower & table["task"].isin(_tail(frame))]
    kept = table[table["metric"].isin(SHARES)]
    names = {"score": "kept", "low": "kept_low", "high": "kept_high"}
    kept = kept[[*ON, "task", "metric", *names]].rename(columns=names)
    if tails.empty or kept.empty:
        raise ValueError(NONE)
    rows = []
    for kind, known in (
        ("Perplexity", tails),
        ("Key perplexity", _keys(frame, tails, drawn, evaluator)),
    ):
        told = ["score", "low", "high", "trained_length", "frequencies"]
        known = known[[*ON, "task", *told]].rename(columns={"task": "of"})
        both = known.merge(kept, on=ON)
        several = tails["task"].nunique() > 1  # of each task a panel: scores are of other targets
        against = both["of"] + " and " + both["task"] if several else both["task"]
        rows.append(both.assign(kind=kind, title=both["model"] + ", " + against))
    found = pd.concat(rows, ignore_index=True)
    count = found.groupby(["kind", "title", "length"])["frequencies"].transform("nunique")
    found = found[count > 1]
    if found.empty:
        raise ValueError(NONE)
    order = pd.factorize(found["kind"] + found["title"])[0]
    return found.assign(order=order).sort_values(["order", "length"], kind="stable")


def agreement(rows: pd.DataFrame) -> str:
    """Return "ρ = -0.71 [-0.93, -0.12]", the rank correlation, or why there is none.

    Methods of equal frequencies are one measurement, and count once.
    """
    rows = rows.drop_duplicates("frequencies")
    if len(rows) < METHODS or rows["score"].nunique() == 1 or rows["kept"].nunique() == 1:
        return "no ρ: too few methods" if len(rows) < METHODS else "no ρ: all equal"
    ranks = rows[["score", "kept"]].rank()
    rho = float(np.corrcoef(ranks, rowvar=False)[1, 0])
    if math.isclose(abs(rho), 1):
        return f"ρ = {rho:.2f}"  # Fisher's z has no spread to give here
    low, high = interval(rho, len(rows))
    return f"ρ = {rho:.2f} [{low:.2f}, {high:.2f}]"


def interval(rho: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's correlation of n pairs (Bonett and Wright 2000).

    Fisher's z with the variance (1 + rho^2 / 2) / (n - 3).
    """
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)


def _tail(frame: pd.DataFrame) -> list[str]:
    """Return the tasks that score the same last tokens at every length."""
    if "protocol" not in frame:
        return []
    return list(frame.loc[frame["protocol"] == "tail", "task"].unique())


def _keys(
    frame: pd.DataFrame,
    tails: pd.DataFrame,
    drawn: Callable[[pd.DataFrame], pd.DataFrame],
    evaluator: str,
) -> pd.DataFrame:
    """Return the same cells with the perplexity of their key tokens; none where it is unknown."""
    try:
        found = measured(frame, evaluator)
    except ValueError:  # key_tokens says why
        return tails.iloc[:0]
    scores = drawn(found.reset_index())[[*CELL, "score", "low", "high"]]
    plain = tails.drop(columns=["score", "low", "high"])
    return plain.merge(scores, on=CELL).dropna(subset="score")
