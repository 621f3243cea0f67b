"""The methods of every length by their scores, and which are distinguished from the best."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.stats.cells import cells
from harness.reports.stats.family import Family, families
from harness.reports.stats.measure import Measure
from harness.reports.stats.needed import negligible
from harness.reports.stats.once import once

Row = dict[str, Any]
COPIED = ("model", "task", "metric", "trained_length", "length", "relative_length")


@once
def ranking(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task and length with the best score and what it leads by.

    ``tied`` are the methods that the samples do not distinguish from the best, by probabilities
    corrected for all pairs at a length together (Holm), and so for the choice of the best.
    ``difference`` is the best less the runner-up, relative for perplexity. Several names are a
    list, as a name may be any text. Models of other windows that were ranked together have neither
    trained nor relative length.
    """
    rows = []
    table = cells(frame)
    for (model, task, length), of in families(frame).items():
        here = (table["model"] == model) & (table["task"] == task) & (table["length"] == length)
        known = table[here].dropna(subset="score")
        windows = known["trained_length"].nunique() > 1
        facts = known.iloc[0].drop(["trained_length", "relative_length"] if windows else [])
        rows.append(_row(facts, of, of.how))
    if not rows:
        message = "no scores to choose by"
        raise ValueError(message)
    return pd.DataFrame(rows).astype({"trained_length": "Int64", "relative_length": float})


def _row(facts: pd.Series[Any], of: Family, how: Measure) -> Row:
    """Rank the methods of one length on the units they share."""
    sign = 1 if how.lower else -1
    order = sorted(of.of, key=lambda name: sign * of.score(name).score)
    best, runner = order[0], order[1] if len(order) > 1 else None
    level = [other for other in order[1:] if of.verdict(other, best) != "worse"]
    first, second = of.score(best), of.score(runner) if runner else None
    return {
        **{name: facts.get(name) for name in COPIED},
        "measure": how.name, "better": "lower" if how.lower else "higher", "units": how.units,
        "best": best, "same": of.groups[best] or None,
        "score": first.score, "low": first.low, "high": first.high, "n": of.n, "asked": of.asked,
        "status": of.status(best), "runner_up": runner,
        **{f"runner_up_{name}": getattr(second, name, None) for name in ("score", "low", "high")},
        "relative": how.relative,
        **_gap(of, best, runner),
        "tied": [name for one in level for name in (one, *of.groups[one])] or None,
        "needed": [
            text for one in level for text in [_needed(of, best, one)] * (1 + len(of.groups[one]))
        ] or None,
        "lacking": [f"{name} {of.own[name]}" for name in of.of if of.own[name] < of.asked] or None,
        "apart": [f"{name} {of.own[name]}" for name in of.apart] or None,
        "failed": [
            f"{name} {len(units) if name in of.own else of.asked}"
            for name, units in of.lost.items() if units
        ] or None,
    }  # fmt: skip


def _gap(of: Family, best: str, runner: str | None) -> Row:
    less = of.between(runner, best) if runner else None
    found = less.turned() if less else None
    return {
        "difference": found.value if found else None,
        "difference_low": found.low if found else None,
        "difference_high": found.high if found else None,
        "p": of.p(str(runner), best),
        "better_on": (found.lower if of.how.lower else found.higher) if found else None,
        "enough": found.enough if found else None,
        "carrier": found.carrier if found else None,
    }


def _needed(of: Family, best: str, other: str) -> str:
    """Return how many units would distinguish the two, "negligible", or "?" where it is unknown."""
    found = of.between(other, best)
    if found is not None and negligible(found.value, of.how):
        return "negligible"
    return str(of.needed(other, best) or "?")


def choice(facts: list[Row]) -> list[str]:
    """Return the methods that are best, or not distinguished from it, in each of these rows."""
    allowed = [[row["best"], *(row["same"] or []), *(row["tied"] or [])] for row in facts]
    return [name for name in allowed[0] if all(name in names for names in allowed)]
