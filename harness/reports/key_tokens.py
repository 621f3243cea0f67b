"""Perplexity of the tokens that need a long context (LongPPL, arXiv:2410.23771), and its gain."""

from __future__ import annotations

import pandas as pd

from harness.reports.writing import sentences
from harness.reports.writing.sentences import text
from harness.reports.writing.tables import across
from harness.stats.cells import CELL, cells
from harness.stats.key_tokens import DROP, MOST, RULE, measured

FOUND = ["score", "low", "high", "n", "keys", "tokens", "gain", "gain_low", "gain_high", "large"]

OWN = (
    " Losses of `{evaluator}` choose them, which favours its own score at {long} tokens beside "
    "those of other methods, and spoils it at {short}."
)


def make(
    frame: pd.DataFrame,
    *,
    evaluator: str = "none",
    evaluator_model: str = "",
    drop: float = DROP,
    most: float = MOST,
) -> pd.DataFrame:
    """Return a row per cell of tail perplexity.

    A token is key where the loss of ``evaluator``, a method of the same sweep, falls by more than
    ``drop`` nats from its shortest window to its longest inside the trained length, to less than
    ``most``. With ``evaluator_model`` it is that of another model: of other tokens a token is key
    that lies in the text of the evaluator's key tokens. ``score`` is exp(mean loss) over them,
    ``gain`` the mean loss over all targets at the shortest length less that at the cell's, both
    under the cell's own method, and ``large`` the share of targets that gain more than ``drop``.
    Raises ValueError where losses lack.
    """
    found = measured(frame, evaluator, drop, most, evaluator_model)
    joined = cells(frame).set_index(CELL)[["relative_length", "status"]].join(found, how="inner")
    joined["metric"] = "key perplexity"
    return joined.reset_index()[[*CELL, "relative_length", "metric", *FOUND, "status", *RULE]]


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return two tables per model and task: perplexity of the key tokens, and the gain."""
    records = table.to_dict("records")
    gained = table.assign(score=table["gain"], low=table["gain_low"], high=table["gain_high"])
    gained["metric"] = "gain of the longer context in nats a token"
    texts = [text(cell, 3) for cell in gained.to_dict("records")]
    return {
        **across(table.assign(text=[text(cell) for cell in records])),
        **across(gained.assign(text=texts)),
    }


def words(table: pd.DataFrame) -> list[str]:
    """Say by which rule tokens are key, and how many are."""
    told = []
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        first = max(rows.to_dict("records"), key=lambda row: row["keys"])
        drop, most = first["drop"], first["most"]
        told.append(
            f"{model}, {task}: {first['keys']} of {first['tokens']} scored tokens "
            f"{sentences.are(first['keys'])} key: the "
            f"loss of `{first['evaluator']}` falls by more than {drop:g} nats from a context of "
            f"{first['short']} tokens to {first['long']}, to less than {most:g}. "
            f"{'It stands' if first['keys'] == 1 else 'They stand'} in "
            f"{sentences.counted(first['n'], 'documents')}."
        )
        if first["evaluator"] in set(rows["scaling"]):
            told[-1] += OWN.format_map({str(name): value for name, value in first.items()})
    return told
