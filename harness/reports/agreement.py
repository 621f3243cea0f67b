"""Whether perplexity predicts retrieval: one point per method and one panel per length."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy.special import ndtri

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports._style import Methods, methods
from ropewalk.harness.reports.writing.sentences import titles
from ropewalk.harness.stats.cells import CELL, cells
from ropewalk.harness.stats.key_tokens import measured
from ropewalk.harness.stats.measure import LOWER, SHARES
from ropewalk.tasks._intervals import CONFIDENCE

METHODS = 5  # the fewest of which a rank correlation says anything
NONE = (
    "nothing to set against each other: it needs perplexity by the protocol tail and a task of "
    "retrieval of one model at a length beyond the trained window, of two methods that differ"
)

NOTE = (
    "Bars: 95 % intervals of each score alone. ρ is Spearman's rank correlation over the methods "
    "that differ, with its 95 % interval (Bonett and Wright 2000; none for a perfect order). It is "
    f"given for {METHODS} methods or more. −1: a lower perplexity always means more retrieval."
)


@style.styled
def make(frame: pd.DataFrame, *, evaluator: str = "none") -> Figure:
    """Draw retrieval against tail perplexity, and against that of the key tokens where it is known.

    The lengths are those beyond the trained window. ``evaluator`` is that of ``key_tokens``.
    Raises ValueError where a model does not have both.
    """
    known = methods(frame)
    panel = ["order", "title", "length"]
    groups = list(pairs(frame, known.drawn, evaluator).groupby(panel, sort=False))
    shown, left_out = style.shown_part(groups, "panels")
    columns = style.columns_for(len(shown))
    figure, panels = style.sheet(len(shown), columns, 2.5)
    for axes, ((_, title, length), rows) in zip(panels, shown, strict=True):
        _panel(axes, rows, known)
        relative = int(str(length)) / rows["trained_length"].iloc[0]
        where = f"{title}, {style.length_label(int(str(length)))} ({relative:.3g}×)"
        room = figure.get_size_inches()[0] / columns - 0.6
        lines = [style.folded(line, room) for line in (where, agreement(rows))]
        axes.set_title("\n".join(lines), fontsize=style.SIZE, loc="left")
    sizes = [rows["frequencies"].nunique() for _, rows in shown]
    counts = f"Methods per panel: {' to '.join(map(str, sorted({min(sizes), max(sizes)})))}."
    known.finish(figure, panels, f"{counts} {NOTE}{left_out}")
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, known: Methods) -> None:
    for row in rows.to_dict("records"):
        look, x, y = known.look[row["scaling"]], row["score"], row["kept"]
        thin: dict[str, Any] = {"color": look.color, "linewidth": 0.6, "alpha": 0.5}
        axes.hlines(y, row["low"], row["high"], **thin)
        axes.vlines(x, row["kept_low"], row["kept_high"], **thin)
        axes.plot(
            x, y, marker=look.marker or "o", color=look.color, markeredgecolor="white",
            markeredgewidth=0.5, markersize=5.5, label=row["scaling"], linestyle="",
        )  # fmt: skip
    low, high = float(rows["low"].min()), float(rows["high"].max())
    if high > 3 * low:
        style.log_axis(axes, "x", low, high)
    axes.set_ylim(-0.04, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.set_xlabel(f"{rows['kind'].iloc[0]}, lower is better", fontsize=style.SIZE)
    axes.set_ylabel(f"{rows['metric'].iloc[0].capitalize()} (%)", fontsize=style.SIZE)


def pairs(
    frame: pd.DataFrame, drawn: Callable[[pd.DataFrame], pd.DataFrame], evaluator: str
) -> pd.DataFrame:
    """Return one row per task and kind of perplexity, of retrieval, length and method with both.

    ``score``, ``low`` and ``high`` are the perplexity's, ``kept``, ``kept_low`` and ``kept_high``
    what is retrieved. Raises ValueError where no two methods have both.
    """
    table = drawn(cells(frame)).dropna(subset="score")
    table["frequencies"] = table["frequencies"].fillna(table["scaling"])
    table = table[table["length"] > table["trained_length"]]
    tasks = frame["task"][frame["protocol"] == "tail"] if "protocol" in frame else frame["task"][:0]
    tails = table[table["metric"].isin(LOWER) & table["task"].isin(tasks)]
    kept = table[table["metric"].isin(SHARES)]
    if tails.empty or kept.empty:
        raise ValueError(NONE)
    on, scores = ["model", "scaling", "length"], ["score", "low", "high"]
    kept = kept[[*on, "task", "metric", *scores]]
    kept = kept.rename(columns={"score": "kept", "low": "kept_low", "high": "kept_high"})
    kinds = {"Perplexity": tails}
    with suppress(ValueError):  # key_tokens says why there are none
        keys = drawn(measured(frame, evaluator).reset_index())[[*CELL, *scores]]
        keys = tails.drop(columns=scores).merge(keys, on=CELL)
        kinds["Key perplexity"] = keys.dropna(subset="score")
    rows, named = [], titles(frame)
    for kind, known in kinds.items():
        known = known[[*on, "task", *scores, "trained_length", "frequencies"]]
        both = known.rename(columns={"task": "of"}).merge(kept, on=on)
        several = tails["task"].nunique() > 1  # of each task a panel: scores are of other targets
        task = both["task"].map(named)
        against = both["of"].map(named) + " and " + task if several else task
        model = "" if "of_model" in frame else both["model"] + ": "  # the points have their names
        rows.append(both.assign(kind=kind, title=model + against))
    result = pd.concat(rows, ignore_index=True)
    count = result.groupby(["kind", "title", "length"])["frequencies"].transform("nunique")
    result = result[count > 1]
    if result.empty:
        raise ValueError(NONE)
    order = pd.factorize(result["kind"] + result["title"])[0]
    return result.assign(order=order).sort_values(["order", "length"], kind="stable")


def agreement(rows: pd.DataFrame) -> str:
    """Return "ρ = −0.71 [−0.93, −0.12]", the rank correlation, or why there is none.

    Methods of equal frequencies are one measurement, and count once.
    """
    rows = rows.drop_duplicates("frequencies")
    if len(rows) < METHODS or rows["score"].nunique() == 1 or rows["kept"].nunique() == 1:
        return "no ρ: too few methods" if len(rows) < METHODS else "no ρ: all equal"
    ranks = rows[["score", "kept"]].rank()
    rho = float(np.corrcoef(ranks, rowvar=False)[1, 0])
    if math.isclose(abs(rho), 1):
        return f"ρ = {rho:.2f}".replace("-", "−")  # Fisher's z has no spread to give here
    low, high = interval(rho, len(rows))
    return f"ρ = {rho:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")


def interval(rho: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's correlation of n pairs (Bonett and Wright 2000).

    Fisher's z with the variance (1 + rho^2 / 2) / (n - 3).
    """
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)
