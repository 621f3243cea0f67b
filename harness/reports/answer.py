"""How much worse than the best each method is at the longest length, with intervals and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ropewalk.harness.reports import _style as style
from ropewalk.harness.reports import cells
from ropewalk.harness.reports._text import change, counted, signed, unit
from ropewalk.harness.stats.cells import records
from ropewalk.harness.stats.decision import MARGIN

Row = Mapping[str, Any]
ROW = 0.2  # inches
CUT = "truncation"
CAPTION = (
    "All methods at the longest length, the best mean on top. Thick bars: 95 % intervals of the "
    "paired difference from the best mean. Thin lines end at the bound of how much worse than the "
    "best the method is at most; the bounds hold for all methods together (95 %). Filled: by these "
    "bounds the method may be the best; hollow: it is worse than another method. Shaded: within "
    "{margin:g} % of the best (percentage points of a share); a method is as good as the best if "
    "its thin line ends there. ◂ ▸: off the scale. Arrow: the method to use. *: it needs its own "
    "code. n: {counts}."
)
COSTS = (
    " In-window cost: the change inside the trained window in the form that the method has at this "
    "length; –: not measured there."
)
TRUNCATION = " Truncation, dash-dotted: the unscaled model reading only its trained window."


@style.drawing()
def make(frame: pd.DataFrame, *, margin: float = MARGIN) -> Figure:
    """Draw one panel per model and task and one row per method, the best on top.

    Panels in which every score is 0 are left out. Raises ValueError where no two methods can be
    compared.
    """
    table = cells.cells(frame) if margin == MARGIN else cells.make(frame, margin=margin)
    known = style.methods(frame)
    groups: list[list[Row]] = []
    for _, kin in table[table["compared"].notna()].groupby(["model", "task"], sort=False):
        here = kin[kin["length"] == kin["length"].max()]
        once = here[here["same_as"].isna()]
        if len(once) > 1 and once["compared_score"].max() > 0:
            lower = bool(once["lower"].iloc[0])
            order = once.sort_values("compared_score", ascending=lower, kind="stable")
            groups.append([_named(row, here, known) for row in records(order)])
    if not groups:
        raise ValueError("no two methods can be compared")
    most = max(map(len, groups))
    figure, panels, letters = style.sheet(len(groups), ROW * (most + 1) + 0.9, most=2)
    several = len({rows[0]["model"] for rows in groups}) > 1
    for axes, rows in zip(panels, groups, strict=True):
        best = rows[0]
        title = f"{best['model']}: " * several + best["task"]
        at = f"{style.length_label(best['length'])} ({best['relative_length']:.3g}×)"
        axes.set_title(fill(f"{title} at {at}", letters))
        _panel(axes, rows, letters // 2)
    counts = ", ".join(counted(rows[0]["compared"], rows[0]["unit"]) for rows in groups)
    caption = "" if several else f"{groups[0][0]['model']}. "
    caption += CAPTION.format(margin=margin, counts=counts)
    caption += TRUNCATION * any(rows[0]["truncation"] is not None for rows in groups)
    figure.set_label(caption + COSTS * any(map(_costly, groups)))
    return figure


def _named(row: Row, here: pd.DataFrame, known: style.Methods) -> Row:
    """Return a row of the table with its label, look and difference, of which more is worse."""
    same = [row["scaling"], *here.loc[here["same_as"] == row["scaling"], "scaling"]]
    names = dict.fromkeys(known.names[name] for name in same if name in known.names)
    look = known.look[known.names[row["scaling"]]]
    value, *ends = (row[f"above{end}"] or 0.0 for end in ("", "_low", "_high"))
    if not row["lower"]:
        value, ends = -value, [-ends[1], -ends[0]]
    low, high = (None, None) if row["best"] else ends
    return {
        **row,
        "label": "→ " * bool(row["use"]) + " = ".join(names) + " *" * row["needs_code"],
        "value": value, "low": low, "high": high,
        "color": style.GREY if look == style.REST else look.color, "marker": look.marker or "o",
    }  # fmt: skip


def _costly(rows: Sequence[Row]) -> bool:
    return any(row["scaling"] != "none" and row["cost"] is not None for row in rows)


def _panel(axes: Axes, rows: list[Row], letters: int) -> None:
    best = rows[0]
    sign = unit(relative=best["relative"], metric=best["metric"])
    margin = best["margin"] / 100 * (1 if sign else abs(best["compared_score"]))
    matter = [*rows[:2], *(row for row in rows if row["possible"] is not False or row["use"])]
    reach = max(3 * margin, *(2 * abs(end) for row in matter for end in _ends(row)))
    marks = [*rows]
    if best["truncation"] is not None and best["change"] is not None:
        ends = [best[f"change{end}"] for end in ("", "_high", "_low")]
        value, low, high = (None if end is None else 1 / (1 + end) - 1 for end in ends)
        cut = {
            **best, "label": CUT, "value": value or 0.0, "low": low, "high": high, "regret": None,
            "color": style.GREY, "marker": "|", "use": False, "cost": 0.0,
        }  # fmt: skip
        marks.insert(sum(row["value"] <= cut["value"] for row in rows), cut)
        if abs(cut["value"]) <= reach:
            axes.axvline(cut["value"], color=style.GREY, linewidth=0.9, linestyle="-.", zorder=1)
    axes.axvline(0, color=style.GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.axvspan(-margin, margin, color="0.9", linewidth=0, zorder=0)
    for index, row in enumerate(marks):
        _draw(axes, row, index, reach, sign)
    ends = [0.0, *(end for row in marks if abs(row["value"]) <= reach for end in _ends(row))]
    low, high = max(-reach, min(ends)), min(reach, max(ends))
    pad = 0.06 * (high - low) or 0.05
    axes.set_xlim(min(low - pad, -1.5 * margin), max(high + pad, 1.5 * margin))
    axes.set_ylim(len(marks) - 0.4, -0.6)
    scale = 100 if sign else 1
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{scale * x:.6g}".replace("-", "−")))
    what = "%" if best["relative"] else "percentage points" if sign else best["metric"]
    axes.set_xlabel(f"Worse than the best ({what})")
    axes.set_yticks(range(len(marks)), [fill(row["label"], letters) for row in marks])
    for label, row in zip(axes.get_yticklabels(), marks, strict=True):
        label.set_fontweight("bold" if row["use"] else "normal")
    if _costly(rows):
        costs = [change({**row, "cost_low": None}, "cost") or "–" for row in marks]
        side = axes.secondary_yaxis("right")
        side.set_yticks(range(len(marks)), costs)
        side.set_ylabel("In-window cost")
        side.tick_params(length=0)
        side.spines["right"].set_visible(False)


def _ends(row: Row) -> list[float]:
    """Return the ends of all that is drawn of a row."""
    return [row[end] for end in ("value", "low", "high", "regret") if row[end] is not None]


def _draw(axes: Axes, row: Row, index: int, reach: float, sign: str) -> None:
    """Draw a row; one that is off the scale is text at the edge."""
    value, color = row["value"], row["color"]
    if abs(value) > reach:
        far, white = signed(value, unit=sign), {"fc": "white", "ec": "none", "pad": 0.8}
        x, text, side = (0.99, f"{far} ▸", "right") if value > 0 else (0.01, f"◂ {far}", "left")
        axes.text(x, index, text, ha=side, va="center", color=color, fontsize=style.SIZE - 1,
                  transform=axes.get_yaxis_transform(), bbox=white)  # fmt: skip
        return
    if row["low"] is not None and row["high"] is not None:
        axes.hlines(index, row["low"], row["high"], color=color, linewidth=2.2, alpha=0.55)
    if row["regret"] is not None:
        axes.hlines(index, value, row["regret"], color=color, linewidth=0.9)
        axes.plot(row["regret"], index, "|", color=color, markersize=5, label="_bound")
    axes.plot(
        value, index, row["marker"], color=color, markersize=4.8, markeredgewidth=0.9,
        markerfacecolor="white" if row["possible"] is False else color, label=row["label"],
    )  # fmt: skip
