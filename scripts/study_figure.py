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
WINDOWS = {8192: 8, 16_384: 4, 32_768: 1}  # how many score a document's targets at a length
LENGTHS = [*WINDOWS]
NEEDLES = ("single_1", "single_2", "multikey_1")
TRUNCATION = "truncation"
HIGHEST = 0.8  # of the left panel: without a scaling, perplexity is far above it
NAMES = {
    "none": "none", "ntk:factor=4": "NTK-aware", "dynamic_ntk": "dynamic NTK",
    "ntk_by_parts:factor=4": "NTK-by-parts", "yarn:factor=4": "YaRN", "dual_chunk": "dual chunk",
}  # fmt: skip
LOOKS = {
    "none": style.PLAIN, "NTK-aware": style.Look(style.COLOURS[3], "v"),
    "dynamic NTK": style.Look(style.COLOURS[4], "P", "--"),
    "NTK-by-parts": style.Look(style.COLOURS[2], "D"), "YaRN": style.Look(style.COLOURS[0], "s"),
    "dual chunk": style.Look(style.COLOURS[1], "^"), TRUNCATION: style.Look(style.GREY, "X", "-."),
}  # fmt: skip
Curves = Mapping[str, list[tuple[float, float, float]]]  # scores with their 95 % intervals


def perplexities() -> tuple[Curves, int]:
    """Return perplexity relative to truncation, of the methods measured whole, and on how many."""
    parts = (rw.frame(STUDY / f"long.parquet/{run}", losses=True)
             for run in ("perplexity", "others", "moved"))  # fmt: skip
    frame: Any = pd.concat(parts).query("status == 'ok' and scaling in @NAMES")
    cells = frame.groupby(["scaling", "length", "unit"]).agg(
        loss=("value", "sum"), windows=("value", "size"), targets=("weight", "sum")
    )
    whole = cells[cells["windows"] == cells.index.get_level_values("length").map(WINDOWS)]
    losses: Any = whole["loss"].unstack("unit")
    lengths = losses.groupby("scaling").size()
    kept = [name for name in NAMES if lengths.get(name) == len(LENGTHS)]
    losses = losses.loc[kept].dropna(axis=1)
    counts = np.full((losses.shape[1], 1), whole["targets"].iloc[0])
    cut, curves = losses.loc[("none", LENGTHS[0])], dict[str, list[Any]]()
    for (name, _), row in losses.iterrows():
        gap = of_means((row - cut).to_numpy()[:, None], counts, relative=True)[0]
        curves.setdefault(NAMES[name], []).append((gap.value, gap.low, gap.high))
    return curves, losses.shape[1]


def recalls() -> tuple[Curves, int]:
    """Return the curves of recall over the needle tasks, and the number of prompts per length."""
    runs = {"yarn": "YaRN", "ntk_by_parts": "NTK-by-parts", TRUNCATION: TRUNCATION}
    curves: dict[str, list[Any]] = {}
    task = [str(STUDY / "truncated" / "truncated_niah.py")]
    for run, name in runs.items():
        frame = rw.frame(STUDY / f"long.parquet/ruler_{run}", task if run == TRUNCATION else [])
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
        look, (y, low, high) = LOOKS[name], np.array(scores).T
        axes.errorbar(
            np.array(LENGTHS) * (1 + apart * (place - len(curves) / 2)), y, (y - low, high - y),
            color=look.color, marker=look.marker, linestyle=look.linestyle, markersize=4,
            elinewidth=0.7, markeredgecolor="white", markeredgewidth=0.5, label=name,
        )  # fmt: skip
    style.length_axis(axes, 6800, 40_000, LENGTHS[0])
    axes.set_xticks(LENGTHS, [style.tick_label(length, LENGTHS[0]) for length in LENGTHS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("Context length (tokens)")


@style.drawing()
def figure() -> Figure:
    """Return the figure."""
    drawn, (left, right), _ = style.sheet(2, 2.6)
    curves, documents = perplexities()
    draw(left, curves, 0.015)
    title = f"Perplexity relative to truncation, {documents} documents"
    left.set(ylim=(-0.15, HIGHEST), title=title)
    left.axhline(0, color=style.GREY, linestyle="-.", linewidth=1)
    for length, (value, _, _) in zip(LENGTHS[1:], curves["none"][1:], strict=True):
        left.annotate(
            f"none: {1 + value:,.0f} times", (length, HIGHEST), (0, -9), ha="center",
            textcoords="offset points", fontsize=style.SIZE - 1,
        )  # fmt: skip
    curves, prompts = recalls()
    draw(right, curves, 0.03)
    right.set(ylim=(0, 1), title=f"Recall of RULER's needles, {prompts} prompts per length")
    style.Methods({}, LOOKS, []).finish(drawn, title)
    return drawn


if __name__ == "__main__":
    figure().savefig(STUDY / "curves.png")
