"""The card's metadata reads back to the scores of the report."""

import json

import pandas as pd
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.stats.cells import CELL, SCORE, cell_scores
from tests.command_line import sweep

COLUMNS = [*CELL, "metric", *SCORE, "status"]


@pytest.mark.slow
@pytest.mark.usefixtures("scored")
def test_a_card_reads_back_to_the_table(tiny, docs, tmp_path, ropewalk):
    """Every score, interval, n and status of the metadata is that of the run, to the last bit."""
    run, out = tmp_path / "run", tmp_path / "out"
    assert ropewalk(*sweep(tiny, docs, run)).status == 0
    done = ropewalk("report", run, "--card", "--report", "curves:kept=0.5", "--out", out)
    assert (done.status, f"Card: {out / 'card.md'}" in done.out) == (0, True)
    card = ModelCard.load(out / "card.md")
    assert "](curves.png)" in card.text
    index = eval_results_to_model_index(card.data.model_name, card.data.eval_results)
    name, results = model_index_to_eval_results(index)
    rows = [
        {"model": name, "task": one.task_name, "metric": one.metric_type,
         "score": one.metric_value, **one.metric_args}
        for one in results
    ]  # fmt: skip
    expected = cell_scores(make_frame([run]))[COLUMNS]
    assert len(expected) == 8
    pd.testing.assert_frame_equal(
        pd.DataFrame(rows)[COLUMNS], expected, check_dtype=False, check_exact=True
    )
    assert {(one.task_name, one.dataset_name) for one in results} == {
        ("perplexity:tail=16", docs.name),
        ("passkey:depths=2,trials=2", "passkey:depths=2,trials=2"),
    }


def test_a_card_is_about_one_model(run, small, tmp_path, ropewalk):
    record = json.loads((run / "run.json").read_text())
    record["model"]["name"] = "other"
    (run / "run.json").write_text(json.dumps(record))
    done = ropewalk("report", run, small, "--card", "--mixed", "--out", tmp_path / "out")
    assert (done.status, "--card is about one model; these runs have" in done.err) == (2, True)
