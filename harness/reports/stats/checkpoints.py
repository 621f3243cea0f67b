"""Checkpoints as treatments: models that were asked the same questions are compared as methods."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from harness.reports.stats.measure import Measure, measure

Key = tuple[str, int]  # task and length


def alike(frame: pd.DataFrame) -> list[list[str]]:
    """Return the groups of models that were asked the same questions of every task and length.

    The same questions are the same tokens and targets: documents and tokenizer are the same. At
    least one task and length must be in common.
    """
    if "question" not in frame or frame["model"].nunique() < 2:
        return []
    asked: dict[str, dict[Key, frozenset[str]]] = {}
    for (model, task, length), rows in frame.groupby(["model", "task", "length"], sort=False):
        asked.setdefault(str(model), {})[str(task), int(str(length))] = frozenset(rows["question"])
    groups: list[list[str]] = []
    for model, own in asked.items():
        known = [group for group in groups if all(_same(own, asked[other]) for other in group)]
        if known:
            known[0].append(model)
        else:
            groups.append([model])
    return [group for group in groups if len(group) > 1]


def _same(one: dict[Key, frozenset[str]], other: dict[Key, frozenset[str]]) -> bool:
    both = one.keys() & other.keys()
    return bool(both) and all(one[key] == other[key] for key in both)


def labelled(model: str, scaling: str) -> str:
    """Return the name of a method of one of several models."""
    return f"{model} · {scaling}"


def _named(group: list[str]) -> str:
    return f"{', '.join(group[:-1])} and {group[-1]}"


def together(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of models that are alike, each group as one model of all their methods.

    Only tasks and lengths that all models of a group have; empty where no two are alike.
    """
    parts = [frame.iloc[:0]]
    for group in alike(frame):
        rows = frame[frame["model"].isin(group)]
        count = rows.groupby(["task", "length"])["model"].transform("nunique")
        rows = rows[count == len(group)]
        names = [labelled(*pair) for pair in zip(rows["model"], rows["scaling"], strict=True)]
        signs = rows["model"] + " " + rows["frequencies"]  # None stays None: it is no measurement
        name = _named(group)
        parts.append(rows.assign(model=name, scaling=names, frequencies=signs))
    return pd.concat(parts)


def lengths(frame: pd.DataFrame) -> Iterator[tuple[list[str], pd.DataFrame, Measure]]:
    """Yield the models of every group, its samples of one task and length, and their measure."""
    every = together(frame)
    groups = {_named(group): group for group in alike(frame)}
    for (name, _), samples in every.groupby(["model", "task"], sort=False):
        for _, here in samples.groupby("length"):
            yield groups[str(name)], here, measure(samples)
