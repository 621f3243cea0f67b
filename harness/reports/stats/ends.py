"""Every method at two lengths: the longest inside the trained window, and the longest of all."""

from __future__ import annotations

import pandas as pd

from harness.reports.writing import sentences

ENDS = ("score", "low", "high", "length", "relative_length")
KIN = ["model", "task", "scaling"]


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return every method's score at the longest length inside the window and at the longest."""
    known = table[table["score"].notna()]
    within = known["length"] <= known["trained_length"]
    # A row whole: GroupBy.last takes a missing interval from a shorter length.
    inside, beyond = (
        rows.groupby(KIN, sort=False).tail(1).set_index(KIN)
        for rows in (known[within], known[~within])
    )
    far = beyond[list(ENDS)].add_suffix("_long")
    both = inside[[*ENDS, "metric", "n"]].join(far, how="inner").reset_index()
    if both.empty:
        raise ValueError(
            "nothing to set against each other: it needs lengths inside the window and beyond"
        )
    # A method lost at the longest length would be shown at a shorter one, beside the others.
    longest = both.groupby(["model", "task"])["length_long"].transform("max")
    return both[both["length_long"] == longest]


def without(every: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return which methods lack one of the two scores of a panel that they were asked for."""
    asked, drawn = (pd.MultiIndex.from_frame(rows[KIN]).unique() for rows in (every, table))
    shown = set(map(tuple, table[KIN[:2]].to_numpy()))
    lost = [cell[2] for cell in asked.difference(drawn, sort=False) if cell[:2] in shown]
    named = sentences.listed(list(dict.fromkeys(lost))).replace("`", "") if lost else ""
    return f" Without a score at one of the two lengths: {named}." if lost else ""
