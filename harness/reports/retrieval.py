"""Retrieval at every length, as in RULER's table, and by the depth of the needle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from ropewalk.harness.reports.plots import style
from ropewalk.harness.reports.plots.methods import methods
from ropewalk.harness.reports.writing.sentences import percent, text, titles
from ropewalk.harness.reports.writing.tables import across, heading
from ropewalk.harness.stats.cells import CELL
from ropewalk.harness.stats.measure import SHARES
from ropewalk.tasks._intervals import draws, macro_average, proportion

THRESHOLD = 0.856  # of Llama 2 7B at 4k tokens in RULER's thirteen tasks (arXiv:2404.06654)
MEAN = "mean"
ROUNDING = 1e-12  # of a mean of shares
NEEDED = (
    "model", "task", "scaling", "length", "trained_length", "metric", "status", "value", "weight",
    "part", "question", "answer", "key",
)  # fmt: skip
MISSING = {"score": None, "low": None, "high": None, "n": 0, "status": "missing"}
NONE = "no task of retrieval was measured; add niah, ruler or passkey to the sweep"
NO_DEPTH = "no task hides something at a depth"
EFFECTIVE = (
    "Effective length: the longest that, with all shorter ones measured, reaches {:.1f} %; RULER's "
    "85.6 % is the score of Llama 2 7B at 4k in its thirteen tasks."
)
LACKING = (
    "Missing: another method has this task at this length, this one has not, and so no average."
)
COLOURS = "viridis"  # rises evenly in lightness, so it holds in grey and to colour-blind eyes
MOST_NAMED = 11  # depths that get a label
MOST_MAPS = 12  # of a model and task
TALLEST = 9.4  # inches of a page
LINE = "Right of the line: past the trained length."
HATCHED = "Hatched: not measured, or failed."
ANY_FORMAT = ", any format"
LENIENT = (
    "Any format: the right number counts in whatever format; it does not count in the scores, and "
    "not in the map beside it."
)
FEW = 5  # trials: a share of fewer is written as a count


def make(frame: pd.DataFrame, *, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Return one row per model, scaling, length and part, and of the mean of all parts.

    A part is a task, or what a task names so, with the Wilson interval of its trials. The mean
    weights all parts equally. Its interval is that of as many trials as all parts have; parts that
    hide the same answers, such as a task with and without ``chat``, count as one there. It is
    empty if a part has no score, and a length at which a part was not measured has none.
    ``average`` is the mean over all lengths. ``effective_length`` is the longest length that, with
    all shorter ones, reaches ``threshold``. Both are empty if a length has no score, or if only
    another method of the model has it. Raises ValueError where no task of retrieval was measured.
    """
    known = frame.loc[frame["metric"].isin(SHARES)].reindex(columns=NEEDED).reset_index(drop=True)
    if known.empty:
        raise ValueError(NONE)
    rows: list[dict[str, Any]] = []
    for (model, window), samples in _named(known).groupby(["model", "trained_length"], sort=False):
        trials = samples.groupby(["scaling", "length", "part"], sort=False)
        scores = {key: _score(of) for key, of in trials}
        parts_at = samples.groupby("length")["part"].unique()
        answers = samples["answer"].astype(object).fillna(samples["key"].astype(object))
        hidden_in = answers.groupby(samples["part"], sort=False)
        drawn = draws({part: set(values.dropna()) for part, values in hidden_in})
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
        whole = bool(cells["score"].notna().all())
        by_length = cells.sort_values("length")
        reached = by_length[(by_length["score"] >= threshold - ROUNDING).cummin()]
        kept.append(
            cells.assign(
                average=cells["score"].mean() if whole else None,
                effective_length=reached["length"].max() if whole and len(reached) else None,
                threshold=threshold,
            )
        )
    result = pd.concat(kept, ignore_index=True).astype({"average": float})
    result["effective_length"] = result["effective_length"].astype("Int64")
    metric = result.pop("metric")
    return result.assign(task=result["part"], metric=metric)


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the mean of all parts, with average and effective length, then every part."""
    known = _parts(table)
    first = "mean of all tasks" if len(known) > 1 else known[0]
    shown = table if len(known) > 1 else table[table["part"] == MEAN]
    titled = shown.assign(task=shown["part"].replace(MEAN, first))
    tables = across(titled, lambda cell: text({**cell, "metric": "accuracy"}))  # in percent
    for model, rows in table[table["part"] == MEAN].groupby("model", sort=False):
        mean = tables[heading(first, rows["metric"].iloc[0], str(model))]
        below = f"< {style.length_label(int(rows['length'].min()))}"
        averages, reaches = [], []
        for row in rows.drop_duplicates("scaling").to_dict("records"):
            known_average, reach = pd.notna(row["average"]), row["effective_length"]
            averages.append(f"{100 * row['average']:.1f} %" if known_average else "")
            label = below if pd.isna(reach) else style.length_label(int(reach))
            reaches.append(label if known_average else "")
        mean["average"], mean["effective length"] = averages, reaches
    order = sorted(tables, key=lambda title: not title.startswith(first))
    return {title: tables[title] for title in order}


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the mean covers, what is missing, and when a length is effective."""
    each = {str(model): _counted(rows) for model, rows in table.groupby("model", sort=False)}
    texts = list(dict.fromkeys(each.values()))
    texts = texts if len(texts) == 1 else [f"{model}: {text}" for model, text in each.items()]
    texts += [LACKING] if (table["status"] == "missing").any() else []
    return [*texts, EFFECTIVE.format(100 * table["threshold"].iloc[0])]


