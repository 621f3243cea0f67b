"""The longest length to which a method keeps the model's own retrieval or tail perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ropewalk.harness.stats.cells import cell_scores, records
from ropewalk.harness.stats.decision import FAILED, needed_of
from ropewalk.harness.stats.decision import KEPT as KEPT_UNITS
from ropewalk.harness.stats.measure import Measure, Units, difference, measure, units

KEPT = 0.85  # of the model's own score inside the window (NoLiMa, arXiv:2502.05167)
ROUNDING = 1e-12  # 119 of 250 are 85 % of 140, and in floats less
ENDS = ("effective_length", "effective_low", "effective_high")
Reach = dict[str, int | None]


def effective_lengths(frame: pd.DataFrame, kept: float = KEPT) -> dict[tuple[str, str, str], Reach]:
    """Return the effective length of every model, task and scaling, and both ends of its interval.

    A length counts if all measured lengths up to it hold. If a higher score is better, a length
    holds while ``kept`` of the model's own score is left. That score is the one of its unscaled
    embedding at the shortest length, which must be inside the window. ``effective_low`` is the
    length up to which the score's whole interval lies there, and ``effective_high`` the length up
    to which any of it does.

    Perplexity holds while it is no higher than at the longest length inside the window, document by
    document. ``effective_low`` is the length up to which that is significant, and
    ``effective_high`` the one up to which it is not refuted. 0 is neither inside the window nor at
    the first length beyond. What has no score inside the window, and what scores other targets at
    every length, is absent.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept:g} is invalid: it is a share above 0 and at most 1, as 0.85")
    result: dict[tuple[str, str, str], Reach] = {}
    table = cell_scores(frame)
    for (model, task), samples in needed_of(frame).groupby(["model", "task"], sort=False):
        how = measure(samples)
        here = table[(table["model"] == model) & (table["task"] == task)]
        baseline = own_score(here, -1 if how.lower else 0)
        judged = how.across and how.form != "unknown" and how.metric != "window_kl"
        if baseline is None or not judged or baseline["score"] <= 0:
            continue
        paired = samples.groupby(["scaling", "length"]) if how.lower else ()
        of = {key: units(rows) for key, rows in paired}
        beyond = here[here["length"] >= baseline["length"]]
        for scaling, lengths in beyond.groupby("scaling", sort=False):
            furthest: Reach = dict.fromkeys(ENDS, 0)
            open_ends = set(ENDS)
            for cell in records(lengths):
                holds = _holds(cell, of, baseline, how, kept)
                held = {end for end, ok in zip(ENDS, holds, strict=True) if ok}
                if cell["length"] > baseline["length"]:
                    held = open_ends = open_ends & held
                furthest |= dict.fromkeys(held, int(cell["length"]))
            result[str(model), str(task), str(scaling)] = furthest
    return result


def own_score(cells: pd.DataFrame, place: int) -> pd.Series[Any] | None:
    """Return the cell of the unscaled model inside the window, at a place among its lengths."""
    inside = cells[(cells["length"] <= cells["trained_length"]) & cells["score"].notna()]
    plain = (inside[inside["scaling"] == name] for name in ("none", "native"))
    return next((rows.iloc[place] for rows in plain if len(rows)), None)


def _holds(
    cell: dict[str, Any],
    of: Mapping[Any, Units],
    baseline: pd.Series[Any],
    how: Measure,
    kept: float,
) -> tuple[bool, bool, bool]:
    """Return whether a length holds, by its score and by both ends of its interval.

    If the method failed on some units, the length does not hold by the lower end. With too few
    units, or with none, it holds by the upper end alone, unless the method failed. Units that ran
    out of memory or were not measured prove nothing.
    """
    failed = any(status in str(cell["status"]) for status in FAILED)
    if cell["score"] is None:
        return False, False, not failed
    if (cell["length"], cell["frequencies"]) == (baseline["length"], baseline["frequencies"]):
        return True, True, True
    value, low, high, n = cell["score"], cell["low"], cell["high"], int(cell["n"])
    least = kept * float(baseline["score"]) - ROUNDING
    if how.lower:
        there, inside = ((row["scaling"], row["length"]) for row in (cell, baseline))
        result = difference(of[there], of[inside], how)
        least, value, low, high, n = -ROUNDING, -1.0, None, None, 0
        if result is not None:
            low, high = (None if end is None else -end for end in (result.high, result.low))
            value, n = -result.value, result.n
    if n < KEPT_UNITS * int(baseline["n"]):
        return False, False, True
    return (
        value >= least,
        low is not None and low >= least and not failed,
        high is None or high >= least,  # no interval proves nothing
    )
