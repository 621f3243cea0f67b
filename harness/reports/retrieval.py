"""Retrieval at every length, as in RULER's table, and by the depth of the needle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import combinations, product
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedLocator, FuncFormatter, PercentFormatter

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports._text import across, percent, text
from ropewalk.harness.stats.cells import CELL, records
from ropewalk.harness.stats.measure import SHARES
from ropewalk.tasks._intervals import proportion

THRESHOLD = 0.856  # of Llama 2 7B at 4k tokens in RULER's thirteen tasks (arXiv:2404.06654)
MEAN = "mean"
ROUNDING = 1e-12  # of a mean of shares
NEEDED = (
    "model", "task", "scaling", "length", "trained_length", "metric", "status", "value", "weight",
    "part", "question", "answer", "key",
)  # fmt: skip
MISSING = {"score": None, "low": None, "high": None, "n": 0, "status": "missing"}
TRIALS = "The mean counts every task the same. Trials of a task at a length: {}."
LACKING = "Missing: another method has this task at this length; without it there is no average."
REACHED = (
    "RULER length: the longest that, with all shorter ones measured, reaches {:.1f} %; RULER's "
    "85.6 % is the score of Llama 2 7B at 4k in its thirteen tasks."
)
COLOURS = "viridis"  # rises evenly in lightness, so it holds in grey and to colour-blind eyes
LIGHT = 0.6  # the share from which a cell is too light for a white number
MOST_NAMED = 11  # depths that get a label, and rows and columns of numbers that can be read
MOST_METHODS = 12
CAPTION = (
    "{}Percent of trials whose text was found. Trials per cell: {}. Right of the line: past the "
    "trained length. Grey: not measured, or failed."
)
FEWER = f" At most the best {MOST_METHODS} methods at the longest length are drawn."


def make(frame: pd.DataFrame, *, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Return one row per model, scaling, length and part, and of the mean of all parts.

    A part is a task, or what a task names so, with the Wilson interval of its trials. The mean
    weights all parts equally. Its interval is that of as many trials as all parts have; parts that
    hide the same answers, such as a task with and without ``chat``, count as one there. It is
    empty if a part has no score, and a length at which a part was not measured has none.
    ``average`` is the mean over all lengths. ``ruler_length`` is the longest length that, with
    all shorter ones, reaches ``threshold``. Both are empty if a length has no score, or if only
    another method of the model has it. Raises ValueError where no task of retrieval was measured.
    """
    known = frame.loc[frame["metric"].isin(SHARES)].reindex(columns=NEEDED).reset_index(drop=True)
    if known.empty:
        raise ValueError(
            "no task of retrieval was measured; add niah, ruler or passkey to the sweep"
        )
    rows: list[dict[str, Any]] = []
    for (model, window), samples in _named(known).groupby(["model", "trained_length"], sort=False):
        trials = samples.groupby(["scaling", "length", "part"], sort=False)
        scores = {key: _score(of) for key, of in trials}
        parts_at = samples.groupby("length")["part"].unique()
        answers = samples["answer"].astype(object).fillna(samples["key"].astype(object))
        hidden_in = answers.groupby(samples["part"], sort=False)
        drawn = _draws({part: set(values.dropna()) for part, values in hidden_in})
        metrics = samples.groupby("part")["metric"].first().to_dict()
        metrics[MEAN] = metrics[next(iter(metrics))] if len({*metrics.values()}) == 1 else "score"
        for scaling, (length, named) in product(samples["scaling"].unique(), parts_at.items()):
            head = {"model": model, "scaling": scaling, "length": length, "trained_length": window}
            here = [
                {**head, "part": part, **scores.get((scaling, length, part), MISSING)}
                for part in named
            ]
            whole = len(named) == samples["part"].nunique()
            every = [*([{**head, "part": MEAN, **_mean(here, drawn)}] if whole else []), *here]
            rows += [{**row, "metric": metrics[row["part"]]} for row in every]
    table = pd.DataFrame(rows).astype({"score": float, "low": float, "high": float})
    table = table.assign(relative_length=table["length"] / table["trained_length"])
    kept = []
    for _, cells in table.groupby(["model", "scaling", "part"], sort=False):
        by_length = cells.sort_values("length")
        reached = by_length["length"][(by_length["score"] >= threshold - ROUNDING).cummin()]
        facts = {"average": cells["score"].mean(), "ruler_length": reached.max()}
        if cells["score"].isna().any():
            facts = dict.fromkeys(facts)
        kept.append(cells.assign(**facts, threshold=threshold))
    result = pd.concat(kept, ignore_index=True).astype({"average": float})
    result["ruler_length"] = result["ruler_length"].astype("Int64")
    metric = result.pop("metric")
    return result.assign(task=result["part"], metric=metric)


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the mean of all parts, with average and RULER length, then every part."""
    means, parts = table[table["part"] == MEAN], table[table["part"] != MEAN]
    several = parts["part"].nunique() > 1
    first = "mean of all tasks" if several else parts["part"].iloc[0]
    tables = across(means.assign(task=first), _in_percent)
    for shown, (_, rows) in zip(tables.values(), means.groupby("model", sort=False), strict=True):
        below = f"< {style.length_label(int(rows['length'].min()))}"
        texts = []
        for row in records(rows.drop_duplicates("scaling")):
            reach = row["ruler_length"]
            length = below if reach is None else style.length_label(reach)
            known = row["average"] is not None
            texts.append((f"{100 * row['average']:.1f} %", length) if known else ("", ""))
        shown[["average", "RULER length"]] = texts
    return tables | (across(parts, _in_percent) if several else {})


def _in_percent(cell: Mapping[str, Any]) -> str:
    return text({**cell, "metric": "accuracy"})


def notes(table: pd.DataFrame) -> list[str]:
    """Return how many trials there are, what is missing, and what the RULER length is."""
    counts = table.loc[(table["part"] != MEAN) & table["score"].notna(), "n"]
    texts = [
        TRIALS.format(style.span(counts) if len(counts) else "none"),
        REACHED.format(100 * table["threshold"].iloc[0]),
    ]
    return texts + [LACKING] * bool((table["status"] == "missing").any())


def _named(known: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with the part that each is of, named with its task where several have any.

    A lost trial names no part: it is of that of its question, which another method answered, or
    counts in every part of its task, for it may be of any.
    """
    tasks, part = known["task"], known["part"].astype(object)
    part = part.fillna(tasks.where(known["status"] == "ok"))
    named = part.notna() & (part != tasks)
    if tasks[named].nunique() > 1:
        part = part.mask(named, part + " of " + tasks)
    labelled = known.assign(part=part).dropna(subset="part")
    of = {task: list(parts.unique()) for task, parts in labelled.groupby("task")["part"]}
    by_question = labelled.groupby(["task", "question"])["part"].first().to_dict()
    every = []
    for name, task, question in zip(part, tasks, known["question"], strict=True):
        if pd.isna(name):
            name = by_question.get((task, question))
        every.append(of.get(task, [task]) if name is None else [name])
    return known.assign(part=pd.Series(every, index=known.index)).explode("part")


