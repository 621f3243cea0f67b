"""The mean of one cell over seeds, with an interval for random seeds and random units."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from re import finditer
from statistics import fmean, stdev
from typing import Any

import pandas as pd
from scipy.special import stdtr, stdtrit

from ropewalk.harness.stats.cells import CELL, in_option
from ropewalk.harness.stats.checkpoints import labels, separated
from ropewalk.harness.stats.decision import FAILED, requested_units
from ropewalk.harness.stats.measure import Measure, Units, differences, measure, scored, units
from ropewalk.harness.stats.paired import ALPHA, NO_DIFFERENCE, holm_once
from ropewalk.tasks._intervals import CONFIDENCE

Interval = tuple[float | None, float | None]  # lower and upper end; None where there is none
COPIED = ("metric", "trained_length", "length", "protocol")
ENDING = r"-seed\d+$"  # of the name of a model that is one seed
ROUNDING = 1e-12  # numbers that are nearer than this are equal
NONE = (
    "no model was trained with several seeds: their names must differ only by -seed1, -seed2, … at "
    "the end, and their windows must be equal"
)


def of_seeds(frame: pd.DataFrame, ending: str) -> pd.DataFrame:
    """Return one row per model without its ``ending``, a seed, and per task, scaling and length.

    ``single`` has the scores of the seeds, in the order of their names; ``questions`` is equal
    where models have the same questions. Raises ValueError where no model has two seeds of one
    window.
    """
    named = seeded(frame, ending)
    counts = named.groupby("model")["seed"].nunique().to_dict()
    how = {
        key: measure(rows[rows["seed"] == rows["seed"].iloc[0]])
        for key, rows in named.groupby(["model", "task"], sort=False)
    }
    cells = dict(iter(named.groupby(CELL, sort=False)))
    every = {key: by_seed(cell) for key, cell in cells.items()}
    rows = []
    for (*of, length), cell in cells.items():
        measured, trained = how[*of[:2]], cell["trained_length"].iloc[0]
        own = every[*of, length]
        row = averaged(cell, [*own.values()], measured, counts[of[0]])
        if "score" in row and measured.across and length != trained:
            row |= from_window(own, every.get((*of, trained), {}), measured)
        rows.append(dict(zip(CELL, (*of, length), strict=True)) | row)
    table = pd.DataFrame(rows)
    return table.assign(relative_length=table["length"] / table["trained_length"])


def over_seeds(frame: pd.DataFrame, requested: bool | None, ending: str) -> bool:
    """Return whether models are averaged over seeds: by default where each is one of several."""
    if requested is not None:
        return requested
    try:
        return len(seeded(frame, ending)) == len(frame)
    except ValueError:
        return False


def seeded(frame: pd.DataFrame, ending: str) -> pd.DataFrame:
    """Return the samples of models of several seeds, under the model's name without its seed.

    ``seed`` is what the ``ending`` finds in a name. Raises ValueError where no model has two seeds
    of one window.
    """
    frame = separated(frame)
    seeds = {
        name: "".join(match.group() for match in finditer(ending, name))
        for name in frame["model"].unique()
    }
    whole = frame["model"].str.replace(ending, "", regex=True)
    named = frame.assign(seed=frame["model"].map(seeds), model=whole)[whole != frame["model"]]
    models = named.groupby("model")
    several = (models["seed"].nunique() > 1) & (models["trained_length"].nunique() == 1)
    named = named[named["model"].map(several)]
    if named.empty:
        raise ValueError(NONE)
    return named


def averaged(
    cell: pd.DataFrame, every: Sequence[Units], how: Measure, requested: int
) -> dict[str, Any]:
    """Return the mean of the seeds of one cell, with its interval for random seeds and units.

    ``cell`` has the samples of all seeds, named in its column ``seed``, and ``every`` the units of
    each; ``requested`` seeds must be there, with the same questions. The units are those that all
    have with the same weight.
    """
    row = {
        **{name: cell[name].iloc[0] for name in COPIED if name in cell},
        "measure": how.name,
        "seeds": requested,
        "questions": questions(cell),
    }
    shared = in_all(every)
    # Trials of two sweeps may share names.
    if "question" in cell and cell.groupby("seed")["question"].agg(frozenset).nunique() != 1:
        return {**row, "lower": how.lower, "n": 0, "status": "other questions"}
    if how.form == "unknown" or len(every) < requested or not shared:
        bad = [status for status in cell["status"].unique() if status != "ok"]
        return {**row, "lower": how.lower, "n": len(shared), "status": ", ".join(bad) or "missing"}
    most = max(requested_units(rows) for _, rows in cell.groupby("seed", sort=False))
    single = [scored({name: of[name] for name in shared}, how).score for of in every]
    score, low, high = mean_over_seeds(every, shared, how)
    return {
        **row, "lower": how.lower, "score": score, "low": low, "high": high,
        "least": min(single), "most": max(single), "single": tuple(single), "n": len(shared),
        "status": "ok" if len(shared) == most else f"{len(shared)} of {most} ok",
    }  # fmt: skip


def from_window(
    one: Mapping[str, Units], other: Mapping[str, Units], how: Measure
) -> dict[str, Any]:
    """Return the mean change of the seeds from their scores at the trained window, with interval.

    ``one`` and ``other`` have the units of each seed at a length and at the window. Perplexity
    changes relatively. Empty where a seed or document is missing at either length.
    """
    every = [*one.values(), *other.values()]
    shared = in_all(every)
    if one.keys() != other.keys() or any(of.keys() != shared.keys() for of in every):
        return {}
    changes = less(one, other, shared, how)
    before, after = (_means(of.values(), shared) for of in (other, one))
    (documents,) = differences([after], before, _linear(how))  # paired
    low, high = combined(fmean(changes), (documents.low, documents.high), student(changes)[:2])
    return {
        "relative": how.relative, "change": difference(fmean(changes), how),
        "low_change": difference(low, how), "high_change": difference(high, how),
    }  # fmt: skip


def by_seed(cell: pd.DataFrame) -> dict[str, Units]:
    """Return the units of every seed that has some, in the order of their names."""
    every = {str(seed): units(rows) for seed, rows in cell.groupby("seed")}
    return {seed: of for seed, of in every.items() if of}


def less(
    one: Mapping[str, Units], other: Mapping[str, Units], shared: Iterable[str], how: Measure
) -> list[float]:
    """Return each seed's score of the shared units less the other's, of perplexity the log."""

    def score(of: Units) -> float:
        value = scored({name: of[name] for name in shared}, how).score
        return math.log(value) if how.form == "exp" else value

    return [score(of) - score(other[seed]) for seed, of in one.items() if seed in other]


def difference(value: float | None, how: Measure) -> float | None:
    """Return a difference as reports have it: of perplexity relative, of shares 1 at most."""
    if value is None:
        return None
    shown = how.shown(value)
    return max(-1.0, min(1.0, shown)) if how.share else shown


def in_all(every: Sequence[Units]) -> dict[str, float]:
    """Return the weights of the units that all have with the same weight."""
    first = every[0] if every else {}
    return {
        name: weight
        for name, (_, weight) in first.items()
        if all(of.get(name, (0, None))[1] == weight for of in every)
    }


def questions(cell: pd.DataFrame) -> str:
    """Return a hash of the questions: scores of other tokens or trials are not compared."""
    named = sorted(set(map(str, cell["question"]))) if "question" in cell else []
    return sha256("\n".join(named).encode()).hexdigest()[:16]


def mean_over_seeds(
    every: Collection[Units], shared: Mapping[str, float], how: Measure
) -> tuple[float, float | None, float | None]:
    """Return the mean score of seeds with its interval for random seeds and random units.

    Args:
        every: the units of each seed.
        shared: the weights of the units that count; all seeds have them with these weights.
        how: how the task measures. The mean of perplexities is geometric.
    """
    linear, mean = _linear(how), _means(every, shared)
    single = [scored({name: of[name] for name in shared}, linear).score for of in every]
    result = scored(mean, linear)
    low, high = combined(result.score, (result.low, result.high), student(single)[:2])
    score = scored(mean, how).score
    if low is None or high is None:
        return score, None, None
    if how.form == "exp":
        return score, math.exp(min(low, 700.0)), math.exp(min(high, 700.0))
    return score, *((max(low, 0.0), min(high, 1.0)) if how.share else (low, high))


def combined(mean: float, documents: Interval, seeds: Interval) -> Interval:
    """Return the 95 % interval of a mean for random seeds and random documents or trials.

    The distances from the mean to the ends add up as squares do, each side by itself (MOVER; Zou
    and Donner, Statistics in Medicine 27, 2008, doi:10.1002/sim.3095), as for the sum of two
    independent effects. Variance that one seed shows on one document alone is part of both
    intervals and counts twice, so the result is conservative and never narrower than either.

    Args:
        mean: in a unit in which effects add up: nats for perplexity, else that of the score.
        documents: its interval over documents or trials, with these seeds, in the same unit.
            Fewer than 3 documents have none, and neither has the result then.
        seeds: its interval over seeds, with these documents. Seeds that show no spread have none;
            then the result is ``documents``.
    """
    (low, high), (least, most) = documents, seeds
    if low is None or high is None or least is None or most is None:
        return documents
    return mean - math.hypot(mean - low, mean - least), mean + math.hypot(high - mean, most - mean)


def _means(every: Collection[Units], shared: Mapping[str, float]) -> Units:
    """Return every unit's mean over the seeds."""
    return {name: (fmean(of[name][0] for of in every), shared[name]) for name in shared}


