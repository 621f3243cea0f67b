"""Perplexity of the tokens that need a long context (LongPPL, arXiv:2410.23771)."""

from __future__ import annotations

from functools import partial

import pandas as pd

from ropewalk.harness.reports.writing.sentences import counted, text
from ropewalk.harness.reports.writing.tables import across
from ropewalk.harness.stats.cells import CELL, cells
from ropewalk.harness.stats.key_tokens import DROP, MOST, RULE, measured

FOUND = ["score", "low", "high", "n", "keys", "tokens", "gain", "gain_low", "gain_high", "large"]


def make(
    frame: pd.DataFrame,
    *,
    evaluator: str = "none",
    evaluator_model: str = "",
    drop: float = DROP,
    most: float = MOST,
) -> pd.DataFrame:
    """Return one row per cell of tail perplexity.

    A token is a key token if the loss of ``evaluator``, a method of the same sweep, falls by more
    than ``drop`` nats, to less than ``most``. The fall is from its shortest window to its longest
    one inside the trained length. With ``evaluator_model``, the evaluator is that of another model.
    If its tokens differ, a token is a key token if it lies in the text of the evaluator's.

    ``score`` is exp(mean loss) over the key tokens. ``gain`` is the mean loss over all targets at
    the shortest length minus that at the cell's, both under the cell's own method. ``large`` is the
    share of targets that gain more than ``drop``. Raises ValueError if losses are missing.
    """
    result = measured(frame, evaluator, drop, most, evaluator_model)
    joined = cells(frame).set_index(CELL)[["relative_length", "status"]].join(result, how="inner")
    joined["metric"] = "key perplexity"
    return joined.reset_index()[[*CELL, "relative_length", "metric", *FOUND, "status", *RULE]]


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return two tables per model and task: perplexity of the key tokens, and the gain."""
    gained = table.assign(score=table["gain"], low=table["gain_low"], high=table["gain_high"])
    gained["metric"] = "gain of the longer context in nats per token"
    return {**across(table, text), **across(gained, partial(text, digits=3))}


def notes(table: pd.DataFrame) -> list[str]:
    """Return by which rule tokens are key, and how many are."""
    texts = []
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        first = max(rows.to_dict("records"), key=lambda row: row["keys"])
        texts.append(
            f"{model}, {task}: {first['keys']} of {first['tokens']} scored tokens are key, in "
            f"{counted(first['n'], 'documents')}: the loss of `{first['evaluator']}` falls by more "
            f"than {first['drop']:g} nats from a context of {first['short']} tokens to "
            f"{first['long']}, to less than {first['most']:g}."
        )
        if first["evaluator"] in set(rows["scaling"]):
            texts[-1] += (
                f" This choice favours the score of `{first['evaluator']}` at {first['long']} "
                f"tokens and spoils it at {first['short']}."
            )
    return texts
