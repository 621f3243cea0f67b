"""From samples to cells, one row per model, task, scaling and length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

CELL = ["model", "task", "scaling", "length"]
SCORE = ["score", "low", "high", "n"]
COLUMNS = [*CELL, "relative_length", "metric", *SCORE, "status", "trained_length", "frequencies"]


def cell_scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Reduce samples to one row per cell.

    Models, tasks and scalings keep their order of appearance, lengths rise. Raises ValueError
    when one cell comes with two scores, as from two runs that differ in what the labels leave out.
    """
    cells = frame.groupby(CELL, sort=False)
    scores = cells["score"].nunique()
    if scores.max() > 1:
        where = ", ".join(map(str, scores[scores > 1].index.to_frame().iloc[0]))
        raise ValueError(f"{where} has several scores; report its runs apart")
    known = frame.columns.intersection(COLUMNS).drop([*CELL, "status"])
    table = cells[[*known]].first().assign(status=cells["status"].agg(_summary)).reset_index()
    table = table.reindex(columns=COLUMNS).astype({"n": "Int64"})
    table["relative_length"] = table["length"] / table["trained_length"]
    return table.sort_values(CELL, key=_rank, ignore_index=True)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows with None for what is missing."""
    return [  # ``where`` takes much longer on a small table of many columns
        {
            str(name): None if value is pd.NA or value != value else value
            for name, value in row.items()
        }
        for row in table.to_dict("records")
    ]


def in_option(given: str, names: Iterable[str]) -> str:
    """Return the one of these names that an option gives, where commas are plus signs."""
    return next((name for name in names if given in (name, name.replace(",", "+"))), given)


def labels(frame: pd.DataFrame) -> list[str]:
    """Return the name of every row's method: the model's, where it has ``none`` alone."""
    methods = frame.groupby("model")["scaling"].agg(frozenset)
    return [
        str(model) if methods[model] == {"none"} else f"{model} · {scaling}"
        for model, scaling in zip(frame["model"], frame["scaling"], strict=True)
    ]


def as_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of several models as those of one, whose methods they are.

    The same questions are the same tokens and targets: documents and tokenizer are the same.
    ``of_model`` and ``of_scaling`` are the names that each sample had. Raises ValueError for models
    with other questions or other trained lengths.
    """
    windows, models = sorted(frame["trained_length"].unique()), list(frame["model"].unique())
    if len(windows) > 1:
        raise ValueError(
            f"the models have trained windows of {' and '.join(map(str, windows))} tokens"
        )
    # A task or length of some models alone would be in no report.
    asked = frame.groupby(["task", "length", "model"])["question"].agg(frozenset).unstack()
    if len(models) == 1 or asked.isna().any(axis=None) or (asked.nunique(axis=1) > 1).any():
        raise ValueError(
            "it needs models with the same questions: the same documents in the same "
            "tokens, tasks and lengths"
        )
    others = models[1] if len(models) == 2 else f"{len(models) - 1} more"
    return frame.assign(
        model=f"{models[0]} and {others}", scaling=labels(frame),
        frequencies=frame["model"] + " " + frame["frequencies"],  # None, of no measurement, stays
        of_model=frame["model"], of_scaling=frame["scaling"],
    )  # fmt: skip


def separated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of ``as_methods`` under the names of their models again."""
    if "of_model" not in frame:
        return frame
    return frame.assign(model=frame["of_model"], scaling=frame["of_scaling"])


def _summary(statuses: pd.Series[str]) -> str:
    counts = Counter(statuses)
    if len(counts) == 1:
        return next(iter(counts))
    others = [f"{count} {status}" for status, count in counts.items() if status != "ok"]
    return ", ".join([f"{counts['ok']} of {len(statuses)} ok", *others])


def _rank(column: pd.Series[str]) -> pd.Series[int]:
    if column.name == "length":
        return column.astype(int)
    return pd.Series(pd.factorize(column)[0], index=column.index)
