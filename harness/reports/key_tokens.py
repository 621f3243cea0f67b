"""Perplexity of the tokens that need a long context (LongPPL, arXiv:2410.23771)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.harness.reports._text import across
from ropewalk.harness.stats.cells import CELL, cell_scores, in_option
from ropewalk.tasks._intervals import ratio

DROP, MOST = 2.0, 2.0  # nats, of the rule as its authors have it
Losses = Mapping[Any, Any]  # of every target, by document and window
NONE = (
    "key tokens need the loss of every token at two lengths of {!r} inside the trained window: "
    "measure perplexity by protocol=tail, without slide, at --length 0.25x 1x, or choose another "
    "evaluator by key_tokens:evaluator=NAME"
)
COLUMNS = ["score", "low", "high", "n", "keys", "tokens"]


def make(
    frame: pd.DataFrame, *, evaluator: str = "none", drop: float = DROP, most: float = MOST
) -> pd.DataFrame:
    """Return one row per cell of tail perplexity.

    A token is a key token if the loss of ``evaluator``, a method of the same sweep, falls by more
    than ``drop`` nats, to less than ``most``. The fall is from its shortest window to its longest
    one inside the trained length. ``score`` is exp(mean loss) over the key tokens. Raises
    ValueError if losses are missing.
    """
    if not {"losses", "bucket", "window"} <= set(frame.columns):
        raise ValueError(NONE.format(evaluator))
    every = frame[(frame["bucket"] == 1) & (frame["status"] == "ok") & frame["window"].notna()]
    rows = []
    for (model, task), samples in every.groupby(["model", "task"], sort=False):
        judge = in_option(evaluator, samples["scaling"].unique())
        inside = samples[samples["length"] <= samples["trained_length"]]
        lengths = inside.loc[inside["scaling"] == judge, "length"]
        ends = lengths.min(), lengths.max()
        known = {key: _losses(cell) for key, cell in samples.groupby(["scaling", "length"])}
        short, long = (known.get((judge, end), {}) for end in ends)
        if ends[0] == ends[1] or not short:
            continue
        fell = {window: short[window] - long[window] for window in short if window in long}
        keys = {window: (fell[window] > drop) & (long[window] < most) for window in fell}
        for (scaling, length), cell in known.items():
            by_document: dict[str, list[float]] = {}
            for (unit, window), values in cell.items():
                if (unit, window) in keys:
                    by_document.setdefault(unit, []).extend(values[keys[unit, window]])
            some = [values for values in by_document.values() if values]
            counts = list(map(len, some))
            mean = ratio([float(np.sum(values)) for values in some], counts) if some else None
            score, low, high = mean.exp() if mean else (None, None, None)
            rows.append({
                "model": model, "task": task, "scaling": scaling, "length": length,
                "score": score, "low": low, "high": high, "n": len(some), "keys": sum(counts),
                "tokens": sum(map(len, cell.values())), "evaluator": judge,
            })  # fmt: skip
    if not rows:
        raise ValueError(NONE.format(evaluator))
    facts = cell_scores(frame)[[*CELL, "relative_length", "status"]]
    table = facts.merge(pd.DataFrame(rows), on=CELL).assign(metric="key perplexity")
    return table[[*CELL, "relative_length", "metric", *COLUMNS, "status", "evaluator"]]


def _losses(cell: pd.DataFrame) -> Losses:
    windows = zip(cell["unit"], cell["window"], strict=True)
    return {key: np.array(losses) for key, losses in zip(windows, cell["losses"], strict=True)}


display = across  # for people


def notes(table: pd.DataFrame) -> list[str]:
    """Return how many tokens are key, and by which method."""
    firsts = table.sort_values("keys", ascending=False).drop_duplicates(["model", "task"])
    return [
        f"{row.model}, {row.task}: {row.keys} of {row.tokens} scored tokens are key, by the losses "
        f"of {row.evaluator} at two lengths. This choice favours its own score at the longer one."
        for row in firsts.itertuples()
    ]
