"""Perplexity of the tokens that need a long context (LongPPL, arXiv:2410.23771)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.harness.reports._text import across, text
from ropewalk.harness.stats.cells import CELL, cell_scores, in_option
from ropewalk.tasks._intervals import Ratio, ratio

DROP, MOST = 2.0, 2.0  # nats, of the rule as its authors have it
Losses = Mapping[Any, Any]  # of every target, by document and window
NONE = (
    "key tokens need the loss of every token at two lengths of {!r} inside the trained window: "
    "measure perplexity by protocol=tail, without slide, at --length 0.25x 1x, or choose another "
    "evaluator by key_tokens:evaluator=NAME"
)
COLUMNS = ["score", "low", "high", "n", "keys", "tokens", "gain", "gain_low", "gain_high"]


def make(
    frame: pd.DataFrame, *, evaluator: str = "none", drop: float = DROP, most: float = MOST
) -> pd.DataFrame:
    """Return one row per cell of tail perplexity.

    A token is a key token if the loss of ``evaluator``, a method of the same sweep, falls by more
    than ``drop`` nats, to less than ``most``. The fall is from its shortest window to its longest
    one inside the trained length. ``score`` is exp(mean loss) over the key tokens. ``gain`` is the
    mean loss over all targets at the shortest length minus that at the cell's, both under the
    cell's own method. Raises ValueError if losses are missing.
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
            counted = {
                window: values[keys[window]] for window, values in cell.items() if window in keys
            }
            start = known.get((scaling, ends[0]), {})
            saved = {window: start[window] - cell[window] for window in cell if window in start}
            (score, documents), (gain, _) = _mean(counted), _mean(saved)
            row = {
                "n": documents, "keys": sum(map(len, counted.values())),
                "tokens": sum(map(len, cell.values())), "evaluator": judge,
            }  # fmt: skip
            if score:
                row |= dict(zip(("score", "low", "high"), score.exp(), strict=True))
            if gain:
                values = gain.value, *gain.interval()
                row |= dict(zip(("gain", "gain_low", "gain_high"), values, strict=True))
            rows.append({**dict(zip(CELL, (model, task, scaling, length), strict=True)), **row})
    if not rows:
        raise ValueError(NONE.format(evaluator))
    facts = cell_scores(frame)[[*CELL, "relative_length", "status"]]
    table = facts.merge(pd.DataFrame(rows), on=CELL).assign(metric="key perplexity")
    return table.reindex(
        columns=[*CELL, "relative_length", "metric", *COLUMNS, "status", "evaluator"]
    )


def _losses(cell: pd.DataFrame) -> Losses:
    windows = zip(cell["unit"], cell["window"], strict=True)
    return {key: np.array(losses) for key, losses in zip(windows, cell["losses"], strict=True)}


def _mean(windows: Losses) -> tuple[Ratio | None, int]:
    by_document: dict[str, list[Any]] = {}
    for (unit, _), values in windows.items():
        by_document.setdefault(unit, []).append(values)
    joined = [np.concatenate(parts) for parts in by_document.values()]
    some = [values for values in joined if len(values)]
    sums, counts = [float(values.sum()) for values in some], list(map(len, some))
    return (ratio(sums, counts) if some else None), len(some)


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return two tables per model and task: perplexity of the key tokens, and the gain."""
    gained = table.assign(score=table["gain"], low=table["gain_low"], high=table["gain_high"])
    gained["metric"] = "gain of the longer context in nats per token"
    return {**across(table, text), **across(gained, partial(text, digits=3))}


def notes(table: pd.DataFrame) -> list[str]:
    """Return how many tokens are key, and by which method."""
    firsts = table.sort_values("keys", ascending=False).drop_duplicates(["model", "task"])
    return [
        f"{row.model}, {row.task}: {row.keys} of {row.tokens} scored tokens are key, by the losses "
        f"of {row.evaluator} at two lengths. This choice favours its own score at the longer one."
        for row in firsts.itertuples()
    ]
