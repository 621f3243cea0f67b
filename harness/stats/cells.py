"""From samples to cells, one row per model, task, scaling and length; methods that coincide."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

import pandas as pd

from ropewalk.harness.stats.measure import LOWER

CELL = ["model", "task", "scaling", "length"]
SCORE = ["score", "low", "high", "n"]
MEASURED = ["model", "task", "length", "frequencies", "score"]
COLUMNS = [*CELL, "relative_length", "metric", *SCORE, "status", "trained_length", "frequencies"]
T = TypeVar("T")
_cache: ContextVar[dict[Any, Any] | None] = ContextVar("_cache", default=None)


@contextmanager
def shared() -> Iterator[None]:
    """Keep what ``once`` functions return of a frame until the end; no report changes its frame."""
    token = _cache.set({} if _cache.get() is None else _cache.get())
    try:
        yield
    finally:
        _cache.reset(token)


def once(make: Callable[[pd.DataFrame], T]) -> Callable[[pd.DataFrame], T]:
    """Compute a function of a frame once inside ``shared``; a table is returned as a copy."""

    @wraps(make)
    def cached(frame: pd.DataFrame) -> T:
        known = _cache.get()
        if known is None:
            return make(frame)
        at = make, id(frame)
        if at not in known:
            known[at] = frame, make(frame)  # the frame is kept, so that no other has its id
        result: Any = known[at][1]
        if isinstance(result, pd.DataFrame):
            result = result.copy()
        return cast(T, result)

    return cached


@once
def cell_scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Reduce samples to one row per cell.

    Models, tasks and scalings keep their order of appearance, lengths rise. Raises ValueError
    when one cell comes with two scores, as from two runs that differ in what the labels leave out.
    """
    frame = frame[[name for name in ("run", *COLUMNS) if name in frame]]
    measured_first = frame.iloc[frame["score"].isna().to_numpy().argsort(kind="stable")]
    facts = measured_first.drop_duplicates(CELL)
    several = frame.dropna(subset="score").drop_duplicates([*CELL, "score"])
    several = several[several.duplicated(CELL, keep=False)]
    if len(several):
        first = several[(several[CELL] == several[CELL].iloc[0]).all(axis=1)]
        where = ", ".join(f"{name} {first[name].iloc[0]}" for name in CELL)
        scores = ", ".join(f"{score:g}" for score in first["score"])
        runs = ", ".join(first["run"].unique())
        raise ValueError(
            f"{where} has several scores ({scores}) in {runs}; report these runs apart"
        )
    statuses: dict[tuple[Hashable, ...], dict[str, int]] = {}
    counts = frame.groupby([*CELL, "status"], sort=False).size().reset_index()
    for *cell, status, count in counts.itertuples(index=False, name=None):
        statuses.setdefault(tuple(cell), {})[status] = count
    table = pd.DataFrame(list(statuses), columns=CELL).merge(facts, on=CELL)
    table = table.reindex(columns=COLUMNS)
    table["relative_length"] = table["length"] / table["trained_length"]
    table["status"] = list(map(_summary, statuses.values()))
    table["n"] = table["n"].astype("Int64")
    return table.sort_values(CELL, key=_rank, ignore_index=True)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows with None for what is missing."""
    rows: Any = table.astype(object).where(table.notna(), None).to_dict("records")
    return cast(list[dict[str, Any]], rows)


def coinciding(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep one of the scalings that have the same frequencies in all their cells, named for all.

    Works on samples, on cells, and on channels, which have no score; ``ntk`` and ``dynamic_ntk``
    become ``ntk = dynamic_ntk``.
    """
    # The score is compared too: equal frequencies of which only one was measured stay separate.
    known = frame.assign(frequencies=frame["frequencies"].fillna(frame["scaling"]))
    facts = known[["scaling", *known.columns.intersection(MEASURED)]].drop_duplicates().astype(str)
    signs: dict[str, set[Hashable]] = {}
    for scaling, *sign in facts.itertuples(index=False, name=None):
        signs.setdefault(scaling, set()).add(tuple(sign))
    alike: dict[Hashable, list[str]] = {}
    for scaling, cells in signs.items():
        alike.setdefault(frozenset(cells), []).append(scaling)
    labels = {names[0]: " = ".join(names) for names in alike.values()}
    kept = frame[frame["scaling"].isin(list(labels))]
    return kept.assign(scaling=kept["scaling"].map(labels))


def in_option(given: str, names: Iterable[str]) -> str:
    """Return the one of these names that an option gives, where commas are plus signs."""
    return next((name for name in names if given in (name, name.replace(",", "+"))), given)


def ranked(frame: pd.DataFrame) -> list[str]:
    """Return the scalings from best to worst by their mean place at each task's longest length."""
    order = list(frame["scaling"].unique())
    if "score" not in frame:  # channels
        return order
    grouped = frame.groupby(["model", "task", "length", "scaling", "metric"], sort=False)
    table = grouped["score"].max().reset_index()
    longest = table.groupby(["model", "task"])["length"].transform("max")
    far = table[table["length"] == longest]
    cost = far["score"].where(far["metric"].isin(LOWER), -far["score"])
    place = cost.groupby([far["model"], far["task"]]).rank(na_option="bottom")
    mean = place.groupby(far["scaling"]).mean().reindex(order)
    return [str(name) for name in mean.sort_values(kind="stable").index]


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


def _summary(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    others = [f"{count} {status}" for status, count in counts.items() if status != "ok"]
    return ", ".join([f"{counts.get('ok', 0)} of {sum(counts.values())} ok", *others])


def _rank(column: pd.Series[str]) -> pd.Series[int]:
    if column.name == "length":
        return column.astype(int)
    return pd.Series(pd.factorize(column)[0], index=column.index)
