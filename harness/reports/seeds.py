"""Mean over models that differ by their seed, with intervals for random seeds and documents."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from ropewalk.harness.reports._text import across, change, text
from ropewalk.harness.stats.cells import CELL, labels, separated
from ropewalk.harness.stats.decision import requested_units
from ropewalk.harness.stats.measure import Measure, Units, differences, measure, scored, units
from ropewalk.tasks._intervals import CONFIDENCE

COPIED = ("metric", "trained_length", "protocol")
ENDING = r"-seed\d+$"  # of the name of a model that is one seed
ROUNDING = 1e-12  # numbers that are nearer than this are equal
NONE = (
    "no model was trained with several seeds: their names must differ only by -seed1, -seed2, … at "
    "the end, and their windows must be equal"
)
NOTES = (
    "Means of seeds. Intervals are for random seeds and random documents or trials, and are "
    "conservative. Where all seeds are equal, they are over documents or trials alone.",
    "A change is the difference from the model's own score at the trained window under the same "
    "scaling. Changes of perplexity are relative, and “pp” means percentage points.",
)


def make(frame: pd.DataFrame, *, ending: str = ENDING) -> pd.DataFrame:
    """Return one row per model without its ``ending``, a seed, and per task, scaling and length.

    - ``score`` is the mean of the seeds, for perplexity the geometric mean, and ``single`` has the
      scores of the seeds in the order of their names.
    - ``low`` and ``high`` are its 95 % interval for random seeds and random documents or trials.
    - ``change`` is the mean of the seeds' changes from their own scores at the trained window under
      the same scaling, with such an interval. It is relative for perplexity, and given only for
      tasks whose scores of different lengths may be compared.

    A cell without one of the seeds has no score. A model without an ending is no seed, and neither
    are models of different windows. Raises ValueError if no model has two seeds.
    """
    named = _seeded(frame, ending)
    counts = named.groupby("model")["seed"].nunique().to_dict()
    first = named[named["seed"] == named.groupby("model")["seed"].transform("first")]
    how = {key: measure(rows) for key, rows in first.groupby(["model", "task"], sort=False)}
    cells = dict(iter(named.groupby(CELL, sort=False)))
    known = {
        key: [of for _, rows in cell.groupby("seed") if (of := units(rows))]
        for key, cell in cells.items()
    }
    rows = []
    for (model, task, scaling, length), cell in cells.items():
        measured, trained = how[model, task], cell["trained_length"].iloc[0]
        every = known[model, task, scaling, length]
        row = {name: cell[name].iloc[0] for name in COPIED if name in cell}
        row |= {"seeds": counts[model], **_averaged(cell, every, measured, counts[model])}
        if "score" in row and measured.across and length != trained:
            window = known.get((model, task, scaling, trained), [])
            row |= _change(every, window, measured)
        rows.append(dict(zip(CELL, (model, task, scaling, length), strict=True)) | row)
    table = pd.DataFrame(rows)
    return table.assign(relative_length=table["length"] / table["trained_length"])


def all_seeds(frame: pd.DataFrame, ending: str) -> bool:
    """Return whether every model is one of several seeds."""
    try:
        return len(_seeded(frame, ending)) == len(frame)
    except ValueError:
        return False


def _seeded(frame: pd.DataFrame, ending: str) -> pd.DataFrame:
    frame = separated(frame)
    whole = frame["model"].str.replace(ending, "", regex=True)
    named = frame.assign(seed=frame["model"], model=whole)[whole != frame["model"]]
    models = named.groupby("model")
    several = (models["seed"].nunique() > 1) & (models["trained_length"].nunique() == 1)
    named = named[named["model"].map(several)]
    if named.empty:
        raise ValueError(NONE)
    return named


def _averaged(
    cell: pd.DataFrame, every: Sequence[Units], how: Measure, requested: int
) -> dict[str, Any]:
    """Return the mean of the seeds of one cell on the units that all have with the same weight."""
    shared = _in_all(every)
    # Trials of two sweeps may share names.
    if "question" in cell and cell.groupby("seed")["question"].agg(frozenset).nunique() != 1:
        return {"n": 0, "status": "other questions"}
    if how.form == "unknown" or len(every) < requested or not shared:
        bad = [status for status in cell["status"].unique() if status != "ok"]
        return {"n": len(shared), "status": ", ".join(bad) or "missing"}
    most = max(requested_units(rows) for _, rows in cell.groupby("seed", sort=False))
    score, low, high = mean_over_seeds(every, shared, how)
    return {
        "score": score, "low": low, "high": high, "single": tuple(_scores(every, shared, how)),
        "n": len(shared), "status": "ok" if len(shared) == most else f"{len(shared)} of {most} ok",
    }  # fmt: skip


def _change(every: Sequence[Units], window: Sequence[Units], how: Measure) -> dict[str, Any]:
    """Return the mean change of the seeds from their scores at the window; empty if any lacks."""
    shared = _in_all([*every, *window])
    if len(every) != len(window) or any(of.keys() != shared.keys() for of in (*every, *window)):
        return {}
    now, before = (_scores(part, shared, how) for part in (every, window))
    pairs = zip(now, before, strict=True)
    logs = how.form == "exp"
    changes = [math.log(a) - math.log(b) if logs else a - b for a, b in pairs]
    (documents,) = differences([_means(every, shared)], _means(window, shared), _linear(how))
    mean = fmean(changes)
    ends = mean, *combined(mean, documents.low, documents.high, changes)
    values = [None if end is None else how.shown(end) for end in ends]
    if how.share:
        values = [None if end is None else max(-1.0, min(1.0, end)) for end in values]
    names = "change", "change_low", "change_high"
    return {"relative": how.relative, **dict(zip(names, values, strict=True))}


def mean_over_seeds(
    every: Collection[Units], shared: Mapping[str, float], how: Measure
) -> tuple[float, float | None, float | None]:
    """Return the mean score of seeds with its interval for random seeds and random units.

    The mean of perplexities is geometric. ``shared`` are the weights of the units that count; all
    seeds have them with these weights.
    """
    linear, mean = _linear(how), _means(every, shared)
    result, score = scored(mean, linear), scored(mean, how).value
    single = _scores(every, shared, linear)
    low, high = combined(result.value, result.low, result.high, single)
    if low is None or high is None:
        return score, None, None
    if how.form == "exp":
        return score, math.exp(min(low, 700.0)), math.exp(min(high, 700.0))
    return score, *((max(low, 0.0), min(high, 1.0)) if how.share else (low, high))


def combined(
    mean: float, low: float | None, high: float | None, seeds: Sequence[float]
) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a mean for random seeds and random documents or trials.

    The distances from the mean to the ends of both intervals add up as squares do, each side by
    itself (MOVER; Zou and Donner, Statistics in Medicine 27, 2008, doi:10.1002/sim.3095), as for
    the sum of two independent effects. Variance that one seed shows on one document alone is part
    of both and counts twice, so the result is conservative and never narrower than either.

    The mean is in a unit in which effects add up: nats for perplexity, else that of the score.
    ``low`` and ``high`` are its interval over documents or trials with these seeds; ``seeds`` are
    their own values, for Student's interval. Seeds without a spread add nothing.
    """
    alike = math.isclose(min(seeds), max(seeds), rel_tol=ROUNDING, abs_tol=ROUNDING)
    if low is None or high is None or alike:
        return low, high
    half = float(stdtrit(len(seeds) - 1, (1 + CONFIDENCE) / 2)) * stdev(seeds) / len(seeds) ** 0.5
    least, most = fmean(seeds) - half, fmean(seeds) + half
    return mean - math.hypot(mean - low, mean - least), mean + math.hypot(high - mean, most - mean)


def _in_all(every: Sequence[Units]) -> dict[str, float]:
    return {
        name: weight
        for name, (_, weight) in (every[0] if every else {}).items()
        if all(of.get(name, (0, None))[1] == weight for of in every)
    }


def _scores(every: Collection[Units], shared: Collection[str], how: Measure) -> list[float]:
    return [scored({name: of[name] for name in shared}, how).value for of in every]


def _means(every: Collection[Units], shared: Mapping[str, float]) -> Units:
    return {name: (fmean(of[name][0] for of in every), shared[name]) for name in shared}


def _linear(how: Measure) -> Measure:
    """Return the measure whose effects add up: of perplexity the mean loss in nats."""
    return replace(how, form="mean") if how.form == "exp" else how


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table of means per task by length, and one of changes."""
    shown = table.assign(scaling=labels(table), model="mean of the seeds")
    past = shown[shown["length"] > shown["trained_length"]].assign(model="change from the window")
    tables = across(shown, text)
    if "change" in past:
        tables |= across(past[past["change"].notna()], change)
    return {title: tables[title].rename(columns={"scaling": "model"}) for title in sorted(tables)}


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the intervals hold for."""
    return [*NOTES[: 1 + ("change" in table)]]
