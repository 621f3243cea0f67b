"""How a task measures, and the paired difference of two of its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from ropewalk.harness.stats.paired import Array, Difference, of_means, of_shares, share
from ropewalk.tasks._intervals import proportion, ratio

Units = dict[str, tuple[float, float]]  # value and weight by the name of a document or trial
Form = Literal["share", "parts", "mean", "exp", "unknown"]
OF_SHARES = ("share", "parts")
COMPARABLE = ("tail",)  # protocols that score the same targets at every length
SHARES = {"accuracy", "recall", "f1", "acc", "acc_norm", "exact_match", "ratio"}  # in percent
LOWER = {
    "perplexity", "loss", "nll", "bits_per_byte", "bits per byte", "error",
    "word_perplexity", "byte_perplexity", "brier_score", "ter", "window_kl",
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """How one task of one model measures.

    Attributes:
        name: for sentences ("tail perplexity").
        metric: name of the number.
        form: what a score is: the share of hits; the share of trials of which parts count; the
            weighted mean of the samples; its exponential (perplexity); or something that samples do
            not show. In the last case, two methods cannot be compared sample by sample.
        across: whether scores of different lengths may be compared.
    """

    name: str
    metric: str
    form: Form
    lower: bool
    across: bool
    units: str

    @property
    def relative(self) -> bool:
        """Whether differences are given as shares of the score, as those of perplexity are."""
        return self.form == "exp"

    @property
    def share(self) -> bool:
        """Whether the score is a share, which lies between 0 and 1."""
        return self.form in OF_SHARES

    def shown(self, cost: float) -> float:
        """Return a difference of mean costs as reports have it: relative for perplexity."""
        return share(cost) if self.relative else cost

    def margin(self, percent: float, score: float) -> float:
        """Return a margin as a cost: percent of the score, of shares percentage points."""
        if self.relative:
            return math.log1p(percent / 100)
        return percent / 100 * (1 if self.share else abs(score))


def measure(samples: pd.DataFrame) -> Measure:
    """Return how one task of one model measures, by its samples."""
    first = samples.iloc[0]
    metric, family = str(first["metric"]), str(first["task"]).partition(":")[0]
    protocols = samples["protocol"].dropna() if "protocol" in samples else pd.Series(dtype=str)
    protocol = str(protocols.iloc[0]) if len(protocols) else ""
    named = metric if metric == family else f"{family} {metric}"
    if "found" in samples and samples.loc[samples["found"].eq("format"), "value"].eq(0).any():
        named = f"strict {named}"  # an answer in another format does not count
    form = _form(samples)
    texts = bool(protocol) or metric == "window_kl"
    return Measure(
        name=f"{protocol} {named}".strip(),
        metric=metric,
        form=form,
        lower=metric in LOWER or form == "exp",
        across=protocol in ("", *COMPARABLE),
        units="trials" if form in OF_SHARES else "documents" if texts else "samples",
    )


def _form(samples: pd.DataFrame) -> Form:
    """Find what gives every cell its score, by trying."""
    known = (samples["status"] == "ok") & samples["score"].notna()
    good = samples.loc[known, ["scaling", "length", "value", "weight", "score"]]
    if good.empty:
        return "unknown"
    cells = good.groupby(["scaling", "length"], sort=False)
    means = (cells["value"].sum() / cells["weight"].sum()).to_numpy()
    scores = cells["score"].first().to_numpy()
    if np.allclose(means, scores, rtol=1e-9):
        if (good["weight"] != 1).any() or not good["value"].between(0, 1).all():
            return "mean"
        if good["value"].isin([0.0, 1.0]).all():
            return "share"
        return "parts" if samples["metric"].iloc[0] in SHARES else "mean"
    held = np.exp(np.minimum(means, 700.0))  # as tasks hold a loss that has no perplexity
    return "exp" if np.allclose(held, scores, rtol=1e-9) else "unknown"


def units(samples: pd.DataFrame) -> Units:
    """Return value and weight of every unit that was measured; windows of one document add up."""
    good = samples.loc[samples["status"] == "ok", ["unit", "value", "weight"]]
    names = list(map(str, good["unit"].tolist()))
    pairs = [(good[part].to_numpy(float) + 0.0).tolist() for part in ("value", "weight")]
    sums: Units = dict(zip(names, zip(*pairs, strict=True), strict=True))
    if len(sums) == len(names):
        return sums
    sums = {}
    for name, value, weight in zip(names, *pairs, strict=True):
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + value, before[1] + weight)
    return sums


@dataclass(frozen=True)
class Score:
    """A score with its interval."""

    score: float
    low: float | None
    high: float | None


def scored(of: Units, how: Measure) -> Score:
    """Return the score of these units, as the task makes it."""
    values, weights = zip(*of.values(), strict=True)
    if how.share:
        hits = math.fsum(values)
        return Score(hits / len(values), *proportion(hits, len(values)))
    result = ratio(values, weights)
    return Score(*(result.exp() if how.form == "exp" else (result.value, *result.interval())))


def difference(one: Units, other: Units, how: Measure) -> Difference | None:
    """Compare the units of one cell with another's, on those that both have with all targets."""
    both = {name: one[name] for name in one if name in other and one[name][1] == other[name][1]}
    results = differences([both], {name: other[name] for name in both}, how)
    return results[0] if results else None


def differences(ones: Sequence[Units], other: Units, how: Measure) -> list[Difference]:
    """Return every one less the other; all have the same units in one order, with equal weights.

    Relative for perplexity (-0.1 is 10 % lower), else in the score's own unit. Empty where samples
    do not show how scores are made.
    """
    if how.form == "unknown" or not other or not ones:
        return []
    less = values_of(ones) - values_of([other])
    if how.share:
        return of_shares(less)
    return of_means(less, weights_of(other)[:, None], relative=how.relative)


def values_of(ones: Sequence[Units]) -> Array:
    """Return the values of units in one order, shape (units, cells)."""
    return np.array([[value for value, _ in one.values()] for one in ones]).T


def weights_of(one: Units) -> Array:
    """Return the weights of units, shape (units,)."""
    return np.array([weight for _, weight in one.values()], float)


def distinct(samples: pd.DataFrame) -> dict[str, list[str]]:
    """Return the scalings of one model, task and length that differ, with those equal to each.

    Methods of equal frequencies were measured once: to compare them would count nothing twice.
    """
    groups: dict[str, list[str]] = {}
    first = samples.drop_duplicates("scaling")
    for scaling, sign in zip(first["scaling"], first["frequencies"], strict=True):
        groups.setdefault(str(scaling if pd.isna(sign) else sign), []).append(str(scaling))
    return {names[0]: names[1:] for names in groups.values()}
