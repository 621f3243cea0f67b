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
from ropewalk.tasks.types import Score

Units = dict[str, tuple[float, float]]  # value and weight by the name of a document or trial
Form = Literal["share", "parts", "mean", "exp", "unknown"]
SHARES = {"accuracy", "recall", "f1", "acc", "acc_norm", "exact_match", "ratio"}  # in percent
LOWER = {
    "perplexity", "loss", "nll", "bits_per_byte", "bits per byte", "error",
    "word_perplexity", "byte_perplexity", "brier_score", "ter", "window_kl",
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """How one task of one model measures.

    Attributes:
        metric: name of the number.
        form: what a score is: the share of hits; the share of trials of which parts count; the
            weighted mean of the samples; its exponential (perplexity); or something that samples do
            not show. In the last case, two methods cannot be compared sample by sample.
        protocol: that of a perplexity; empty for other tasks.
    """

    metric: str
    form: Form
    protocol: str = ""

    @property
    def lower(self) -> bool:
        """Whether a lower score is better."""
        return self.metric in LOWER or self.form == "exp"

    @property
    def relative(self) -> bool:
        """Whether differences are given as shares of the score, as those of perplexity are."""
        return self.form == "exp"

    @property
    def share(self) -> bool:
        """Whether the score is a share, which lies between 0 and 1."""
        return self.form in ("share", "parts")

    @property
    def across(self) -> bool:
        """Whether scores of different lengths may be compared: they are of the same targets."""
        return self.protocol in ("", "tail")

    @property
    def units(self) -> str:
        """What samples are of: "trials", "documents" or "samples"."""
        texts = self.protocol or self.metric == "window_kl"
        return "trials" if self.share else "documents" if texts else "samples"

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
    protocols = samples["protocol"].dropna() if "protocol" in samples else pd.Series(dtype=str)
    protocol = str(protocols.iloc[0]) if len(protocols) else ""
    return Measure(str(samples["metric"].iloc[0]), _form(samples), protocol)


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
    sums: Units = {}
    for name, value, weight in good.itertuples(index=False, name=None):
        before = sums.get(str(name), (0.0, 0.0))
        sums[str(name)] = before[0] + value, before[1] + weight
    return sums


def scored(of: Units, how: Measure) -> Score:
    """Return the score of these units, as the task makes it."""
    values, weights = zip(*of.values(), strict=True)
    if how.share:
        hits = math.fsum(values)
        return Score(hits / len(of), *proportion(hits, len(of)), len(of))
    mean = ratio(values, weights)
    ends = mean.exp() if how.form == "exp" else (mean.value, *mean.interval())
    return Score(*ends, len(of))


def in_both(one: Units, other: Units) -> Units:
    """Return the units of one cell that another has too, with all targets."""
    return {name: one[name] for name in one if name in other and one[name][1] == other[name][1]}


def difference(one: Units, other: Units, how: Measure) -> Difference | None:
    """Compare the units of one cell with another's, on those that both have."""
    both = in_both(one, other)
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
