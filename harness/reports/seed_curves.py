"""Score against context length in the mean of several seeds, with a thin line a seed."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.reports.curves import curves
from harness.stats.checkpoints import alike, group_name, labels
from harness.stats.seeds import ENDING, of_seeds

TOGETHER = True  # models are compared: one panel a task has them all
MEANS = "Thick lines: means of {} seeds; n is that of each seed."
THIN, NO_THIN = " Thin lines: single seeds.", " Too many methods for single seeds: table of scores."


def make(frame: pd.DataFrame, *, ending: str = ENDING) -> Figure:
    """Draw the mean of every model without its ``ending``, a seed, under every scaling.

    A cell that a seed lacks has no score. Raises ValueError where no model has two seeds.
    """
    table = of_seeds(frame, ending)
    named = labels(table)
    names = [named[pair] for pair in zip(table["model"], table["scaling"], strict=True)]
    lengths = table["length"].astype(str)
    kinds = table["seeds"].map("Mean of {} seeds".format)
    # Panels are of one number of seeds; the best are those of all panels that can be compared.
    groups = alike(table[table["score"].notna()].rename(columns={"questions": "question"}))
    pools = {model: group_name(group) for group in groups for model in group}
    pool = table["model"].map(lambda model: pools.get(model, model))
    if pool.nunique() > 1:
        kinds += ", " + pool
    if table["trained_length"].nunique() > 1:
        kinds += table["trained_length"].map(", window of {:,} tokens".format)
    drawn = table.assign(
        model=kinds,
        pool=pool + " " + table["trained_length"].astype(str),
        scaling=names,
        low=table["least"],
        high=table["most"],
        frequencies=pd.Series(names) + " " + lengths,
    )
    counts = " or ".join(map(str, sorted(set(table["seeds"]))))
    means = MEANS.format(counts)
    return curves(drawn, means + THIN, means + NO_THIN)
