"""Divergence from the unpatched model: a naive float64 computation, exact zeros, the reports."""

from itertools import product
from random import Random
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.harness.engine import Sizes
from ropewalk.harness.patching.patch import comparing
from ropewalk.harness.reports.cells import cells
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.stats.measure import measure
from ropewalk.tasks import Divergence
from tests.families import build
from tests.tiny import FAMILIES, tiny_config

SIZE, START = 60, 20
METHODS = {"none": {}, "yarn": {"factor": 4.0}, "rerope": {"window": 16}}


DRAW = Random("kl")
TOKENS = [DRAW.randrange(1, 257) for _ in range(SIZE)]


@torch.inference_mode()
def logs(model: Any) -> torch.Tensor:
    logits = model(torch.tensor([TOKENS])).logits[0, START - 1 : -1]
    return logits.double().log_softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"), [("llama", "none"), *product(FAMILIES, ("yarn", "rerope"))]
)
def test_it_is_the_naive_divergence(family, name):
    """Of whole logits in float64, under frequencies and moved positions; none is exactly 0.

    The engine computes it from all logits at once, or from those of a few targets.
    """
    model = build(tiny_config(family))
    rotation = getattr(rw.methods, name)(rw.rope_of(model.config), SIZE, **METHODS[name])
    own = logs(model)
    found = []
    for sizes in (Sizes(), Sizes(logits=4 * 300 * 16)):
        with comparing(model, rotation, sizes) as answer:
            found += answer([Divergence(TOKENS, START, doc_id="q")])
    with rw.patched(model, rotation):
        other = logs(model)
    assert torch.equal(logs(model), own)  # the model is restored
    wanted = (own.exp() * (own - other)).sum(-1)
    assert found[0] == found[1]
    values = found[0][1].values
    assert values == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-6)
    assert (set(values) == {0.0}) == (name == "none")


@pytest.mark.slow
def test_a_run_measures_it_inside_the_window(tiny, docs, tmp_path, ropewalk):
    """Lengths beyond have no samples; equal frequencies are measured once and are 0."""
    words = [
        "run", "--model", tiny, "--docs", docs, "--length", "0.5x", "1x", "2x",
        "--scaling", "none", "yarn", "yarn:factor=4", "rerope",
        "--task", "perplexity:tail=16", "window_kl:tail=16",
    ]  # fmt: skip
    ended = ropewalk(*words, "--out", tmp_path)
    assert not ended.status, ended.err
    frame = make_frame([tmp_path])
    rows = frame[frame["metric"] == "window_kl"]
    assert set(rows["length"]) == {32, 64}
    assert set(rows["status"]) == {"ok"}
    scores = rows.groupby(["scaling", "length"])["score"].first()
    assert (scores[["none", "yarn"]] == 0).all()
    assert (scores["yarn:factor=4"] > 0).all()
    assert set(rows["weight"]) == {16}
    table = cells(frame)
    assert measure(rows).units == "documents"
    here = table[table["task"].str.startswith("window_kl") & (table["length"] == 64)]
    row = here.set_index("scaling").loc["yarn:factor=4"]
    assert row["score"] == scores["yarn:factor=4", 64]
    assert row["difference"] == pytest.approx(row["score"], rel=1e-12)  # another order of sums
    assert 0 <= row["difference_low"] < row["difference"] < row["difference_high"]
