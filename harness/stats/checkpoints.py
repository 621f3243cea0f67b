"""Models with the same questions, such as checkpoints, are compared as methods."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

MOST_NAMED = 3  # models, in the name of all of them


def labels(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the name of every method of every model: the model's, where it has ``none`` alone."""
    pairs = frame[["model", "scaling"]].drop_duplicates()
    alone = pairs.groupby("model")["scaling"].agg(lambda own: list(own) == ["none"])
    return {
        (model, scaling): model if alone[model] else f"{model} · {scaling}"
        for model, scaling in pairs.itertuples(index=False)
    }


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
    cell = ["task", "length"]
    # A task or length of some models alone would be in no report.
    same = len(models) > 1 and "question" in frame
    same = same and set(frame.groupby(cell)["model"].nunique()) == {len(models)}
    if same:
        asked = frame.groupby(["model", *cell])["question"].agg(frozenset)
        same = all(asked[one].equals(asked[other]) for one, other in combinations(models, 2))
    if not same:
        raise ValueError(
            "it needs models with the same questions: the same documents in the same "
            "tokens, tasks and lengths"
        )
    known = labels(frame)
    names = [known[pair] for pair in zip(frame["model"], frame["scaling"], strict=True)]
    joined = f"{', '.join(models[:-1])} and {models[-1]}"
    if len(models) > MOST_NAMED:
        joined = f"{models[0]} and {len(models) - 1} more"
    signs = frame["model"] + " " + frame["frequencies"]  # None stays None: it is no measurement
    frame = frame.assign(of_model=frame["model"], of_scaling=frame["scaling"])
    return frame.assign(scaling=names, frequencies=signs, model=joined)


def separated(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of ``as_methods`` under the names of their models again."""
    if "of_model" not in frame:
        return frame
    return frame.assign(model=frame["of_model"], scaling=frame["of_scaling"])
