"""Key tokens by their rule, counted by hand and by a naive loop; refusals say why."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reports import key_tokens

LENGTHS = (64, 256, 512)


def frame(losses: dict[tuple[str, int], dict[str, list[float]]], **changes: object) -> pd.DataFrame:
    """Return the samples of cells: of (scaling, length), the losses by document."""
    return pd.DataFrame([
        {
            "run": "r", "model": "m", "task": "perplexity", "scaling": scaling, "length": length,
            "metric": "perplexity", "score": 1.0, "low": None, "high": None, "n": len(documents),
            "unit": unit, "status": "ok", "frequencies": f"{scaling}{length}",
            "trained_length": 256, "window": 0, "bucket": 1, "losses": values, **changes,
        }
        for (scaling, length), documents in losses.items()
        for unit, values in documents.items()
    ])  # fmt: skip


def test_a_small_case_by_hand() -> None:
    """Of two documents, one token each is key: what a method does on these two is its number."""
    table = key_tokens.make(
        frame({
            ("none", 64): {"a": [5.0, 1.0, 4.0], "b": [3.0, 9.0]},
            ("none", 256): {"a": [1.0, 1.0, 2.5], "b": [2.9, 0.5]},
            ("yarn", 512): {"a": [2.0, 7.0, 7.0], "b": [7.0, 3.0]},
            ("yarn", 64): {"a": [5.0, 8.0, 7.0], "b": [7.0, 5.0]},
        })
    ).set_index(["scaling", "length"])  # fmt: skip
    far = table.loc["yarn", 512]
    assert far["score"] == pytest.approx(math.exp((2.0 + 3.0) / 2))
    assert (far["keys"], far["tokens"], far["n"]) == (2, 5, 2)
    assert far["gain"] == pytest.approx((3 + 1 + 0 + 0 + 2) / 5)
    assert far["large"] == pytest.approx(1 / 5)
    assert table.loc["none", 256]["score"] == pytest.approx(math.exp((1.0 + 0.5) / 2))
    assert table.loc["none", 64]["gain"] == 0
    (sentence,) = key_tokens.words(table.reset_index())
    assert "2 of 5 scored tokens are key" in sentence


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), drop=st.floats(0.1, 3), most=st.floats(0.1, 5))
def test_a_naive_loop_over_all_tokens_gives_the_same(seed: int, drop: float, most: float) -> None:
    """exp of the mean loss over the tokens whose loss falls by enough, to a small one."""
    draw = np.random.default_rng(seed)
    texts = {
        (name, length): {unit: draw.exponential(3, 40).tolist() for unit in "abc"}
        for name in ("none", "yarn")
        for length in LENGTHS
    }
    total, count = 0.0, 0
    for unit in "abc":
        for index, loss in enumerate(texts["yarn", 512][unit]):
            short, long = (texts["none", length][unit][index] for length in (64, 256))
            if short - long > drop and long < most:
                total, count = total + loss, count + 1
    table = key_tokens.make(frame(texts), drop=drop, most=most).set_index(["scaling", "length"])
    found = table.loc["yarn", 512]
    assert found["keys"] == count
    if count:
        assert found["score"] == pytest.approx(math.exp(total / count), rel=1e-6)
    else:
        assert pd.isna(found["score"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bucket": 4}, "token by token"),
        ({"status": "failed"}, "token by token"),
        ({"trained_length": 100}, "two lengths"),
    ],
)
def test_what_has_no_key_tokens_says_why(changes: dict[str, object], words: str) -> None:
    """Means of runs, no sample, or one length inside the window: one sentence with what to do."""
    texts = {("none", length): {"a": [1.0, 2.0]} for length in LENGTHS}
    with pytest.raises(ValueError, match=words):
        key_tokens.make(frame(texts, **changes))
