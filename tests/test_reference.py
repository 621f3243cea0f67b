"""The embedded model and its committed run: what they must be, and cells measured again."""

import json
from pathlib import Path

import pandas as pd
import pytest

import ropewalk as rw
from ropewalk.harness.models.checkpoint import REFERENCE
from ropewalk.harness.reports._write import write_reports

RUN = Path(__file__).resolve().parent.parent / "results" / "reference"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return rw.frame(RUN)


@pytest.mark.slow
def test_cells_measured_again_agree_with_the_committed_run(frame, tmp_path):
    """On any machine: losses to 1e-4, log-probabilities to 0.01 nats, equal hits.

    Documents whose text differs in this Python are other questions; passkeys are the same.
    """
    tasks = ["perplexity", "passkey:trials=1"]
    run = rw.run(
        "reference", scaling=["none", "yarn"], task=tasks, length=["1x", "4x"], out=tmp_path
    )
    both = run.frame().merge(frame, on=["question", "frequencies"], suffixes=("", "_stored"))
    assert both["found"].equals(both["found_stored"])
    assert both["value"].to_list() == pytest.approx(both["value_stored"].to_list(), rel=1e-4)
    passkeys = both[both["metric"] == "accuracy"]
    assert len(passkeys) >= 15
    assert (passkeys["logprob"] - passkeys["logprob_stored"]).abs().max() < 0.01


def score(frame: pd.DataFrame, task: str, scaling: str, stretch: int) -> float:
    rows = frame[
        (frame["task"] == task)
        & (frame["scaling"] == scaling)
        & (frame["length"] == stretch * frame["trained_length"])
    ]
    value: float = rows["score"].iloc[0]
    return value


def test_the_unscaled_model_breaks_at_its_window(frame):
    """Past the window unscaled perplexity at least doubles and retrieval is all but gone."""
    inside, beyond = (score(frame, "perplexity", "none", stretch) for stretch in (1, 4))
    assert beyond >= 2 * inside
    assert score(frame, "passkey", "none", 1) >= 0.99
    assert all(score(frame, "passkey", "none", stretch) <= 0.1 for stretch in (2, 4, 8))


def test_the_best_method_holds_at_four_windows(frame):
    """The best method is no worse at 4x than the model is in its window, and finds the keys."""
    methods = frame["scaling"].unique()
    best = min(score(frame, "perplexity", scaling, 4) for scaling in methods)
    assert best <= score(frame, "perplexity", "none", 1)
    assert max(score(frame, "passkey", scaling, 4) for scaling in methods) >= 0.9


def test_the_committed_tables_are_those_of_the_committed_samples(frame, tmp_path):
    write_reports(frame, tmp_path)
    numbers, _, _ = (tmp_path / "report.md").read_text().partition("## How to read this")
    assert (RUN / "reports" / "report.md").read_text().startswith(numbers)
    assert (RUN / "reports" / "curves.png").stat().st_size > 10_000


def test_the_card_tells_what_the_training_record_and_the_run_hold(frame):
    record = json.loads((REFERENCE / "training.json").read_text(encoding="utf-8"))
    card = (REFERENCE / "README.md").read_text(encoding="utf-8")
    last = record["curve"][-1]
    assert last["step"] == record["recipe"]["steps"]
    assert f"{last['step']:,} steps of" in card
    assert f"{record['seconds'] / 60:.0f} minutes on" in card
    losses = [last["held_out"][part] for part in ("first_quarter", "last_quarter")]
    assert "{:.2f} and {:.2f} nats".format(*losses) in card
    for scaling in ("none", "yarn"):
        cells = []
        for stretch in (1, 2, 4, 8):
            perplexity = score(frame, "perplexity", scaling, stretch)
            share = score(frame, "passkey", scaling, stretch)
            digits = 1 if perplexity < 100 else 0
            cells.append(f"{perplexity:.{digits}f}, {100 * share:.0f} %")
        assert f"| `{scaling}` | {' | '.join(cells)} |" in card