def _score(trials: pd.DataFrame) -> dict[str, Any]:
    total = len(trials)
    if lost := [status for status in trials["status"] if status != "ok"]:
        return {**MISSING, "n": total - len(lost), "status": lost[0]}
    hits = float((trials["value"] / trials["weight"]).sum())
    low, high = proportion(hits, total)
    return {"score": hits / total, "low": low, "high": high, "n": total, "status": "ok"}


def _draws(answers: Mapping[str, set[str]]) -> dict[str, str]:
    """Return for each part the first one that hides the same answers in most of its trials."""
    first = {part: part for part in answers}
    for one, other in combinations(answers, 2):
        alike = len(answers[one] & answers[other])
        if 2 * alike > min(len(answers[one]), len(answers[other])):
            joined = first[other]
            first = {part: first[one] if of == joined else of for part, of in first.items()}
    return first


def _mean(scores: list[dict[str, Any]], drawn: Mapping[str, str]) -> dict[str, Any]:
    """Return the mean of parts with its 95 % interval.

    A mean of independent parts with equal trials varies no more than the share of all their trials,
    which it is, so its interval is Wilson's. With other numbers of trials, each part counts as many
    as the part with the fewest. Parts of equal draws are not independent: together they are as
    uncertain as if their trials were the same.
    """
    lacking = [row for row in scores if row["score"] is None]
    n = sum(row["n"] for row in scores)
    if lacking:
        return {**MISSING, "n": n, "status": lacking[0]["status"]}
    value = math.fsum(row["score"] for row in scores) / len(scores)
    alike = sum(size**2 for size in Counter(drawn[row["part"]] for row in scores).values())
    trials = len(scores) ** 2 / alike * min(row["n"] for row in scores)
    low, high = proportion(value * trials, trials)
    return {"score": value, "low": low, "high": high, "n": n, "status": "ok"}


