"""The methods of every length in order of their scores, and which are told from the best."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pandas as pd

from harness.reports._cells import cells
from harness.reports._measure import Measure, difference, distinct, measure, units
from harness.reports._paired import SURE, Difference, holm

Row = dict[str, Any]


def ranking(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task and length with the best score and what it leads by.

    ``tied`` are the methods that the samples cannot tell from the best: the probabilities of all
    pairs at a length are corrected together (Holm), so that the choice of the best is paid for.
    ``difference`` is the best less the runner-up, relative for perplexity.
    """
    rows = []
    table = cells(frame)
    for (model, task), samples in frame.groupby(["model", "task"], sort=False):
        how = measure(samples)
        here = table[(table["model"] == model) & (table["task"] == task)]
        for length, cell in here.dropna(subset="score").groupby("length"):
            at_length = samples[samples["length"] == length]
            rows.append(_row(cell.set_index("scaling"), at_length, how))
    if not rows:
        message = "no scores to choose by"
        raise ValueError(message)
    return pd.DataFrame(rows)


def _row(known: pd.DataFrame, samples: pd.DataFrame, how: Measure) -> Row:
    """Rank the methods of one length and compare them all with each other."""
    groups = distinct(samples[samples["scaling"].isin(known.index)])
    ranked = known.loc[list(groups)].sort_values("score", ascending=how.lower, kind="stable")
    order = [str(name) for name in ranked.index]
    of = {name: units(samples[samples["scaling"] == name]) for name in order}
    pairs = list(combinations(order, 2))
    found = {pair: difference(of[pair[0]], of[pair[1]], how) for pair in pairs}
    sure = dict(zip(pairs, holm([d.p if d else None for d in found.values()]), strict=True))
    best, runner = order[0], order[1] if len(order) > 1 else None
    level = [other for other in order[1:] if not _below(sure[best, other])]
    tied = [name for leader in level for name in (leader, *groups[leader])]
    facts = ranked.loc[best]
    told = ("model", "task", "metric", "trained_length", "length", "stretch")
    return {
        **{name: facts[name] for name in told},
        "measure": how.name, "better": "lower" if how.lower else "higher", "units": how.units,
        "best": best, "same": ", ".join(groups[best]) or None,
        **{name: facts[name] for name in ("score", "low", "high", "n")},
        "runner_up": runner,
        **{f"runner_up_{name}": ranked.loc[runner, name] if runner else None
           for name in ("score", "low", "high")},
        "relative": how.relative,
        **_gap(found[best, runner] if runner else None, sure.get((best, str(runner)))),
        "tied": ", ".join(tied) or None,
    }  # fmt: skip


def _below(p: float | None) -> bool:
    return p is not None and p < SURE


def _gap(found: Difference | None, p: float | None) -> Row:
    return {
        "difference": found.value if found else None,
        "difference_low": found.low if found else None,
        "difference_high": found.high if found else None,
        "p": p,
        "needed": found.needed if found else None,
    }


def choice(facts: list[Row]) -> list[str]:
    """Return the methods that every one of these rows calls best, or cannot tell from it."""
    allowed = [
        [row["best"], *(row["same"] or "").split(", "), *(row["tied"] or "").split(", ")]
        for row in facts
    ]
    return [name for name in allowed[0] if name and all(name in names for names in allowed)]
