"""Titles in words: what a task measures, as a reader who did not run it would say it."""

from __future__ import annotations

import pandas as pd

from harness.stats.cells import once

PROTOCOLS = {
    "tail": "Perplexity on the last {:,} tokens",
    "prefix": "Perplexity on whole windows",
    "press": "Perplexity in a sliding window",
    "disjoint": "Perplexity in disjoint windows",
    "overlap": "Perplexity in overlapping windows",
}  # by the names that records have
SPELLED = {"niah": "NIAH", "ruler": "RULER", "qa": "QA", "window_kl": "KL divergence per token"}


@once
def titles(frame: pd.DataFrame) -> dict[str, str]:
    """Return a title for every task label of a frame; its options where two would be alike."""
    named = {}
    for label, rows in frame.groupby("task", sort=False):
        named[str(label)] = _title(str(label), rows)
    every = list(named.values())
    return {
        label: f"{title} ({label.partition(':')[2] or 'default'})"
        if every.count(title) > 1
        else title
        for label, title in named.items()
    }


def _title(label: str, rows: pd.DataFrame) -> str:
    family, metric = label.partition(":")[0], str(rows["metric"].iloc[0])
    protocols = rows["protocol"].dropna() if "protocol" in rows else pd.Series(dtype=str)
    if metric == "perplexity" and len(protocols) and protocols.iloc[0] in PROTOCOLS:
        targets = rows["weight"].mode() if "weight" in rows else pd.Series(dtype=float)
        title = PROTOCOLS[protocols.iloc[0]]
        return title.format(int(targets.iloc[0])) if len(targets) else title.replace(" {:,}", "")
    name = SPELLED.get(family, family.replace("_", " ").capitalize())
    return name if metric == family else f"{name} {metric.replace('_', ' ')}"
