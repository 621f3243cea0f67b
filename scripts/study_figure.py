"""Draw the README's figure from the samples of results/smollm2: scores at 1, 2 and 4 windows.

    python -m scripts.study_figure

The left panel has the methods measured at all three lengths, on the documents that all of them
read; the right one RULER's needle tasks that were measured whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

import ropewalk as rw
from ropewalk.harness.reports import _style as style
from ropewalk.harness.stats.paired import of_means
from ropewalk.tasks._intervals import proportion

STUDY = Path(__file__).resolve().parent.parent / "results" / "smollm2"
LENGTHS, WINDOWS = (8192, 16_384, 32_768), (8, 4, 1)  # windows that score a document's targets
NEEDLES = ("single_1", "single_2", "multikey_1")
TRUNCATION = "truncation"
HIGHEST = 0.8  # of the left panel: without a scaling, perplexity is far above it
NAMES = {
    "none": "none", "ntk:factor=4": "NTK-aware", "dynamic_ntk": "dynamic NTK",
    "ntk_by_parts:factor=4": "NTK-by-parts", "yarn:factor=4": "YaRN", "dual_chunk": "dual chunk",
}  # fmt: skip
LOOKS = {
    "none": ("black", "o", "--"), "NTK-aware": (style.COLOURS[3], "v", "-"),
    "dynamic NTK": (style.COLOURS[4], "P", "--"), "NTK-by-parts": (style.COLOURS[2], "D", "-"),
    "YaRN": (style.COLOURS[0], "s", "-"), "dual chunk": (style.COLOURS[1], "^", "-"),
    TRUNCATION: (style.GREY, "X", "-."),
}  # fmt: skip


Score = tuple[float, float, float]  # with the ends of its 95 % interval
Curves = Mapping[str, list[Score]]


def perplexities() -> tuple[Curves, int]:
    """Return perplexity relative to truncation, of the methods measured whole, and on how many."""
    frame: Any = pd.concat([rw.frame(STUDY / f"long.parquet/{run}", losses=True)
                       for run in ("perplexity", "others", "moved")])  # fmt: skip
    frame = frame[frame["status"] == "ok"]
    cells: Any = frame.groupby(["scaling", "length", "unit"]).agg(
        loss=("value", "sum"), windows=("value", "size"), targets=("weight", "sum")
    )
    whole = cells[cells["windows"] == cells.index.get_level_values("length").map(
        dict(zip(LENGTHS, WINDOWS, strict=True)))]  # fmt: skip
    losses = (
        whole["loss"]
        .unstack("unit")
        .reindex(pd.MultiIndex.from_product([[n for n in NAMES if n in whole.index], LENGTHS]))
    )
    methods = [n for n in losses.index.unique(0) if not losses.loc[n].isna().all(axis=1).any()]
    losses = losses.loc[methods].dropna(axis=1)
    counts = np.full((losses.shape[1], 1), whole["targets"].iloc[0])
    cut, curves = losses.loc[("none", LENGTHS[0])], dict[str, list[Score]]()
    for (name, _), row in losses.iterrows():
        gap: Any = of_means((row - cut).to_numpy()[:, None], counts, relative=True)[0]
        curves.setdefault(NAMES[str(name)], []).append((gap.value, gap.low, gap.high))
    return curves, losses.shape[1]


def recalls() -> tuple[Curves, int]:
    """Return the curves of recall over the needle tasks, and the number of prompts of a length."""
    runs = {"yarn": "YaRN", "ntk_by_parts": "NTK-by-parts", TRUNCATION: TRUNCATION}
    curves: dict[str, list[Score]] = {}
    task = [str(STUDY / "truncated" / "truncated_niah.py")]
    for run, name in runs.items():
        tasks = task if run == TRUNCATION else []
        frame: Any = rw.frame(STUDY / f"long.parquet/ruler_{run}", tasks)
        frame = frame[frame["task"].str.contains("|".join(NEEDLES)) & (frame["status"] == "ok")]
        for length in LENGTHS:
            found = frame.loc[frame["length"] == length, "value"]
            assert len(found) == 20 * len(NEEDLES)
            score = (found.mean(), *proportion(int(found.sum()), len(found)))
            curves.setdefault(name, []).append(score)
    return curves, 20 * len(NEEDLES)


def draw(axes: Axes, curves: Curves, apart: float) -> None:
    """Draw curves with their intervals, ``apart`` along the axis so that these stay legible."""
    for place, (name, scores) in enumerate(curves.items()):
        colour, marker, line = LOOKS[name]
        shift = 1 + apart * (place - len(curves) / 2)
        y, low, high = np.array(scores).T
        axes.errorbar(
            np.array(LENGTHS) * shift, y, (y - low, high - y), color=colour, marker=marker,
            linestyle=line, markersize=4, elinewidth=0.7, markeredgecolor="white",
            markeredgewidth=0.5, label=name,
        )  # fmt: skip
    axes.set(xscale="log", xlim=(6800, 40_000), xlabel="context length (tokens)")
    axes.set_xticks(LENGTHS, [style.tick_label(length, LENGTHS[0]) for length in LENGTHS])
    axes.xaxis.set_minor_locator(NullLocator())


def figure() -> Figure:
    """Return the figure."""
    with style.drawing():
        drawn = Figure(figsize=(style.PAGE, 3.1))
        left, right = drawn.subplots(1, 2)
        perplexity, documents = perplexities()
        draw(left, perplexity, 0.015)
        title = f"Perplexity relative to truncation, {documents} documents"
        left.set(ylim=(-0.15, HIGHEST), title=title)
        left.axhline(0, color=style.GREY, linestyle="-.", linewidth=1)
        for length, (value, _, _) in zip(LENGTHS[1:], perplexity["none"][1:], strict=True):
            left.annotate(
                f"none: {1 + value:,.0f} times", (length, HIGHEST), (0, -9), ha="center",
                textcoords="offset points", fontsize=style.SIZE - 1,
            )  # fmt: skip
        recall, prompts = recalls()
        draw(right, recall, 0.03)
        right.set(ylim=(0, 1), title=f"Recall of RULER's needles, {prompts} prompts a length")
        for axes in (left, right):
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        known: dict[str, Any] = {}
        for axes in (left, right):
            known |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        names = [name for name in LOOKS if name in known]
        drawn.legend([known[name] for name in names], names, loc="outside lower center", ncols=4)
        return drawn


if __name__ == "__main__":
    figure().savefig(STUDY / "curves.png")
