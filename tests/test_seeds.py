"""Means over seeds: each interval against a value worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from harness.reports import seeds
from tests.frames import PERPLEXITY, sweep

MODELS = ("rope-1", "rope-2", "rope-3", "alibi-1", "alibi-2", "alibi-3")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return sweep(models=MODELS, scalings=("none", "yarn"), gone=("", 0))


def test_the_two_intervals_are_those_of_documents_and_of_seeds(frame: pd.DataFrame) -> None:
    """Perplexity: the mean is geometric, over seeds Student's t of logarithms, worked by hand."""
    table = seeds.make(frame).set_index(["model", "task", "scaling", "length"])
    row = table.loc[("rope", PERPLEXITY, "yarn", 1024)]
    cell = frame[(frame.task == PERPLEXITY) & (frame.scaling == "yarn") & (frame.length == 1024)]
    logs = np.log([cell[cell.model == f"rope-{seed}"].score.iloc[0] for seed in (1, 2, 3)])
    half = t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert row.score == pytest.approx(math.exp(logs.mean()))
    assert (row.low_seeds, row.high_seeds) == pytest.approx(
        (math.exp(logs.mean() - half), math.exp(logs.mean() + half))
    )
    assert (row.least, row.most) == pytest.approx((math.exp(logs.min()), math.exp(logs.max())))
    # Documents differ by 0.2 nats, seeds by chance alone: the first interval is the wider of them.
    spread = math.log(row.high / row.low)
    assert spread == pytest.approx(2 * t.ppf(0.975, 23) * 0.2 / math.sqrt(24), rel=0.35)


def test_a_share_stays_between_0_and_1(frame: pd.DataFrame) -> None:
    """Trials are averaged over seeds before they are counted, and no end passes 0 or 1."""
    table = seeds.make(frame)
    shares = table[table.metric == "accuracy"]
    ends = shares[["score", "low", "high", "low_seeds", "high_seeds"]]
    assert ends.min(axis=None) >= 0
    assert ends.max(axis=None) <= 1


def test_a_cell_that_a_seed_lacks_has_no_score(frame: pd.DataFrame) -> None:
    """Two seeds of three are not the mean of three."""
    lost = (frame.model == "rope-2") & (frame.length == 2048) & (frame.task == PERPLEXITY)
    broken = frame.assign(status=frame.status.mask(lost, "out_of_memory"))
    table = seeds.make(broken).set_index(["model", "task", "scaling", "length"])
    assert pd.isna(table.loc[("rope", PERPLEXITY, "none", 2048), "score"])
    assert table.loc[("rope", PERPLEXITY, "none", 2048), "status"] == "out_of_memory"
    assert table.loc[("rope", PERPLEXITY, "none", 1024), "status"] == "ok"


def test_tables_name_both_intervals_and_words_say_if_every_seed_agrees(
    frame: pd.DataFrame,
) -> None:
    """A reader sees two tables a task, and a sentence for each length past the window."""
    table = seeds.make(frame)
    titles = list(seeds.readable(table))
    assert len(titles) == 4
    assert sum("over seeds" in title for title in titles) == 2
    told = seeds.words(table)
    assert len(told) == 2 * 3
    assert all("is best" in sentence for sentence in told)


def test_one_seed_each_is_no_report(frame: pd.DataFrame) -> None:
    """Without two seeds of one model there is nothing to say, and the error says what it needs."""
    with pytest.raises(ValueError, match="-1, -2"):
        seeds.make(frame[frame.model.isin(["rope-1", "alibi-1"])])
