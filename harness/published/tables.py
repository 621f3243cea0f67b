"""Read published tables, value by value with their sources, from ``published.csv`` here.

A row is one value of one table. Its columns:

==============  ==================================================================================
table           the short name of the table
source          the paper, and the table in it
model, data     as the paper names them; a checkpoint that it publishes by the hub's name
protocol        how it was measured: overlap, press, prefix (``tasks/perplexity.py``), or ruler
stride          tokens between two windows of overlap or press; empty for other protocols
scaling         the method as the paper names it
method          its name for ``--scaling``; empty where no method here has the same formula
tuned           "no" for a method without training, else how the checkpoint was trained
trained_length  tokens in a window of pretraining; empty where the checkpoint was made longer
length          tokens
metric          perplexity, or ruler_mean_score (percent)
relation        "=", or ">" where the paper only says that the value is larger
value           the number as printed
==============  ==================================================================================
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.errors import UserError
from harness.names import nearest

FILE = Path(__file__).with_name("published.csv")


def read_tables() -> pd.DataFrame:
    """Return all values of all tables; texts are empty where nothing is known."""
    counts = ("trained_length", "stride")
    frame = pd.read_csv(FILE, dtype=dict.fromkeys((*counts, "method"), str), keep_default_na=False)
    return frame.assign(**{name: pd.to_numeric(frame[name]).astype("Int64") for name in counts})


def read_table(name: str) -> pd.DataFrame:
    """Return one table; raise UserError for an unknown name."""
    frame = read_tables()
    known = list(frame["table"].unique())
    if name not in known:
        raise UserError(f"no published table is called {name!r}; {nearest(name, known)}.")
    return frame[frame["table"] == name].reset_index(drop=True)
