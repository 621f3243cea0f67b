"""Means over seeds: intervals against values worked by hand, and their coverage."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from ropewalk.harness.reports import curves, seeds
from ropewalk.harness.reports.seeds import mean_over_seeds
from ropewalk.harness.stats.measure import Measure
from ropewalk.tasks._intervals import ratio
from tests.frames import PERPLEXITY, sweep

MODELS = ("rope-seed1", "rope-seed2", "rope-seed3", "alibi-seed1", "alibi-seed2", "alibi-seed3")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    lengths = (256, 1024, 2048)
    return sweep(models=MODELS, scalings=("none", "yarn"), lengths=lengths, gone=("", 0))


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame) -> pd.DataFrame:
    return seeds.make(frame)


@pytest.mark.slow
def test_the_interval_is_for_random_seeds_and_random_documents(frame, table):
    """Perplexity: the mean is geometric, over seeds Student's t of logarithms, worked by hand."""
    row = table.set_index(["model", "task", "scaling", "length"]).loc[
        ("rope", PERPLEXITY, "yarn", 1024)
    ]
    cell = frame[(frame.task == PERPLEXITY) & (frame.scaling == "yarn") & (frame.length == 1024)]
    logs = np.log([cell[cell.model == f"rope-seed{seed}"].score.iloc[0] for seed in (1, 2, 3)])
    half = t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert row.score == pytest.approx(math.exp(logs.mean()))
    documents = cell[cell.model.str.startswith("rope")].groupby("unit").value.mean() / 64
    low, high = ratio(documents.tolist(), [1] * len(documents)).interval()
    assert (math.log(row.low), math.log(row.high)) == pytest.approx(
        (
            logs.mean() - math.hypot(logs.mean() - low, half),
            logs.mean() + math.hypot(high - logs.mean(), half),
        )
    )
    assert row.single == pytest.approx(tuple(np.exp(logs)))


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("of_seeds", [0.02, 0.1, 0.5])  # documents differ by 0.2 nats
def test_the_interval_covers_the_truth_of_random_seeds_and_documents(seeds, of_seeds):
    """Crossed effects of 25 documents, with a residual of a seed on a document."""
    rng, names = np.random.default_rng(seeds), [f"document {place}" for place in range(25)]
    how = Measure("perplexity", "exp", "tail")
    draws, covered = 300, 0
    for _ in range(draws):
        losses = 3 + rng.normal(0, of_seeds, (seeds, 1)) + rng.normal(0, 0.2, 25)
        losses += rng.normal(0, 0.1, (seeds, 25))
        every = [dict(zip(names, zip(of, [1.0] * 25, strict=True), strict=True)) for of in losses]
        _, low, high = mean_over_seeds(every, dict.fromkeys(names, 1.0), how)
        assert low is not None
        assert high is not None
        covered += low <= math.exp(3) <= high
    assert covered >= 0.93 * draws


def test_a_change_from_the_window_is_paired_by_seed_and_by_document(frame):
    """Of perplexity the mean log ratio, of keys percentage points."""
    mine = frame[(frame.scaling == "none") & frame.model.str.startswith("rope")]
    table = seeds.make(mine).set_index(["task", "length"])
    cells = mine.drop_duplicates(["model", "task", "length"])
    scores = {key: of.score.to_numpy() for key, of in cells.groupby(["task", "length"])}
    logs = np.log(scores[PERPLEXITY, 2048] / scores[PERPLEXITY, 256])
    half = t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    losses = mine[mine.task == PERPLEXITY].groupby(["length", "unit"]).value.mean() / 64
    documents = losses[2048] - losses[256]
    low, high = ratio(documents.tolist(), [1] * len(documents)).interval()
    low = logs.mean() - math.hypot(logs.mean() - low, half)
    high = logs.mean() + math.hypot(high - logs.mean(), half)
    assert table.loc[(PERPLEXITY, 2048), ["change", "change_low", "change_high"]].tolist() == (
        pytest.approx(np.expm1([logs.mean(), low, high]))
    )
    (passkey,) = set(mine.task) - {PERPLEXITY}
    keys = (scores[passkey, 2048] - scores[passkey, 256]).mean()
    assert table.loc[(passkey, 2048), "change"] == pytest.approx(keys)
    assert table.loc[(PERPLEXITY, 256), ["change", "change_low"]].isna().all()
    prefix = mine.assign(protocol="prefix")[mine.task == PERPLEXITY]
    assert "change" not in seeds.make(prefix)


def test_the_figure_has_the_means_and_the_range_of_single_seeds(frame, table):
    panel = curves.make(frame).axes[0]
    row = table[(table.task == PERPLEXITY) & (table.model == "rope") & (table.scaling == "yarn")]
    (line,) = (line for line in panel.get_lines() if line.get_label() == "rope · yarn")
    assert list(line.get_ydata()) == pytest.approx(row.score.tolist())
    cells = frame[(frame.task == PERPLEXITY) & (frame.scaling == "yarn")]
    dots = [line for line in panel.get_lines() if line.get_linestyle() == "None"]
    drawn = [list(line.get_ydata()) for line in dots]
    for seed in (1, 2, 3):
        scores = cells[cells.model == f"rope-seed{seed}"].drop_duplicates("length").score.tolist()
        assert pytest.approx(scores) in drawn


@pytest.mark.slow
def test_a_cell_that_a_seed_lacks_has_no_score(frame):
    lost = (frame.model == "rope-seed2") & (frame.length == 2048) & (frame.task == PERPLEXITY)
    broken = frame.assign(status=frame.status.mask(lost, "out_of_memory"))
    table = seeds.make(broken).set_index(["model", "task", "scaling", "length"])
    assert pd.isna(table.loc[("rope", PERPLEXITY, "none", 2048), "score"])
    assert table.loc[("rope", PERPLEXITY, "none", 2048), "status"] == "out_of_memory"
    assert table.loc[("rope", PERPLEXITY, "none", 1024), "status"] == "ok"


@pytest.mark.slow
def test_a_model_of_another_window_or_without_a_number_is_no_seed(frame):
    """`rope` is not averaged with `rope-seed1` and `rope-seed2`, nor is a longer window."""
    mine = frame[frame.model.isin(["rope-seed1", "rope-seed2"])]
    more = mine[mine.model == "rope-seed1"].assign(model="rope", value=99.0)
    pd.testing.assert_frame_equal(seeds.make(pd.concat([mine, more])), seeds.make(mine))
    longer = mine.assign(trained_length=mine.model.map({"rope-seed1": 256, "rope-seed2": 512}))
    with pytest.raises(ValueError, match="windows must be equal"):
        seeds.make(longer)
