"""Differences of methods from a baseline, and of one run from another, on the same units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ropewalk.harness.stats.cells import cell_scores, records
from ropewalk.harness.stats.decision import Family, family
from ropewalk.harness.stats.measure import differences, measure, values_of, weights_of
from ropewalk.harness.stats.paired import (
    ALPHA,
    NO_DIFFERENCE,
    Difference,
    adjusted,
    difference_columns,
    holm_once,
)

SAME, NOT_COMPARED = "same", "not compared"
Compared = Mapping[str, tuple[Difference, float | None]]  # by method, with the corrected p


def against(here: Family, baseline: str) -> dict[str, dict[str, Any]]:
    """Return the difference of every method from the baseline, which has a score here.

    ``p`` is of one comparison; ``p_all``, by which the ``verdict`` says better or worse, is
    corrected for all methods. A method that failed on what the other could do is not called better.
    """
    other = here.first(baseline)
    compared = _compared(here, other)
    return {
        name: _facts(here, name, other, compared) | {"baseline": baseline}
        for name in here.own
        if name != baseline
    }


def between(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell that two runs have, each a ``model`` here: the second less the first.

    Cells are compared that have a score and the same requests in both; ``baseline_score`` is that
    of the first run. Cells of equal samples are "same". ``p_all`` is corrected for all methods of a
    task at one length (Holm); methods that are the same measurement in both runs count once.
    """
    first, second = frame["model"].unique()
    rows = []
    for _, samples in frame.groupby("task", sort=False):
        how = measure(samples.assign(scaling=samples["model"] + " " + samples["scaling"]))
        for _, here in samples.groupby("length"):
            of_both, frequencies = [], []
            for _, cell in here.groupby("scaling", sort=False):
                parts = [cell[cell["model"] == name] for name in (first, second)]
                questions = [set(part["question"]) for part in parts]
                scored = all(part["score"].notna().any() for part in parts)
                if scored and questions[0] == questions[1]:
                    of_both.append(cell)
                    firsts = cell.drop_duplicates("model")
                    frequencies.append(tuple(firsts["frequencies"].fillna(firsts["scaling"])))
            pairs = [  # the runs as two methods, whatever their frequencies
                family(cell.assign(scaling=cell["model"], frequencies=cell["model"]), how)
                for cell in of_both
            ]
            compared = [_compared(pair, first).get(second, (None, None)) for pair in pairs]
            corrected = holm_once(frequencies, [p for _, p in compared])
            for cell, pair, (difference, _), p in zip(
                of_both, pairs, compared, corrected, strict=True
            ):
                known = {second: (difference, p)} if difference else {}
                row = records(cell_scores(cell[cell["model"] == second]))[0]
                row |= {"unit": how.units, "asked": pair.requested, "relative": how.relative}
                row |= {"failed": len(pair.lost[second]), "baseline_score": pair.score(first).score}
                row |= _facts(pair, second, first, known)
                if difference and pair.shared[first] == pair.shared[second]:
                    row["verdict"] = SAME
                rows.append(row)
    return pd.DataFrame(rows)


def _compared(here: Family, other: str) -> Compared:
    names = [name for name in here.shared if name != other]
    if other not in here.shared:
        return {}
    shared = [here.shared[name] for name in names]
    results = differences(shared, here.shared[other], here.how)
    if not results:
        return {}
    less = values_of(shared) - values_of([here.shared[other]])
    corrected = adjusted(less, weights_of(here.shared[other]), results, shares=here.how.share)
    return dict(zip(names, zip(results, corrected, strict=True), strict=True))


def _facts(here: Family, name: str, other: str, compared: Compared) -> dict[str, Any]:
    first = here.first(name)
    difference, p = compared.get(first, (None, None))
    better = difference is not None and (difference.value < 0) == here.how.lower
    winner, loser = (first, other) if better else (other, first)
    if first == other:
        verdict = SAME
    elif difference is None:
        verdict = NOT_COMPARED
    elif p is None or p >= ALPHA or here.lost[winner] - here.lost[loser]:
        verdict = NO_DIFFERENCE  # also where the better one failed on what the other has
    else:
        verdict = "better" if better else "worse"
    return {
        "baseline": other, "difference": 0.0 if first == other else None, "p_all": p,
        "verdict": verdict,
        **(difference_columns("difference", difference) if difference else {}),
        "p": difference.p if difference else None,
        "paired": difference.n if difference else None,
    }  # fmt: skip
