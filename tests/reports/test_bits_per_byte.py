"""Bits per byte: worked by hand, and equal for two tokenizers that say the same of a text."""

import math

import pandas as pd
import pytest

from ropewalk.harness.reports import bits_per_byte
from ropewalk.tasks._intervals import ratio
from tests.frames import sweep


def frame(bytes_a: float = 300, bytes_b: float = 500) -> pd.DataFrame:
    """Return one cell of two documents: 200 and 400 nats over 100 and 100 tokens."""
    head = {
        "run": "r", "model": "m", "trained_length": 64, "task": "perplexity", "scaling": "none",
        "metric": "perplexity", "length": 64, "frequencies": "f", "status": "ok",
        "score": math.exp(3), "low": math.exp(2.0), "high": math.exp(4.0), "n": 2,
    }  # fmt: skip
    samples = (("a", 200.0, bytes_a), ("b", 400.0, bytes_b))
    return pd.DataFrame(
        {**head, "unit": unit, "value": value, "weight": 100.0, "bytes": size}
        for unit, value, size in samples
    )


def test_bits_per_byte_by_hand():
    """600 nats over 800 bytes are 0.75 / ln 2 bits a byte; two documents have no interval."""
    (row,) = bits_per_byte.make(frame()).to_dict("records")
    assert row["bits_per_byte"] == pytest.approx(0.75 / math.log(2))
    assert math.isnan(row["low"])
    assert math.isnan(row["high"])
    assert row["perplexity"] == pytest.approx(math.exp(3))
    assert (row["tokens"], row["bytes"], row["n"]) == (200, 800, 2)


def test_the_interval_is_that_of_bits_over_bytes():
    """Perplexity leaves out that documents differ in the bytes of a token; bits per byte do not."""
    few = frame().assign(n=4, low=math.exp(2.9), high=math.exp(3.1))
    other = few.assign(unit=few["unit"] + "2", value=[250.0, 350.0], bytes=[200.0, 700.0])
    (row,) = bits_per_byte.make(pd.concat([few, other])).to_dict("records")
    nats, size = [200.0, 400.0, 250.0, 350.0], [300.0, 500.0, 200.0, 700.0]
    low, high = ratio(nats, size).interval()
    assert (row["low"], row["high"]) == pytest.approx((low / math.log(2), high / math.log(2)))
    windows = pd.concat([few.assign(value=few["value"] / 2, bytes=few["bytes"] / 2)] * 2)
    (same,) = bits_per_byte.make(pd.concat([windows, other])).to_dict("records")
    assert (same["low"], same["high"]) == (row["low"], row["high"])


def test_the_bytes_of_a_token_are_those_of_each_task():
    """800 bytes over 200 tokens, and 500 over 200 in a task that scores another text."""
    other = frame(bytes_a=200, bytes_b=300).assign(task="perplexity:protocol=prefix")
    assert bits_per_byte.notes(bits_per_byte.make(frame())) == [
        "Bytes of the scored text per token: 4.00 (m)."
    ]
    assert bits_per_byte.notes(bits_per_byte.make(pd.concat([frame(), other]))) == [
        "Bytes of the scored text per token: 4.00 (m, perplexity), "
        "2.50 (m, perplexity:protocol=prefix)."
    ]


def test_a_cell_of_which_a_sample_lacks_its_bytes_has_no_row():
    mixed = frame(bytes_b=math.nan).assign(scaling="yarn")
    table = bits_per_byte.make(pd.concat([frame(), mixed]))
    assert table["scaling"].tolist() == ["none"]


def test_samples_without_bytes_are_said_to_have_none():
    with pytest.raises(ValueError, match="no cell has the bytes of all its text"):
        bits_per_byte.make(sweep())
