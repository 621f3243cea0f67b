"""Draw the README's figure from the samples of results/smollm2: scores at 1, 2 and 4 windows.

    python -m scripts.study_figure

The left panel has perplexity, of the methods in ``LOOKS`` and in words of those far above them.
Self-Extend is left out: it coincides with Dual Chunk. The right one has RULER's needle tasks that
ask for one number.
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
LENGTHS = [8192, 16_384, 32_768]  # the first is the trained window, and as many tokens are scored
NEEDLES = ("single_1", "single_2", "multikey_1")
PARTS = ("perplexity", "others", "moved", "more", "more_others")
TRUNCATION = "truncation"
HIGHEST = 0.8  # of the left panel; the methods of FAR_ABOVE are far above it
FAR_ABOVE = ("none", "PI")
NAMES = {
    "none": "none", "pi:factor=4": "PI", "llama3:factor=4": "Llama 3", "ntk:factor=4": "NTK-aware",
    "dynamic_ntk": "dynamic NTK", "ntk_by_parts:factor=4": "NTK-by-parts",
    "mr_rope:factor=4": "MrRoPE", "yarn:factor=4": "YaRN", "self_extend": "Self-Extend",
    "dual_chunk": "Dual Chunk",
}  # fmt: skip
RUNS = {
    "dual_chunk": "Dual Chunk", "yarn": "YaRN", "mr_rope": "MrRoPE", "ntk_by_parts": "NTK-by-parts",
    TRUNCATION: TRUNCATION,
}  # fmt: skip
LOOKS = {
    "Llama 3": style.Look(style.COLOURS[6], "<"), "NTK-aware": style.Look(style.COLOURS[3], "v"),
    "dynamic NTK": style.Look(style.COLOURS[4], "P", "--"),
    "NTK-by-parts": style.Look(style.COLOURS[2], "D"), "MrRoPE": style.Look(style.COLOURS[5], "p"),
    "YaRN": style.Look(style.COLOURS[0], "s"), "Dual Chunk": style.Look(style.COLOURS[1], "^"),
    TRUNCATION: style.Look(style.GREY, "X", "-."),
}  # fmt: skip
Curves = Mapping[str, list[tuple[float, float, float]]]  # scores with their 95 % intervals


def losses() -> Any:
    """Return the summed loss of each document's targets, a row for each method and length."""
    every: Any = pd.concat(rw.frame(STUDY / f"long.parquet/{run}") for run in PARTS)
    cells = every.query("status == 'ok' and scaling in @NAMES").groupby(["scaling", "length"])
    targets = cells.apply(lambda cell: cell.groupby("unit")["weight"].sum())
    assert targets.eq(LENGTHS[0]).all(axis=None)  # the same ones at every length
    return cells.apply(lambda cell: cell.groupby("unit")["value"].sum())


def perplexities() -> tuple[Curves, int]:
    """Return the curves of perplexity relative to truncation, and the number of documents."""
    every = losses()
    counts = np.full((every.shape[1], 1), LENGTHS[0])
    cut, curves = every.loc[("none", LENGTHS[0])], dict[str, list[Any]]()
    for (name, _), row in every.reindex(NAMES, level="scaling").iterrows():
        gap = of_means((row - cut).to_numpy()[:, None], counts, relative=True)[0]
        curves.setdefault(NAMES[name], []).append((gap.value, gap.low, gap.high))
    return curves, every.shape[1]


def recalls() -> tuple[Curves, int]:
    """Return the curves of recall over the needle tasks, and the number of prompts per length."""
    curves: dict[str, list[Any]] = {}
    task = [str(STUDY / "truncated" / "truncated_niah.py")]
    for run, name in RUNS.items():
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
    draw(left, {name: curves[name] for name in curves if name in LOOKS}, 0.015)
    title = f"Perplexity relative to truncation, {documents} documents"
    left.set(ylim=(-0.15, HIGHEST), title=title)
    left.axhline(0, color=style.GREY, linestyle="-.", linewidth=1)
    for place, length in enumerate(LENGTHS):
        above = {name: curves[name][place][0] for name in FAR_ABOVE}
        text = "\n".join(f"{name}: {1 + gap:,.0f} times" for name, gap in above.items() if gap > 1)
        left.annotate(
            text, (length, HIGHEST), (0 if place else 3, 0), textcoords="offset points",
            ha="center" if place else "left", va="top", fontsize=style.SIZE - 1,
        )  # fmt: skip
    curves, prompts = recalls()
    draw(right, curves, 0.03)
    right.set(ylim=(0, 1), title=f"Recall of RULER's needles, {prompts} prompts per length")
    style.Methods({}, LOOKS, []).finish(drawn, title)
    return drawn


if __name__ == "__main__":
    figure().savefig(STUDY / "curves.png")
