"""Key tokens by their rule, counted by a naive loop."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.harness.reports import key_tokens

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


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), drop=st.floats(0.1, 3), most=st.floats(0.1, 5))
def test_a_naive_loop_over_all_tokens_gives_the_same(seed, drop, most):
    """exp of the mean loss over the tokens whose loss falls by enough, to a small one."""
    draw = np.random.default_rng(seed)
    texts = {
        (name, length): {unit: draw.exponential(3, 40).tolist() for unit in "abc"}
        for name in ("none", "yarn")
        for length in LENGTHS
    }
    total, count, documents = 0.0, 0, set()
    for unit in "abc":
        for index, loss in enumerate(texts["yarn", 512][unit]):
            short, long = (texts["none", length][unit][index] for length in (64, 256))
            if short - long > drop and long < most:
                total, count = total + loss, count + 1
                documents.add(unit)
    table = key_tokens.make(frame(texts), drop=drop, most=most).set_index(["scaling", "length"])
    found = table.loc["yarn", 512]
    assert found[["keys", "n", "tokens"]].tolist() == [count, len(documents), 120]
    if count:
        assert found["score"] == pytest.approx(math.exp(total / count), rel=1e-6)
    else:
        assert pd.isna(found["score"])
