"""Models of several seeds less one of them, seed by seed: the mean, and how sure over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from harness.reports.stats.against import NO_DIFFERENCE
from harness.reports.stats.checkpoints import labels
from harness.reports.stats.family import FAILED
from harness.reports.stats.family import asked as units_asked
from harness.reports.stats.measure import Measure, measure
from harness.reports.stats.over_seeds import (
    COPIED,
    by_seed,
    difference,
    in_all,
    less,
    questions,
    seeded,
    student,
)
from harness.stats.baseline import ALPHA, holm

CELL = ["task", "length", "trained_length"]
FACTS = ("model", "scaling", "name", "task", *COPIED)


def paired_seeds(frame: pd.DataFrame, baseline: str | None, ending: str) -> pd.DataFrame:
    """Return a row per model, scaling, task and length with its difference from the baseline.

    ``p_all`` is corrected for all comparisons with the baseline at a length of a task, by Holm's
    method, because so few seeds cannot be resampled; methods that are the same measurement count
    once.
    ``failed`` is on how many units the better one failed that the other has, in the seeds of both:
    what is left favours it, so it is not called better, nor the other worse.
    Raises ValueError for a baseline that is not there, or alone.
    """
    named = seeded(frame, ending)
    every = labels(named)
    names = pd.Series([*zip(named["model"], named["scaling"], strict=True)], named.index).map(every)
    named = named.assign(name=names)
    baseline = baseline or str(names.iloc[0])
    if baseline not in every.values() or len(every) < 2:
        known = ", ".join(dict.fromkeys(every.values()))
        raise ValueError(
            f"nothing to compare with {baseline!r}: of several seeds there are {known}"
        )
    how = {str(task): _measure(rows) for task, rows in named.groupby("task", sort=False)}
    seeds = {name: set(of) for name, of in named.groupby("name")["seed"]}
    rows: list[dict[str, Any]] = []
    for (task, *_), samples in named.groupby(CELL, sort=False):
        cells = dict(tuple(samples.groupby("name", sort=False)))
        base = cells.pop(baseline, samples.iloc[:0])
        found = [_less(cell, base, how[str(task)], baseline) for cell in cells.values()]
        corrected = _corrected(cells.values(), [row["p"] for row in found])
        for row, p in zip(found, corrected, strict=True):
            asked = len(seeds[row["name"]] | seeds[baseline])
            rows.append({**row, "asked": asked, "p_all": p, "verdict": _verdict(row, p)})
    table = pd.DataFrame(rows)
    return table.assign(relative_length=table["length"] / table["trained_length"])


def _corrected(
    cells: Iterable[pd.DataFrame], probabilities: Sequence[float | None]
) -> list[float | None]:
    """Correct probabilities for their number (Holm); equal frequencies of a model count once."""
    firsts = [cell.iloc[0] for cell in cells]
    signs = [
        (row["name"],) if pd.isna(row["frequencies"]) else (row["model"], row["frequencies"])
        for row in firsts
    ]
    tests = list(zip(signs, probabilities, strict=True))
    once = list(dict.fromkeys(tests))
    found = dict(zip(once, holm([p for _, p in once]), strict=True))
    return [found[test] for test in tests]


def _measure(samples: pd.DataFrame) -> Measure:
    """Return how a task measures, read off the first model and seed that shows it."""
    for _, rows in samples.groupby(["name", "seed"], sort=False):
        found = measure(rows)
        if found.made != "unknown":
            break
    return found


def _less(cell: pd.DataFrame, base: pd.DataFrame, how: Measure, baseline: str) -> dict[str, Any]:
    """Compare the seeds that a cell and the baseline's have both, on the units that all share."""
    one, other = by_seed(cell), by_seed(base)
    seeds = [seed for seed in one if seed in other]
    facts = {name: cell[name].iloc[0] for name in FACTS if name in cell}
    row = {
        **facts, "measure": how.name, "units": how.units, "relative": how.relative,
        "better": "lower" if how.lower else "higher", "baseline": baseline,
    }  # fmt: skip
    every = [of[seed] for seed in seeds for of in (one, other)]
    shared = in_all(every)
    same = {questions(of[of["seed"] == seed]) for of in (cell, base) for seed in seeds}
    if len(seeds) < 2 or not shared or len(same) > 1 or how.made == "unknown":
        return {**row, "seeds": 0, "n": 0, "difference": None, "p": None}
    apart = less(one, other, shared, how)
    low, high, p = student(apart)
    better = (fmean(apart) < 0) == how.lower
    most = max(units_asked(rows) for _, rows in cell.groupby("seed", sort=False))
    return {
        **row, "seeds": len(seeds), "n": len(shared), "of": most,
        "difference": difference(fmean(apart), how),
        "low": difference(low, how), "high": difference(high, how),
        "better_with": sum(value < 0 if how.lower else value > 0 for value in apart), "p": p,
        "single": tuple(difference(value, how) for value in apart),
        "failed": _failed(cell, base) if better else _failed(base, cell),
    }  # fmt: skip


def _failed(one: pd.DataFrame, other: pd.DataFrame) -> int:
    """Return on how many units the one failed and the other did not, in the seeds of both."""
    mine, theirs = (
        set(zip(rows["seed"], rows["unit"].astype(str), strict=True))
        for rows in (of[of["status"].isin(FAILED)] for of in (one, other))
    )
    return sum(seed in set(other["seed"]) for seed, _ in mine - theirs)


def _verdict(row: dict[str, Any], p: float | None) -> str:
    """Return better, worse, no significant difference or not compared."""
    if row["difference"] is None:
        return "not compared"
    if p is None or p >= ALPHA or row["failed"]:
        return NO_DIFFERENCE
    return "better" if (row["difference"] < 0) == (row["better"] == "lower") else "worse"
