"""One name, colour and marker per method in all figures of a run: from the run's whole list."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.harness.reports.plots.style import LOOKS, REST, SIZE, Look, letter, looks
from ropewalk.harness.stats.cells import coinciding, once, ranked

FEW = 8  # of more methods beside ``none`` than there are looks these many, the best, have one
RULE = (
    "In colour: {plain}the {count} methods of the best mean rank over the tasks at their longest "
    "length; grey: {others}, in the table of scores."
)
FIRST = "In colour: {plain}the first {count} methods; grey: {others}, in the tables."  # no scores
LONGEST = 60  # letters of a name
PARTS = (
    "model", "task", "scaling", "length", "frequencies", "metric", "score", "of_scaling", "pool",
)  # fmt: skip
FIXED = "Long dashes: the same frequencies at every length, as a fixed factor is served."


@dataclass(frozen=True)
class Methods:
    """How the methods of a run are drawn.

    ``names`` has the name in figures of every scaling that is drawn. Scalings that coincide in all
    cells share one. ``look`` is by that name, and ``best`` has the names from the best to the
    worst. ``fixed`` are those with one setting for all lengths. ``rule`` says which have colours
    if not all do.
    """

    names: Mapping[str, str]
    look: Mapping[str, Look]
    best: Sequence[str]
    fixed: Collection[str]
    rule: str

    def drawn(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the methods that are drawn, under their names in figures."""
        kept = table[table["scaling"].isin(list(self.names))]
        return kept.assign(scaling=kept["scaling"].map(self.names))

    def first(self, names: Sequence[str], most: int) -> list[str]:
        """Return the best so many of these names, in their order."""
        chosen = [name for name in self.best if name in set(names)][:most]
        return [name for name in names if name in chosen]

    def finish(
        self,
        figure: Figure,
        panels: Sequence[Axes],
        caption: str,
        *,
        legend: bool = True,
    ) -> None:
        """Caption a figure, and make it taller by a legend of the methods under the panels.

        The caption is the figure's label, which is written beside it and not into it.
        """
        lines = {str(line.get_label()): line for axes in panels for line in axes.get_lines()}
        shown = [name for name in self.look if name in lines]
        own = [name for name in shown if self.look[name] != REST]
        drawn = {name: lines[name] for name in own}
        if others := len(shown) - len(own):
            grey = f"{others} {'other' if others == 1 else 'others'}"
            drawn[grey] = Line2D([], [], color=REST.color, linewidth=REST.width)
            best = [name for name in own if self.look[name].color != "black"]
            plain = "" if len(best) == len(own) else "the unscaled model and "
            caption += f" {self.rule.format(plain=plain, count=len(best), others=grey)}"
        if any(name in self.fixed and self.look[name].color != "black" for name in own):
            caption += f" {FIXED}"
        figure.set_label(caption)
        if not legend or not drawn:
            return
        width, height = figure.get_size_inches()
        room = max(map(len, drawn)) * letter(SIZE) + 0.6
        rows = math.ceil(len(drawn) / max(1, int(width / room)))
        below = 0.17 * rows + 0.1
        total = height + below
        figure.set_size_inches(width, total)
        figure.set_layout_engine("constrained", rect=(0, below / total, 1, height / total))
        figure.legend(
            drawn.values(), drawn, loc="upper center", bbox_to_anchor=(0.5, below / total),
            ncols=math.ceil(len(drawn) / rows), fontsize=SIZE, frameon=False, handlelength=3.2,
            borderpad=0.2,
        )  # fmt: skip


def methods(frame: pd.DataFrame) -> Methods:
    """Give every method of a run its name and look; the frame is that of all the run's samples."""
    labels, order, unchanging, scored = _known(frame)
    names: dict[str, str] = {}  # that a legend can hold
    for scaling, label in labels.items():
        parts = label.split(" = ")
        if len(parts) > 3:
            label = f"{parts[0]} = {parts[1]} = {len(parts) - 2} more"
        if len(label) > LONGEST:
            label = f"{label[: LONGEST // 2]}…{label[-LONGEST // 2 :]}"
        same = sum(name == label or name.startswith(f"{label} (") for name in {*names.values()})
        names[scaling] = f"{label} ({same + 1})" if same else label
    plain = {scaling for scaling in names if "none" in labels[scaling].split(" = ")}
    best = [scaling for scaling in order if scaling in names]
    own = [scaling for scaling in best if scaling not in plain]
    own = own if len(own) <= LOOKS else own[:FEW]
    fixed = {scaling for scaling in unchanging if scaling in names}
    look = looks(list(names), distinct=own, plain=plain, fixed=fixed)
    return Methods(
        names,
        {names[scaling]: drawn for scaling, drawn in look.items()},
        [names[scaling] for scaling in best],
        {names[scaling] for scaling in fixed},
        RULE if scored else FIRST,
    )


@once
def _known(frame: pd.DataFrame) -> tuple[dict[str, str], list[str], list[str], bool]:
    """Return labels, the order by rank, the fixed factors, and whether there are scores."""
    known = frame[frame.columns.intersection(list(PARTS))].drop_duplicates(ignore_index=True)
    kept = coinciding(known)
    labels = dict(zip(known.loc[kept.index, "scaling"], kept["scaling"], strict=True))
    # A model as it was trained, among other models, has no factor.
    scaled = known[known["of_scaling"] != "none"] if "of_scaling" in known else known
    counts = scaled.groupby(["scaling", "model"], sort=False)[["frequencies", "length"]].nunique()
    same = (counts["frequencies"] == 1) & (counts["length"] > 1)
    fixed = same.groupby("scaling", sort=False).all()
    return labels, ranked(known), [str(name) for name in fixed.index[fixed]], "score" in known