@style.drawing()
def draw(frame: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw one heat map per scaling of the share found by depth (down) and length (across).

    Methods with the same frequencies in all cells share a map. Tasks in which every score is 0 are
    left out. Raises ValueError where no task finds something at a depth.
    """
    del table
    known = style.methods(frame)
    needed = [*CELL, "trained_length", "metric", "depth", "value"]
    samples = known.drawn(frame.reindex(columns=needed))
    found = samples["depth"].notna() & samples["metric"].isin(SHARES) & (samples["value"] > 0)
    samples = samples[samples["task"].isin(samples["task"][found])]  # unmeasured cells too
    if samples.empty:
        raise ValueError("no task finds anything that it hides at a depth")
    best = [name for name in known.best if name in set(samples["scaling"])][:MOST_METHODS]
    samples = samples[samples["scaling"].isin(best)]
    kinds = samples.groupby(["model", "task"])
    maps = samples.groupby(["model", "task", "scaling"], sort=False)
    deepest = int(kinds["depth"].nunique().max())
    figure, panels, letters = style.sheet(len(maps), max(0.9, min(0.2 * deepest, 2.4)) + 0.75)
    counts = []
    for axes, ((model, task, scaling), rows) in zip(panels, maps, strict=True):
        kin = kinds.get_group((model, task))
        depths, lengths = sorted(kin["depth"].dropna().unique()), sorted(kin["length"].unique())
        cells = rows.dropna(subset=["depth", "value"]).groupby(["depth", "length"])["value"]
        counts += cells.size().tolist()
        shares = cells.mean().unstack().reindex(index=depths, columns=lengths)
        mesh = _heat_map(axes, shares, int(rows["trained_length"].iloc[0]))
        parts = {"model": model, "task": task}
        title = [str(parts[name]) for name in parts if samples[name].nunique() > 1]
        axes.set_title(fill(", ".join([*title, str(scaling)]), letters))
        axes.set(xlabel="Context length (tokens)", ylabel="Depth (%)")
    bar = figure.colorbar(mesh, ax=panels, format=PercentFormatter(1, symbol=""), pad=0.02)
    bar.set_label("Found (%)")
    alike = [str(samples[name].iloc[0]) for name in parts if samples[name].nunique() == 1]
    caption = CAPTION.format(". ".join([*alike, ""]), style.span(counts))
    figure.set_label(caption + FEWER * (len(best) == MOST_METHODS))
    return figure


def _heat_map(axes: Axes, shares: pd.DataFrame, trained_length: int) -> AxesImage:
    """Draw shares in percent, depths down, the start of the text on top, and lengths across."""
    rows, columns = shares.shape
    axes.set_facecolor("0.85")  # of cells without a share
    mesh = axes.imshow(shares.to_numpy(), cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(shares.to_numpy()):
        if not np.isnan(share) and rows <= MOST_NAMED and columns <= MOST_NAMED:
            color = "white" if share < LIGHT else "black"
            axes.text(column, row, percent(share), color=color, fontsize=style.SIZE - 1.5,
                      ha="center", va="center_baseline", in_layout=False)  # fmt: skip
    lengths, depths = list(map(int, shares.columns)), list(shares.index)
    axes.xaxis.set_major_locator(FixedLocator(range(columns), nbins=style.MOST_TICKS))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: style.tick_label(lengths[round(x)], trained_length))
    )
    axes.yaxis.set_major_locator(FixedLocator(range(rows), nbins=MOST_NAMED))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: percent(depths[round(y)])))
    inside = sum(length <= trained_length for length in lengths)
    axes.axvline(inside - 0.5, color="black", linewidth=1.4, label="_trained")
    return mesh
