"""What each method costs inside the trained window, against the model as it was trained."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.reports.differences import against, beside, key, signed
from harness.reports.plots.methods import fixed_factors
from harness.reports.writing import divergence, sentences
from harness.reports.writing.divergence import KL, with_divergence
from harness.stats.cells import records
from harness.stats.paired import NO_DIFFERENCE

OWN = ("none", "native")  # the model as it was trained: without scaling, else with what it ships


def make(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, task, scaling and length inside the window, with its difference.

    A method whose factor follows the length changes nothing there and costs nothing by
    construction ("same"); a fixed factor does. Where the task window_kl was measured, the columns
    of its name have the divergence from the unpatched model with its interval.
    """
    inside = frame[frame["length"] <= frame["trained_length"]]
    apart, inside = (inside[(inside["metric"] == KL) == is_kl] for is_kl in (True, False))
    models = dict(list(inside.groupby("model", sort=False)))
    own = {model: _own(rows) for model, rows in models.items()}
    if not any(own.values()) or inside["scaling"].nunique() < 2:
        raise ValueError(
            "no cost inside the window to show: add a length of 1x and the scaling none"
        )
    made = [against(rows, name) for model, rows in models.items() if (name := own[model])]
    table = pd.concat(made, ignore_index=True)
    if table.empty:
        raise ValueError(f"{' or '.join(OWN)} has no score inside the window to compare with")
    # One set of frequencies at every length is what can be served; others follow the length.
    return with_divergence(table.assign(fixed=table["scaling"].isin(fixed_factors(frame))), apart)


def _own(samples: pd.DataFrame) -> str | None:
    """Return under which name a model was measured as it was trained, None where it was not."""
    return next((name for name in OWN if name in set(samples["scaling"])), None)


def readable(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the tables for people, lengths side by side: the differences, and the divergence."""
    return beside(table) | divergence.readable(table)


def words(table: pd.DataFrame) -> list[str]:
    """Say what costs nothing by construction, what has a significant cost, and what may."""
    told: list[str] = []
    for (model, _), rows in table.groupby(["model", "task"], sort=False):
        facts = records(rows)
        measured = sentences.named(facts[0], table)
        start = f"{model}, {measured}" if table["model"].nunique() > 1 else measured
        told.append(f"{start} inside the window: {'; '.join(_clauses(facts))}.")
    if not table["fixed"].any():
        told.append(NO_FIXED)
    return told


def legend(table: pd.DataFrame) -> list[str]:
    """Say what the table's words and marks mean."""
    told = [] if table["same"].all() else [key(table)]
    return [*told, divergence.LEGEND] if KL in table else told


def _clauses(facts: list[dict[str, Any]]) -> list[str]:
    """Group the methods by what is known of their cost."""
    found: dict[str, dict[str, list[str]]] = {}  # by method and verdict the lengths
    last = {row["scaling"]: row for row in facts}  # at the longest length inside the window
    for row in facts:
        lengths = found.setdefault(row["scaling"], {}).setdefault(row["verdict"], [])
        lengths.append(str(int(row["length"])))
    own = f"`{facts[0]['baseline']}`"
    clauses = []
    if free := [name for name, of in found.items() if of.keys() == {"same"}]:
        clauses.append(
            f"{sentences.listed(free)} cost{'s' if len(free) == 1 else ''} nothing, "
            f"with the frequencies of {own} there"
        )
    if told := [f"`{name}` {signed(row)}" for name, row in last.items() if row["fixed"]]:
        clauses.append(f"with one fixed factor for all lengths, as it is served: {', '.join(told)}")
    for verdict, form in GROUPS.items():
        for where, names in _places(found, verdict).items():
            clauses.append(f"{sentences.listed(names)}{where} {form.format(own=own)}")
    return clauses


def _places(found: dict[str, dict[str, list[str]]], verdict: str) -> dict[str, list[str]]:
    """Return the methods of a verdict, by " at 256 tokens" where other lengths have another."""
    places: dict[str, list[str]] = {}
    for name, of in found.items():
        if verdict in of:
            several = len(of.keys() - {"same"}) > 1
            where = f" at {sentences.listed(of[verdict])} tokens".replace("`", "")
            places.setdefault(where if several else "", []).append(name)
    return places


NO_FIXED = (
    "No factor here is fixed, and what is served is one fixed factor: those that follow the length "
    "show no cost inside the window. Add one, as `yarn:factor=8`."
)
GROUPS = {
    "worse": "significantly worse than {own}",
    "better": "significantly better than {own}",
    NO_DIFFERENCE: "not significantly different from {own}",
    "not compared": "not compared with {own}, because too few samples are shared",
}