def _linear(how: Measure) -> Measure:
    """Return the measure whose effects add up: of perplexity the mean loss in nats."""
    return replace(how, form="mean") if how.form == "exp" else how


def student(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the 95 % interval of a mean by Student's t, and its probability were the mean 0.

    All are None for fewer than two values, and for those equal up to rounding, as 0.96 - 0.92 and
    0.04 are, which show no spread.
    """
    least, most = min(values, default=0.0), max(values, default=0.0)
    if len(values) < 2 or math.isclose(least, most, rel_tol=ROUNDING, abs_tol=ROUNDING):
        return None, None, None
    mean, degrees = fmean(values), len(values) - 1
    error = stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * error
    return mean - half, mean + half, 2 * float(stdtr(degrees, -abs(mean) / error))


PLACE = ["task", "length", "trained_length"]
FACTS = ("model", "scaling", "name", "task", *COPIED)


def paired_seeds(frame: pd.DataFrame, baseline: str | None, ending: str) -> pd.DataFrame:
    """Return one row per model, scaling, task and length with its difference from the baseline.

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
    baseline = in_option(baseline or str(names.iloc[0]), every.values())
    if baseline not in every.values() or len(every) < 2:
        known = ", ".join(dict.fromkeys(every.values()))
        raise ValueError(
            f"nothing to compare with {baseline!r}: of several seeds there are {known}"
        )
    how: dict[str, Measure] = {}
    for (task, *_), samples in named.groupby(["task", "name", "seed"], sort=False):
        if str(task) not in how or how[str(task)].form == "unknown":
            how[str(task)] = measure(samples)  # of the first model and seed that shows it
    seeds = {name: set(of) for name, of in named.groupby("name")["seed"]}
    rows: list[dict[str, Any]] = []
    for (task, *_), samples in named.groupby(PLACE, sort=False):
        cells = dict(tuple(samples.groupby("name", sort=False)))
        base = cells.pop(baseline, samples.iloc[:0])
        compared = [_less(cell, base, how[str(task)], baseline) for cell in cells.values()]
        corrected = holm_once(map(_measurement, cells.values()), [row["p"] for row in compared])
        for row, p in zip(compared, corrected, strict=True):
            requested = len(seeds[row["name"]] | seeds[baseline])
            rows.append({**row, "asked": requested, "p_all": p, "verdict": _verdict(row, p)})
    table = pd.DataFrame(rows)
    return table.assign(relative_length=table["length"] / table["trained_length"])


def _measurement(cell: pd.DataFrame) -> tuple[str, ...]:
    """Return what is equal for methods that are the same measurement: frequencies of a model."""
    row = cell.iloc[0]
    if pd.isna(row["frequencies"]):
        return (row["name"],)
    return row["model"], row["frequencies"]


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
    if len(seeds) < 2 or not shared or len(same) > 1 or how.form == "unknown":
        return {**row, "seeds": 0, "n": 0, "difference": None, "p": None}
    changes = less(one, other, shared, how)
    low, high, p = student(changes)
    better = (fmean(changes) < 0) == how.lower
    most = max(requested_units(rows) for _, rows in cell.groupby("seed", sort=False))
    return {
        **row, "seeds": len(seeds), "n": len(shared), "of": most,
        "difference": difference(fmean(changes), how),
        "low": difference(low, how), "high": difference(high, how),
        "better_with": sum(value < 0 if how.lower else value > 0 for value in changes), "p": p,
        "single": tuple(difference(value, how) for value in changes),
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
    if row["difference"] is None:
        return "not compared"
    if p is None or p >= ALPHA or row["failed"]:
        return NO_DIFFERENCE
    return "better" if (row["difference"] < 0) == (row["better"] == "lower") else "worse"
