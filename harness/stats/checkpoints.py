"""Models with the same questions, such as checkpoints, are compared as methods."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pandas as pd

Questions = Mapping[Hashable, frozenset[str]]  # by task and length
MOST_NAMED = 3  # models, in the name of all of them


def alike(frame: pd.DataFrame) -> list[list[str]]:
    """Return the groups of models that have the same questions of every task and length.

    The same questions are the same tokens and targets: documents and tokenizer are the same. At
    least one task and length must be in common.
    """
    if "question" not in frame or frame["model"].nunique() < 2:
        return []
    asked = frame.groupby(["model", "task", "length"], sort=False)["question"].agg(frozenset)
    questions = {
        str(model): own.droplevel("model").to_dict()
        for model, own in asked.groupby(level="model", sort=False)
    }
    groups: list[list[str]] = []
    for model, own in questions.items():
        same = (group for group in groups if all(_same(own, questions[other]) for other in group))
        if (group := next(same, None)) is None:
            groups.append(group := [])
        group.append(model)
    return [group for group in groups if len(group) > 1]


def _same(one: Questions, other: Questions) -> bool:
    both = one.keys() & other.keys()
    return bool(both) and all(one[key] == other[key] for key in both)


def labels(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the name of every method of every model: the model's, where it has ``none`` alone."""
    pairs = frame[["model", "scaling"]].drop_duplicates()
    alone = pairs.groupby("model")["scaling"].agg(lambda own: list(own) == ["none"])
    return {
        (model, scaling): model if alone[model] else f"{model} · {scaling}"
        for model, scaling in pairs.itertuples(index=False)
    }


def group_name(group: list[str]) -> str:
    """Return "a and b", "a, b and c", "a and 3 more": a name that no other group has."""
    if len(group) > MOST_NAMED:
        return f"{group[0]} and {len(group) - 1} more"
    return f"{', '.join(group[:-1])} and {group[-1]}"


def together(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of models that are alike, each group as one model of all their methods.

    Only tasks and lengths that all models of a group have; empty where no two are alike.
    ``of_model`` and ``of_scaling`` are the names that each sample had.
    """
    named = labels(frame)
    frame = frame.assign(of_model=frame["model"], of_scaling=frame["scaling"])
    parts = [frame.iloc[:0]]
    for group in alike(frame):
        rows = frame[frame["model"].isin(group)]
        count = rows.groupby(["task", "length"])["model"].transform("nunique")
        rows = rows[count == len(group)]
        names = [named[pair] for pair in zip(rows["model"], rows["scaling"], strict=True)]
        signs = rows["model"] + " " + rows["frequencies"]  # None stays None: it is no measurement
        parts.append(rows.assign(scaling=names, frequencies=signs, model=group_name(group)))
    return pd.concat(parts)


def as_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of several models as those of one, whose methods they are.

    Raises ValueError for models with other questions or other trained lengths.
    """
    groups, windows = alike(frame), sorted(frame["trained_length"].unique())
    if len(windows) > 1:
        raise ValueError(
            f"the models have trained windows of {' and '.join(map(str, windows))} tokens"
        )
    same = len(groups) == 1 and len(groups[0]) == frame["model"].nunique()
    result = together(frame) if same else frame.iloc[:0]
    if len(result) < len(frame):  # a task or length of some models alone would be in no report
        raise ValueError(
            "it needs models with the same questions: the same documents in the same "
            "tokens, tasks and lengths"
        )
    return result


def separated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of ``as_methods`` under the names of their models again."""
    if "of_model" not in frame:
        return frame
    return frame.assign(model=frame["of_model"], scaling=frame["of_scaling"])
