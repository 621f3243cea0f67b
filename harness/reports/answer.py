"""How much worse than the best each method is at the longest length, with intervals and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports import cells
from ropewalk.harness.reports._text import change, counted, signed, titles, unit
from ropewalk.harness.reports.verdict import verdicts
from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.decision import MARGIN

ROW = 0.17  # inches
MOST_METHODS = 24
LONGEST = 24  # letters of a name beside which two panels have room
CUT = "truncation"
CAPTION = (
    "All methods at the longest length, the best mean on top. Thick bars: 95 % intervals of the "
    "paired difference from the best mean. Thin lines end at the bound of how much worse than the "
    "best the method is at most; the bounds hold for all methods together (95 %). Filled: by these "
    "bounds the method may be the best; hollow: it is worse than another method. Shaded: within "
    "{margin:g} % of the best (percentage points of a share); a method is as good as the best if "
    "its thin line ends there. ◂ ▸: off the scale. Arrow: the method to use. n: {counts}."
)
COSTS = (
    " In-window cost: the change inside the trained window in the form that the method has at this "
    "length; –: not measured there."
)
TRUNCATION = " Truncation, dash-dotted: the unscaled model reading only its trained window."


@style.styled
def make(frame: pd.DataFrame, *, margin: float = MARGIN) -> Figure:
    """Draw one panel per model and task and one row per method, the best on top.

    Panels in which every score is 0 are left out. Raises ValueError where no two methods can be
    compared.
    """
    table = cells.cells(frame) if margin == MARGIN else cells.make(frame, margin=margin)
    known, named = style.methods(frame), titles(frame)
    sentences = {
        (row["model"], row["task"], row["length"]): row["sentence"]
        for row in records(verdicts(table))
    }
    every: list[tuple[tuple[Any, ...], list[dict[str, Any]]]] = []
    for key, kin in table[table["compared"].notna()].groupby(["model", "task"], sort=False):
        here = kin[kin["length"] == kin["length"].max()]
        once = here[here["same_as"].isna()]
        if len(once) > 1 and once["compared_score"].max() > 0:
            lower = bool(once["lower"].iloc[0])
            order = once.sort_values("compared_score", ascending=lower, kind="stable")
            best = records(order.head(MOST_METHODS))
            every.append((key, [_named(row, here, known) for row in best]))
    if not every:
        raise ValueError("no two methods can be compared")
    groups, left_out = style.shown_part(every, "panels")
    if max(len(rows) for _, rows in groups) == MOST_METHODS:
        left_out += f" At most the best {MOST_METHODS} methods are drawn."
    longest = max(len(row["label"]) for _, rows in groups for row in rows)
    columns = style.columns_for(len(groups), 1 if longest > LONGEST else 2)
    width = style.paper_width()
    several = len({model for (model, _), _ in groups}) > 1
    first, heads = [rows[0] for _, rows in groups], []
    for (model, task), rows in groups:
        length, times = rows[0]["length"], rows[0]["relative_length"]
        title = f"{model}: {named[str(task)]}" if several else named[str(task)]
        sentence = sentences[model, task, length]
        lines = (
            f"{title} at {style.length_label(length)} ({times:.3g}×):",
            f"{sentence[0].upper()}{sentence[1:]}.",
        )
        heads.append("\n".join(style.folded(str(line), width / columns - 0.1) for line in lines))
    most = max(head.count("\n") + 1 for head in heads), max(len(rows) for _, rows in groups)
    sheet = math.ceil(len(groups) / columns), columns
    height = ROW * (most[1] + 1) + 0.13 * most[0] + 0.7
    figure = Figure(figsize=(width, sheet[0] * height + 0.2))
    parts = figure.subfigures(*sheet, squeeze=False).flat
    for part, (_, rows), head in zip(parts, groups, heads, strict=False):
        _panel(part.subplots(), rows, known, width / columns / 2)
        part.suptitle(head, x=0.02, ha="left", fontsize=style.SIZE)
    if not several:
        figure.suptitle(str(first[0]["model"]), x=0.02 / columns, ha="left")
    counts = ", ".join(counted(row["compared"], row["unit"]) for row in first)
    caption = CAPTION.format(margin=margin, counts=counts)
    caption += TRUNCATION * any(row["truncation"] is not None for row in first)
    caption += COSTS * any(map(_costly, (rows for _, rows in groups)))
    figure.set_label(caption + left_out)
    return figure


def _named(row: dict[str, Any], here: pd.DataFrame, known: style.Methods) -> dict[str, Any]:
    same = [row["scaling"], *here.loc[here["same_as"] == row["scaling"], "scaling"]]
    names = dict.fromkeys(known.names[name] for name in same if name in known.names)
    return {**row, "label": " = ".join(names) + " *" * row["needs_code"]}


@dataclass(frozen=True)
class Mark:
    """A row of a panel: a value with a thick bar from low to high, and a thin line to a bound."""

    label: str
    value: float
    low: float | None
    high: float | None
    bound: float | None = None
    color: str = style.GREY
    marker: str = "|"
    full: bool = False
    use: bool = False
    cost: str = ""
    note: str = ""

    @property
    def ends(self) -> list[float]:
        """Return all that is drawn of the row."""
        every = (self.value, self.low, self.high, self.bound)
        return [end for end in every if end is not None]

    @property
    def reach(self) -> float:
        """Return how far from 0 the row is drawn."""
        return max(map(abs, self.ends))


def _panel(
    axes: Axes, rows: Sequence[Mapping[str, Any]], known: style.Methods, room: float
) -> None:
    best = rows[0]
    sign = unit(relative=best["relative"], metric=best["metric"])
    margin = best["margin"] / 100 * (1 if sign else abs(best["compared_score"]))
    marks = [_mark(row, known) for row in rows]
    matter = [mark.reach for mark in (*marks[:2], *marks) if mark.full or mark.use]
    reach = max(2 * max(*matter, marks[1].reach), 3 * margin)
    if best["truncation"] is not None and best["change"] is not None:
        ends = [best[f"change{end}"] for end in ("", "_high", "_low")]
        value, low, high = (None if end is None else 1 / (1 + end) - 1 for end in ends)
        cut = Mark(CUT, value or 0.0, low, high, cost=f"0{sign}")
        marks.insert(sum(mark.value <= cut.value for mark in marks), cut)
        if abs(cut.value) <= reach:
            axes.axvline(cut.value, color=style.GREY, linewidth=0.9, linestyle="-.", zorder=1)
    axes.axvline(0, color=style.GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.axvspan(-margin, margin, color="0.9", linewidth=0, zorder=0)
    for index, mark in enumerate(marks):
        _draw(axes, mark, index, reach, sign)
    ends = [0.0, *(end for mark in marks if abs(mark.value) <= reach for end in mark.ends)]
    low, high = max(-reach, min(ends)), min(reach, max(ends))
    pad = 0.06 * (high - low) or 0.05
    axes.set_xlim(min(low - pad, -1.5 * margin), max(high + pad, 1.5 * margin))
    axes.set_ylim(len(marks) - 0.4, -0.6)
    scale = 100 if sign else 1
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{scale * x:.6g}".replace("-", "−")))
    what = "%" if best["relative"] else "percentage points" if sign else best["metric"]
    code = "\n*: needs its own code" * any(row["needs_code"] for row in rows)
    axes.set_xlabel(f"Worse than the best ({what}){code}", fontsize=style.SIZE - 1)
    axes.set_yticks(range(len(marks)), [style.folded(mark.label, room) for mark in marks])
    for label, mark in zip(axes.get_yticklabels(), marks, strict=True):
        label.set_fontweight("bold" if mark.use else "normal")
        label.set_color(style.GREY if mark.label == CUT else "black")
    if _costly(rows):
        side: dict[str, Any] = {"color": style.GREY, "fontsize": style.SIZE - 1}
        for index, mark in enumerate(marks):
            axes.text(
                1.04, index, mark.cost, transform=axes.get_yaxis_transform(), va="center", **side
            )
        axes.text(1.04, 1.02, "in-window\ncost", transform=axes.transAxes, va="bottom", **side)


def _costly(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["scaling"] != "none" and row["cost"] is not None for row in rows)


def _mark(row: Mapping[str, Any], known: style.Methods) -> Mark:
    look = known.look[known.names[row["scaling"]]]
    value, *ends = (row[f"above{end}"] or 0.0 for end in ("", "_low", "_high"))
    if not row["lower"]:
        value, ends = -value, [-ends[1], -ends[0]]
    low, high = (None, None) if row["best"] else ends
    return Mark(
        "→ " * bool(row["use"]) + row["label"],
        value, low, high, row["regret"],
        style.GREY if look == style.REST else look.color, look.marker or "o",
        full=row["possible"] is not False, use=bool(row["use"]),
        cost=change({**row, "cost_low": None}, "cost") or "–",
        note=f"{row['compared']} of {row['asked']}" if row["compared"] < row["asked"] else "",
    )  # fmt: skip


def _draw(axes: Axes, mark: Mark, index: int, reach: float, sign: str) -> None:
    """Draw a row; one that is off the scale is text at the edge."""
    across = axes.get_yaxis_transform()
    text: dict[str, Any] = {"color": mark.color, "fontsize": style.SIZE - 1, "va": "center"}
    if abs(mark.value) > reach:
        far, white = signed(mark.value, unit=sign), {"fc": "white", "ec": "none", "pad": 0.8}
        end = (0.99, f"{far} ▸", "right") if mark.value > 0 else (0.01, f"◂ {far}", "left")
        axes.text(end[0], index, end[1], ha=end[2], transform=across, bbox=white, **text)
        return
    if mark.low is not None and mark.high is not None:
        axes.hlines(index, mark.low, mark.high, color=mark.color, linewidth=2.2, alpha=0.55)
    if mark.bound is not None:
        axes.hlines(index, mark.value, mark.bound, color=mark.color, linewidth=0.9)
        axes.plot(mark.bound, index, "|", color=mark.color, markersize=5, label="_bound")
    axes.plot(
        mark.value, index, mark.marker, color=mark.color, markersize=4.8, markeredgewidth=0.9,
        markerfacecolor=mark.color if mark.full else "white", label=mark.label,
    )  # fmt: skip
    if mark.reach > reach:
        axes.text(1, index, "▸", transform=across, ha="right", **text)
    if mark.note:
        axes.annotate(
            mark.note, (mark.value, index), (0, 3.5), textcoords="offset points", ha="center",
            fontsize=5, color=style.GREY,
        )  # fmt: skip
