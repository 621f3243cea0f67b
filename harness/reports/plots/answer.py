"""The figure that answers: how much worse than the best each method is, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ropewalk.harness.reports.plots import style
from ropewalk.harness.reports.plots.forest import ROW, Row, draw_rows
from ropewalk.harness.reports.plots.methods import Methods, methods
from ropewalk.harness.reports.writing import sentences
from ropewalk.harness.reports.writing.sentences import titles
from ropewalk.harness.stats.decision import Decision

MOST_METHODS = 24
LOW_ROW = 0.14  # inches, in a column
LONGEST, IN_COLUMN = 1.9, 1.6  # inches of a name in one line, on a page and in a column
CUT = "truncation"
CAPTION = (
    "All methods at the longest length, from the best mean down. Thick bars: 95 % intervals of "
    "the paired difference from the best mean. Thin lines end at the bound of how much worse than "
    "the best the method is at most. The bounds hold for all methods together (95 %). Filled: by "
    "these bounds, the method may be the best; hollow: it is worse than another method. Shaded: "
    "within {margin} of the best; a method is as good as the best if its thin line ends there. "
    "◂ ▸: off the scale. Arrow: the method to use."
)
COSTS = (
    " In-window cost: the change inside the trained window in the form that the method has at this "
    "length; –: not measured there."
)
TRUNCATION = (
    " Truncation, dash-dotted: the unscaled model reading only its trained window, {:,} tokens."
)
CODE = "needs its own modelling code"


def draw_answer(frame: pd.DataFrame, decisions: Sequence[Decision]) -> Figure:
    """Draw one panel per decision and one row per method, the best on top.

    Raises ValueError where no two methods can be compared.
    """
    known = methods(frame)
    compared = [decision for decision in decisions if len(_names(decision, known)) > 1]
    if not compared:
        raise ValueError("no two methods can be compared")
    shown, left_out = style.shown_part(compared, "panels")
    named, several = titles(frame), len({each.facts["model"] for each in compared}) > 1
    orders = [_order(decision, known) for decision in shown]
    columns = style.paper().across(min(3, len(shown)))
    alike = columns > 1 and len({frozenset(order) - {CUT} for order in orders}) == 1
    if alike:  # one list of names; truncation is not known of every task
        orders = [max(orders, key=len)] * len(orders)
    width = style.paper().width
    room = (width - 1.3) / columns - 0.05
    heads = []
    for decision in shown:
        title = named[decision.facts["task"]]
        title = f"{decision.facts['model']}: {title}" if several else title
        lines = (title, *_verdict(decision, known))
        heads.append("\n".join(style.folded(line, room) for line in lines))
    most = max(head.count("\n") + 1 for head in heads)
    row = ROW if width >= style.PAGE else LOW_ROW
    tall = row * max(map(len, orders)) + 0.14 * most + 0.75
    figure, panels = style.sheet(len(shown), columns, panel_height=tall)
    figure.set_size_inches(width, figure.get_size_inches()[1] + 0.25)
    for index, (axes, decision, order) in enumerate(zip(panels, shown, orders, strict=True)):
        _panel(axes, decision, order, known, named_here=not alike or index % columns == 0)
        style.tidy(axes, "", room=room)
        axes.set_title(heads[index], fontsize=style.SIZE, loc="left", pad=18)
    if not several:
        facts, size = shown[0].facts, style.SIZE + 1
        times = sentences.times(facts)
        where = f"{facts['model']} at {facts['length']:,} tokens"
        where += f", {times} its window" * bool(times)
        figure.suptitle(style.folded(where, width - 0.2, size), fontsize=size, x=0.02, ha="left")
    measures = [(_margin(decision), decision.family.how) for decision in shown]
    margins = [
        sentences.size(margin, relative=how.relative, metric=how.metric) for margin, how in measures
    ]
    caption = CAPTION.format(margin=" or ".join(dict.fromkeys(margins)))
    windows = {decision.facts["trained_length"] for decision in shown if decision.truncated}
    caption += TRUNCATION.format(*windows) if len(windows) == 1 else ""
    caption += COSTS * any(map(_costly, shown))
    if any(decision.family.code for decision in shown):
        caption += f" *: {CODE}."
        figure.text(0.01, 0.01, "* needs its own code", fontsize=style.SIZE - 2, color=style.GREY)
    counts = ", ".join(f"{decision.family.n} {decision.family.how.units}" for decision in shown)
    figure.set_label(f"{caption} n: {counts}.{left_out}")
    return figure


def _verdict(decision: Decision, known: Methods) -> tuple[str, ...]:
    """Return the winner, or the method to use with its bound and how many may be the best."""
    how, names = decision.family.how, known.names
    if decision.all_zero:
        return ("No method scores above 0",)
    use, best = (names.get(name, name) for name in (decision.recommended, decision.best))
    bound = decision.regret(decision.recommended)
    if decision.winner and use == best:
        return (f"Winner: {best}",)
    if bound is None:
        return (f"Use {use}; too few samples for a bound",)
    size = sentences.bound(bound, relative=how.relative, metric=how.metric)
    size = size.replace("percentage ", "")
    use = f"Use {use}: at most {size} worse than the best (95 %)"
    if decision.winner:
        return use, f"{best} is the best"
    count = sum(map(decision.possible, decision.family.names))
    return use, f"{count} of {len(decision.family.names)} may be the best"


def _costly(decision: Decision) -> bool:
    return any(name != "none" and cost is not None for name, cost in decision.costs.items())


def _names(decision: Decision, known: Methods) -> list[str]:
    return [name for name in decision.family.names if name in known.names]


def _order(decision: Decision, known: Methods) -> list[str]:
    """Return the names in figures of the methods compared, the best first, with truncation."""
    sign = 1 if decision.family.how.lower else -1
    scores = {
        known.names[name]: sign * decision.family.score(name).score
        for name in _names(decision, known)
    }
    order = sorted(scores, key=scores.__getitem__)[:MOST_METHODS]
    if decision.truncation is not None and decision.truncated is not None:
        cut = sign * decision.truncation.score
        order.insert(sum(scores[name] <= cut for name in order), CUT)
    return order


def _panel(
    axes: Axes, decision: Decision, order: Sequence[str], known: Methods, *, named_here: bool
) -> None:
    how = decision.family.how
    scale = 100 if how.relative or how.share else 1
    rows = {known.names[name]: _row(decision, name, known) for name in _names(decision, known)}
    if len({row.note for row in rows.values()}) == 1:  # the caption has this number
        rows = {name: replace(row, note="") for name, row in rows.items()}
    if cut := decision.truncated:  # of perplexity alone
        rows[CUT] = Row(CUT, cut.value, cut.low, cut.high, style.GREY, "|", full=False)
    missing = Row("", None, None, None, style.GREY, "")
    drawn = [rows.get(name, missing).scaled(scale) for name in order]
    margin = scale * _margin(decision)
    next_best = [name for name in order if name in rows and name != CUT][1]
    matter = [
        row.reach
        for row in drawn
        if row.full or row.name in (next_best, known.names.get(decision.recommended))
    ]
    reach = max(2 * max(matter), 3 * margin)
    draw_rows(axes, drawn, reach, lambda value: _written(value / scale, decision))
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1.5 * margin), max(high, 1.5 * margin))
    axes.axvspan(-margin, margin, color="0.9", linewidth=0, zorder=0)
    if cut and abs(scale * cut.value) <= reach:
        axes.axvline(scale * cut.value, color=style.GREY, linewidth=0.9, linestyle="-.", zorder=1)
    axes.set_yticks(range(len(order)), [""] * len(order))
    if named_here:
        _name(axes, decision, order, known)
    _costs(axes, decision, order, known)
    unit = "%" if how.relative else "percentage points" if how.share else how.metric
    axes.set_xlabel(f"Worse than the best ({unit})", fontsize=style.SIZE - 1)


def _margin(decision: Decision) -> float:
    how = decision.family.how
    return decision.margin / 100 if how.relative or how.share else decision.room


def _row(decision: Decision, name: str, known: Methods) -> Row:
    how, drawn, status = decision.family.how, known.names[name], decision.family.status(name)
    look = known.look[drawn]
    row = Row(
        drawn, 0.0, None, None, style.GREY if look == style.REST else look.color, look.marker,
        full=decision.possible(name), bound=decision.regret(name),
        note="" if status == "ok" else status.split(" ok")[0],
    )  # fmt: skip
    less = decision.less(name)
    if less is None or name == decision.best:
        return row
    worse = less.swapped(relative=how.relative) if how.lower else less
    return replace(row, value=worse.value, low=worse.low, high=worse.high)


def _written(value: float, decision: Decision) -> str:
    """Return "+12 %", "23 times" or "+8 points"."""
    how = decision.family.how
    if value == 0:
        return "0"
    if how.relative and value >= 2:
        return sentences.size(value, relative=True, metric=how.metric)
    return sentences.signed(value, unit=" %" if how.relative else " pp" if how.share else "")


def _name(axes: Axes, decision: Decision, order: Sequence[str], known: Methods) -> None:
    """Name the rows; the method to use is bold, with an arrow."""
    use = None if decision.all_zero else known.names.get(decision.recommended)
    code = {known.names[name] for name in decision.family.code if name in known.names}
    labels = {name: name for name in order}
    for name in _names(decision, known):  # and those that are the same measurement at this length
        names = (known.names.get(other) for other in decision.family.everyone(name))
        parts = (part for label in names if label for part in label.split(" = "))
        labels[known.names[name]] = " = ".join(dict.fromkeys(parts))
    room = LONGEST if style.paper().width >= style.PAGE else IN_COLUMN
    texts = [
        style.folded(
            f"{'→ ' * (name == use)}{labels[name]}{' *' * (name in code)}", room, style.SIZE - 1
        )
        for name in order
    ]
    axes.set_yticks(range(len(order)), texts)
    for label, name in zip(axes.get_yticklabels(), order, strict=True):
        label.set_fontweight("bold" if name == use else "normal")
        label.set_color(style.GREY if name == CUT else "black")


def _costs(axes: Axes, decision: Decision, order: Sequence[str], known: Methods) -> None:
    if not _costly(decision):
        return
    texts = {CUT: "0"} if decision.truncated else {}
    for name in _names(decision, known):
        cost = decision.costs.get(name)
        texts[known.names[name]] = "–" if cost is None else _written(cost.value, decision)
    grey: dict[str, Any] = {"color": style.GREY, "fontsize": style.SIZE - 1, "va": "center"}
    for row, name in enumerate(order):
        axes.text(1.04, row, texts.get(name, ""), transform=axes.get_yaxis_transform(), **grey)
    axes.annotate(
        "in-window\ncost", (1.04, 1), (0, 1), xycoords="axes fraction", textcoords="offset points",
        fontsize=style.SIZE - 2, color=style.GREY, va="bottom",
    )  # fmt: skip


def longest(decisions: Mapping[tuple[str, str, int], Decision]) -> list[Decision]:
    """Return the decision at the longest length of every model and task."""
    last: dict[tuple[str, str], Decision] = {}
    for (model, task, length), decision in decisions.items():
        if (model, task) not in last or length > last[model, task].facts["length"]:
            last[model, task] = decision
    return list(last.values())
