"""Bits per byte of the scored text, which are comparable between different tokenizers."""

from __future__ import annotations

import math
from functools import partial

import pandas as pd

from ropewalk.harness.reports.writing.sentences import text
from ropewalk.harness.reports.writing.tables import across
from ropewalk.harness.stats.cells import CELL, cells
from ropewalk.tasks._intervals import ratio

SCORES = ["perplexity", "bits_per_byte", "low", "high"]
DIGITS = 3  # a hundredth would hide what methods differ by
COLUMNS = [*CELL, "relative_length", *SCORES, "n", "tokens", "bytes", "status"]


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell of perplexity.

    Bits per byte are the loss of all targets over the bytes of their text in UTF-8, in units of
    ln 2. The interval is over documents, which also differ in how many bytes their tokens have.
    Compare models on the same documents and protocol; the same number of tokens is more text where
    tokens are longer. A cell with a sample without bytes has no row. Raises ValueError where no
    cell has one.
    """
    measured = frame[(frame["metric"] == "perplexity") & (frame["status"] == "ok")]
    if measured.empty:
        raise ValueError("no perplexity was measured")
    whole = measured.get("bytes", measured["score"] * float("nan")).notna()
    known = measured[whole.groupby([measured[name] for name in CELL]).transform("all")]
    if known.empty:
        raise ValueError(
            "no cell has the bytes of all its text; measure perplexity again to have them"
        )
    sums = known.groupby([*CELL, "unit"], sort=False)[["value", "weight", "bytes"]].sum()
    rows = []
    for cell, documents in sums.groupby(CELL, sort=False):
        nats, tokens, size = (documents[name] for name in ("value", "weight", "bytes"))
        mean = ratio((nats / math.log(2)).tolist(), size.tolist())
        low, high = mean.interval()
        bits = {"bits_per_byte": mean.value, "low": low, "high": high}
        totals = {"tokens": tokens.sum(), "bytes": size.sum()}
        rows.append({**dict(zip(CELL, cell, strict=True)), **bits, **totals})
    table = cells(frame).rename(columns={"score": "perplexity"}).drop(columns=["low", "high"])
    table = table.merge(pd.DataFrame(rows), on=CELL)
    kinds = {"low": float, "high": float, "tokens": int, "bytes": int}
    return table.astype(kinds)[COLUMNS]


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the same for people: one table per model and task, lengths side by side."""
    known = table.assign(metric="bits per byte", score=table["bits_per_byte"])
    return across(known, partial(text, digits=DIGITS))


def notes(table: pd.DataFrame) -> list[str]:
    """Return how much text a token is, by which perplexities of other tokenizers differ."""
    several = table.groupby("model")["task"].nunique().max() > 1  # tasks score other texts
    sums = table.groupby(["model", "task"], sort=False)[["bytes", "tokens"]].sum()
    each = [
        f"{bytes_ / tokens:.2f} ({f'{model}, {task}' if several else model})"
        for (model, task), bytes_, tokens in sums.itertuples(name=None)
    ]
    return [f"Bytes of the scored text per token: {', '.join(each)}."]