def _counted(rows: pd.DataFrame) -> str:
    known = _parts(rows)
    scored = rows[(rows["part"] != MEAN) & rows["score"].notna()]
    counts = sorted(scored["n"].agg(["min", "max"]).dropna().astype(int).unique())
    trials = f"{' to '.join(map(str, counts))} trial{'s' * (counts != [1])} each at a length"
    trials = trials if counts else "without a score at any length"
    if len(known) == 1:
        return f"{known[0]}, {trials}."
    sentence = f"The mean counts {len(known)} tasks the same ({', '.join(known)}), {trials}."
    if without := sorted(set(rows["length"]) - set(rows.loc[rows["part"] == MEAN, "length"])):
        lengths = ", ".join(map(str, without))
        sentence += f" A length at which not every task was asked ({lengths} tokens) has no mean"
        sentence += " and is in no average."
    return sentence


def _parts(table: pd.DataFrame) -> list[str]:
    return [part for part in table["part"].unique() if part != MEAN]


def hidden(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that were measured of what is hidden at a depth; of other tasks none."""
    if "depth" not in frame:
        return frame[:0]
    measured = frame[["depth", "value"]].notna().all(axis=1)
    return frame[measured & frame["metric"].isin(SHARES)]


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
    """Return the share of one part; None where a trial failed, which no share may leave out."""
    total = len(trials)
    if lost := [status for status in trials["status"] if status != "ok"]:
        return {**MISSING, "n": total - len(lost), "status": lost[0]}
    hits = float((trials["value"] / trials["weight"]).sum())
    low, high = proportion(hits, total)
    return {"score": hits / total, "low": low, "high": high, "n": total, "status": "ok"}


def _mean(scores: list[dict[str, Any]], drawn: Mapping[str, str]) -> dict[str, Any]:
    """Return the mean of parts with its interval; those of equal draws are not independent."""
    lacking = [row for row in scores if row["score"] is None]
    n = sum(row["n"] for row in scores)
    if lacking:
        return {**MISSING, "n": n, "status": lacking[0]["status"]}
    shares, trials = [row["score"] for row in scores], [row["n"] for row in scores]
    value, low, high = macro_average(shares, trials, [drawn[row["part"]] for row in scores])
    return {"score": value, "low": low, "high": high, "n": n, "status": "ok"}


def draw(frame: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw one heat map per scaling of the share found by depth (down) and length (across).

    Where answers have the number in another format, a map that counts them is beside it. Methods
    with the same frequencies in all cells share a map. Raises ValueError where no task hides
    something at a depth.
    """
    del table
    known = methods(frame)
    tasks = hidden(frame)["task"].unique()
    if not len(tasks):
        raise ValueError(NO_DEPTH)
    every = frame[frame["task"].isin(tasks)]  # unmeasured cells included
    needed = [*CELL, "trained_length", "depth", "value", "found"]
    samples = known.drawn(every.reindex(columns=needed))
    names = list(samples["scaling"].unique())
    kept = known.first(names, MOST_MAPS)
    samples = samples[samples["scaling"].isin(kept)]
    every_map = _maps(samples, titles(frame))
    lenient = [shown.title.endswith(ANY_FORMAT) for shown in every_map]
    widest = max(len(shown.lengths) for shown in every_map)
    most = 3 if widest <= 7 else 2 if widest <= 10 else 1
    columns = style.columns_for(len(every_map), 1, most=most)
    if columns != 1 and 2 * sum(lenient) == len(every_map):  # pairs stay side by side
        columns = style.paper().across(4 if widest <= 4 else 2)
    columns = max(columns, min(len(every_map), 2)) if widest <= 4 else columns
    tall = max(0.9, min(0.2 * max(len(shown.depths) for shown in every_map), 2.4))
    most = columns * int(TALLEST / (tall + 0.75))
    maps, left_out = style.shown_part(every_map, "maps", min(most, 2 * MOST_MAPS))
    if len(kept) < len(names):
        left_out += f" The best {len(kept)} of {len(names)} methods at the longest length are here."
    figure, panels = style.sheet(len(maps), columns, panel_height=tall + 0.75)
    room = (figure.get_size_inches()[0] - 0.9) / columns - 0.35
    rows = math.ceil(len(maps) / columns)
    for index, (axes, shown) in enumerate(zip(panels, maps, strict=True)):
        mesh = _heat_map(axes, shown, room=room, tall=tall)
        style.tidy(axes, shown.title, room=room)
        axes.spines[:].set_visible(False)
        if index % columns == 0:
            axes.set_ylabel("Depth (%)", fontsize=style.SIZE)
        if index // columns == rows - 1:
            label = "Context length (tokens)" if room > 1.5 else "Length"
            axes.set_xlabel(label, fontsize=style.SIZE)
    percent = PercentFormatter(1, symbol="")
    bar = figure.colorbar(mesh, ax=panels, format=percent, aspect=12 * rows, pad=0.02)
    bar.set_label("Found (%)", fontsize=style.SIZE)
    bar.ax.tick_params(labelsize=style.SIZE - 1, length=2.5, width=0.6)
    bar.outline.set_visible(False)
    figure.set_label(_caption(samples, maps, titles(frame)) + left_out)
    return figure


def _maps(samples: pd.DataFrame, named: Mapping[str, str]) -> list[Map]:
    """Return one map per model, task and scaling, titled with what differs between maps."""
    parts = ["model", "task", "scaling"]
    titled = [part for part in parts if part == "scaling" or samples[part].nunique() > 1]
    maps = []
    for _, kin in samples.groupby(["model", "task"], sort=False):
        depths, lengths = sorted(kin["depth"].dropna().unique()), sorted(kin["length"].unique())
        for _, rows in kin.groupby("scaling", sort=False):
            first = rows.iloc[0]
            title = ", ".join(named.get(first[part], str(first[part])) for part in titled)
            known = rows.dropna(subset=["depth", "value"])
            either = known["value"].mask(known["found"] == "format", 1.0)
            kinds = [(title, known)]
            if (either != known["value"]).any():
                kinds.append((f"{title}{ANY_FORMAT}", known.assign(value=either)))
            for name, trials in kinds:
                cells = trials.groupby(["depth", "length"])["value"].agg(["mean", "count"])
                shares, counts = (
                    cells[of].unstack().reindex(index=depths, columns=lengths).to_numpy(np.float64)
                    for of in ("mean", "count")
                )
                trained = int(first["trained_length"])
                maps.append(Map(name, depths, lengths, trained, shares, counts))
    return maps


def _caption(samples: pd.DataFrame, maps: list[Map], named: Mapping[str, str]) -> str:
    known = samples.dropna(subset=["depth", "value"])
    sizes = known.groupby(["model", "task", "scaling", "length", "depth"]).size()
    keys = " to ".join(map(str, sorted({sizes.min(), sizes.max()})))
    hatched = [HATCHED] if any(np.isnan(shown.shares).any() for shown in maps) else []
    alike = [samples[part].iloc[0] for part in ("model", "task") if samples[part].nunique() == 1]
    lenient = [LENIENT] if any(shown.title.endswith(ANY_FORMAT) for shown in maps) else []
    what = [f"{', '.join(named.get(name, name) for name in alike)}."] if alike else []
    return " ".join([*what, f"Trials per cell: {keys}.", *lenient, LINE, *hatched])


@dataclass(frozen=True)
class Map:
    """One heat map: ``shares`` of ``counts`` trials, shape (depths, lengths), NaN if unknown."""

    title: str
    depths: list[float]
    lengths: list[int]
    trained_length: int
    shares: NDArray[np.float64]
    counts: NDArray[np.float64]


def _heat_map(axes: Axes, shown: Map, *, room: float, tall: float) -> QuadMesh:
    """Draw one map of ``room`` x ``tall`` inches, with numbers where they can be read."""
    rows, columns = shown.shares.shape
    axes.add_patch(
        Rectangle((-0.5, -0.5), columns, rows, facecolor="0.93", edgecolor="0.6", hatch="/////",
                  linewidth=0, zorder=0)
    )  # fmt: skip
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, shown.shares, cmap=COLOURS,
        vmin=0, vmax=1, edgecolors="white", linewidth=0.5,
    )  # fmt: skip
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)  # depth 0, the start of the text, is on top
    if tall / rows >= 0.12 and room / columns >= 0.2:
        for (row, column), share in np.ndenumerate(shown.shares):
            if not np.isnan(share):  # black or white, whichever has more contrast
                red, green, blue, _ = mesh.cmap(share)
                dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
                count = int(shown.counts[row, column])
                hits = float(share) * count
                few = count < FEW and math.isclose(hits, round(hits), abs_tol=1e-9)
                axes.text(
                    column, row, f"{hits:.0f} of {count}" if few else percent(float(share)),
                    color="white" if dark else "black",
                    fontsize=style.SIZE - 1.5, ha="center", va="center_baseline",
                    in_layout=False,  # it lies inside the map, and there are hundreds
                )  # fmt: skip
    labels = [style.tick_label(length, shown.trained_length) for length in shown.lengths]
    places = [room / columns * index for index in range(columns)]
    axes.set_xticks(range(columns), style.spaced(labels, places))
    named = range(0, rows, math.ceil(rows / MOST_NAMED))
    axes.set_yticks(named, [f"{100 * shown.depths[row]:.0f}" for row in named])
    end = sum(length <= shown.trained_length for length in shown.lengths) - 0.5
    for color, width in (("white", 3.2), ("black", 1.4)):
        axes.plot(
            [end, end], [-0.06, 1], transform=axes.get_xaxis_transform(), color=color,
            linewidth=width, clip_on=False, solid_capstyle="butt", label="_trained",
        )  # fmt: skip
    return mesh
