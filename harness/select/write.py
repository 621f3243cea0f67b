"""What a race leaves for its reader: sentences, a table, a figure, and files of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from harness.files import make_folder
from harness.plugins import FUNCTION
from harness.reports._write import save_figure, save_table
from harness.reports.plots.style import drawing
from harness.runs.folders import reports_of
from harness.select.answer import Ended, footnote, paragraph, readable, table
from harness.select.figure import draw
from harness.select.race import FAR, WINNER
from harness.serve._line import serving
from harness.stats.paired import share


@dataclass(frozen=True)
class Recommendation:
    """The answer of a race.

    Attributes:
        scaling: the method to use.
        winner: whether it is significantly the best.
        regret: the share by which its perplexity is at most above that of the best (95 %); None
            where there are too few documents for a bound.
        text: the paragraph.
        table: one row per candidate; ``shown`` is the same for people, with a ``note``.
        next: what to type to write the method for an engine, or why nothing serves it, and
            ``export`` the command in it; both are empty for a model or a function of this process.
        failures: the candidates without a number, and why.
    """

    scaling: str
    winner: bool
    regret: float | None
    text: str
    table: pd.DataFrame
    shown: pd.DataFrame
    note: str
    figure: Figure
    next: str
    export: str
    failures: dict[str, str]
    folder: Path
    files: tuple[Path, ...]


def written(ended: Ended) -> Recommendation:
    """Return the answer, and write it into the reports of the run folder."""
    made, measured, standing = table(ended), ended.measured, ended.standing
    text, shown, note = paragraph(ended), readable(made, ended), footnote(made, ended)
    label, folder = measured.plan.checkpoint.label, reports_of(measured.folder)
    export, following = next_line(ended)
    words = [one for one in (text, note, following and f"Next: {following}") if one]
    make_folder(folder)
    with drawing():
        lengths, tolerance = (measured.window, measured.target), ended.race.rules.tolerance
        figure = draw(made, model=label, lengths=lengths, tolerance=tolerance, gain=ended.gain())
        files = save_table(made, [({label: shown}, words)], folder / "recommend")
        files += save_figure(figure, folder, "recommend")
    bound = standing.regret.get(standing.recommended)
    return Recommendation(
        scaling=standing.recommended,
        winner=standing.ended == WINNER and len(ended.served) > 1,
        regret=None if bound is None else share(bound),
        text=text,
        table=made,
        shown=shown,
        note=note,
        figure=figure,
        next=following,
        export=export,
        failures=measured.failed | ended.race.failed,
        folder=measured.folder,
        files=tuple(files),
    )


def next_line(ended: Ended) -> tuple[str, str]:
    """Return the command that writes the recommended method for an engine, and what to say of it.

    Both are empty where the model or the method is an object of this process.
    """
    measured, name = ended.measured, ended.standing.recommended
    plan = measured.plan
    method = next(method for method in plan.methods if method.label == name)
    if method.digest == FUNCTION or plan.checkpoint.loaded is not None:
        return "", ""
    found = measured.cells[FAR, name].rotation
    assert found is not None  # of a candidate that has numbers
    return serving(plan.spec, method.given, found, measured.target, ended.to)
