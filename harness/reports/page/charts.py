"""The charts of a page as Vega-Lite: a chart is data, and the page gives it its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.markers import MarkerStyle

from harness.reports.plots.methods import Methods
from harness.reports.plots.panel import LOG_FROM, MOST_BANDS
from harness.reports.plots.style import DASHES, REST, length_label
from harness.reports.writing.sentences import csv_text
from harness.stats.measure import LOWER, SHARES

Spec = dict[str, Any]
GREY = "#767676"
HEIGHT = 280
# Bands of many methods would be one grey: then only that of the method pointed at is drawn.
BANDED = f"length(shown) <= {MOST_BANDS} || datum.name === over"
CLEAR = "over === '' || datum.name === over"
SCORE = ("score", "low", "high", "n")
PERCENT, NUMBER = ".1~%", ".4~r"


def curves(table: pd.DataFrame, drawn: Sequence[Drawn]) -> list[Spec]:
    """Return one chart per model and task of a table of cells: score against length."""
    charts = []
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        if rows["score"].isna().all():
            continue
        metric = str(rows["metric"].iloc[0])
        share, better = metric in SHARES, "lower" if metric in LOWER else "higher"
        title = f"{metric.capitalize()}{' (%)' if share else ''}, {better} is better"
        y = _scores(rows[["score", "low", "high"]], title, share=share)
        tooltip = [*_tooltip("length", PERCENT if share else NUMBER), *map(_plain, ("n", "status"))]
        tooltip.append({"field": "frequencies", "title": "frequencies (hash)", "type": "nominal"})
        spec = _spec(rows, drawn, _lengths(rows), y, tooltip)
        lost = {  # a cross at the top for every cell without a score
            "transform": [{"filter": "datum.score === null"}],
            "mark": _mark("point", shape="cross", angle=45, size=70, y=4, filled=True, color=GREY),
            "encoding": {
                "x": {"field": "length", "type": "quantitative"},
                "tooltip": [entry for entry in tooltip if entry["field"] not in SCORE],
            },
        }
        spec["layer"].append(lost)
        about = f"{metric.capitalize()} against context length"
        charts.append(_chart("scores", model, task, about, spec))
    return charts


def losses(table: pd.DataFrame, drawn: Sequence[Drawn]) -> list[Spec]:
    """Return one chart per model and task: loss by position, at the length of a slider."""
    charts = []
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        x = {
            "field": "position", "type": "quantitative", "title": "Position (tokens)",
            "scale": {"type": "log", "base": 2, "nice": False}, "axis": {"grid": False},
        }  # fmt: skip
        y = _scores(rows[["score"]], "Loss (nats per token), lower is better", share=False)
        y["scale"] = {"domain": [float(rows["score"].min()), float(rows["score"].max())]}
        tooltip = [*_tooltip("position", NUMBER), _plain("documents")]
        spec = _spec(rows, drawn, x, y, tooltip, size=14)
        if len(drawn) > MOST_BANDS:  # marks at every position would hide the lines
            spec["layer"] = [part for part in spec["layer"] if "shape" not in part["encoding"]]
        lengths = sorted(map(int, rows["length"].unique()))
        spec["params"].append({"name": "length", "value": lengths[-1]})
        spec["transform"].append({"filter": "datum.length === length"})
        chart = _chart("positions", model, task, "Mean loss at every position", spec)
        charts.append({**chart, "lengths": lengths, "trained": _trained(rows)})
    return charts


def _chart(source: str, model: Any, task: Any, about: str, spec: Spec) -> Spec:
    return {"source": source, "model": model, "task": task, "about": about, "spec": spec}


def _trained(rows: pd.DataFrame) -> int:
    return int(rows["trained_length"].iloc[0])


def _plain(field: str) -> Spec:
    return {"field": field, "type": "nominal"}


def _tooltip(x: str, number: str) -> list[Spec]:
    """Return what a point says of itself: method, place, score and interval."""
    return [
        {"field": "name", "type": "nominal", "title": "method"},
        {"field": x, "type": "quantitative", "format": ",.6~r"},
        {"field": "score", "type": "quantitative", "format": number},
        {"field": "low", "type": "quantitative", "format": number, "title": "95 % from"},
        {"field": "high", "type": "quantitative", "format": number, "title": "to"},
    ]


def _lengths(rows: pd.DataFrame) -> Spec:
    """Return the axis of lengths: a tick for every one measured, over what it is of the window."""
    known = rows.drop_duplicates("length").sort_values("length")
    names = {
        int(length): [length_label(int(length)), f"{times:.3g}×"]
        for length, times in zip(known["length"], known["relative_length"], strict=True)
    }
    ends = [*names, _trained(rows)]
    chosen = " : ".join(f"datum.value === {length} ? {text}" for length, text in names.items())
    return {
        "field": "length", "type": "quantitative", "title": "Context length (tokens, windows)",
        "scale": {"type": "log", "base": 2, "domain": [min(ends), max(ends)], "nice": False,
                  "padding": 14},
        "axis": {"values": list(names), "labelExpr": f"{chosen} : ''", "grid": False,
                 "labelOverlap": "greedy", "labelSeparation": 8},
    }  # fmt: skip


def _scores(scores: pd.DataFrame, title: str, *, share: bool) -> Spec:
    """Return the axis of scores: percent from 0 to 100, a logarithm where they differ threefold."""
    low, high = scores.min().min(), scores.max().max()
    scale: Spec = {"zero": False}
    axis: Spec = {"format": "~g", "tickCount": 6}
    if share:
        scale, axis = {"domain": [0, 1]}, {"format": "~%", "values": [0, 0.25, 0.5, 0.75, 1]}
    elif low > 0 and high > LOG_FROM * low:
        scale = {"type": "log", "nice": False}
    return {"field": "score", "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _spec(
    rows: pd.DataFrame,
    drawn: Sequence[Drawn],
    x: Spec,
    y: Spec,
    tooltip: list[Spec],
    size: int = 42,
) -> Spec:
    """Return bands, lines and points of the methods shown; the page names the rows ``rows``."""
    names = [one["name"] for one in drawn]

    def by_name(key: str) -> Spec:
        scale = {"domain": names, "range": [one[key] for one in drawn]}
        return {"field": "name", "type": "nominal", "scale": scale, "legend": None}

    clear = {"opacity": {"condition": {"test": CLEAR, "value": 1}, "value": 0.2}}
    band = {"opacity": {"condition": {"test": BANDED, "value": 0.15}, "value": 0}}
    low, high = {**y, "field": "low"}, {"field": "high"}
    place, looks = {"x": x, "y": y}, {"shape": by_name("shape"), "stroke": by_name("color")}
    return {
        "width": "container", "height": HEIGHT, "background": None,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows"},
        "params": [{"name": "shown", "value": names}, {"name": "over", "value": ""}],
        "transform": [{"filter": "indexof(shown, datum.name) >= 0"}],
        "layer": [
            *_window(_trained(rows), x),
            {"mark": _mark("area", line=False),
             "encoding": {"x": x, "y": low, "y2": high, "color": by_name("color"), **band}},
            {"mark": _mark("line", strokeWidth=2),
             "encoding": {**place, "stroke": by_name("color"), "strokeDash": by_name("dash"),
                          **clear}},
            {"mark": _mark("point", size=size, strokeWidth=1.2),
             "encoding": {**place, **looks, "fill": by_name("face"), **clear}},
            {"mark": _mark("point", size=260, opacity=0.001, filled=True),
             "encoding": {**place, "tooltip": tooltip}},
        ],
    }  # fmt: skip


def _mark(kind: str, **settings: Any) -> Spec:
    """Return a mark that a screen reader leaves out: the table behind the chart has its numbers."""
    return {"type": kind, "aria": False, **settings}


def _window(trained: int, x: Spec) -> list[Spec]:
    """Return the line where the trained window ends, and its name."""
    there = {"x": {**x, "field": "until"}}
    data = {"values": [{"until": trained}]}
    name = _mark("text", text="trained length", y=0, dy=-11, align="center", color=GREY)
    return [
        {"data": data, "mark": _mark("rule", strokeDash=[2, 3], color=GREY), "encoding": there},
        {"data": data, "mark": name, "encoding": there},
    ]


Drawn = dict[str, Any]
LINES = {"-": [1, 0], "--": [6, 3]} | {
    dash: [3 * part for part in dash[1]] for dash in DASHES.values() if not isinstance(dash, str)
}


def looks(known: Methods) -> list[Drawn]:
    """Return the methods that are drawn: their name in charts and in tables, and their look."""
    return [
        {
            "scaling": csv_text(scaling),
            "name": name,
            "color": to_hex(look.color),
            "face": to_hex(look.face),
            "shape": _outline(look.marker or "o"),
            "dash": LINES[look.linestyle],
            "own": look != REST,
        }
        for scaling, name in known.names.items()
        for look in [known.look[name]]
    ]


def _outline(marker: str) -> str:
    """Return a mark of Matplotlib as a path of SVG, in a box from -1 to 1."""
    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    corners = np.concatenate(path.to_polygons(closed_only=False)) * (2, -2)
    return f"M{'L'.join(f'{x:.2f},{y:.2f}' for x, y in corners.tolist())}Z"
