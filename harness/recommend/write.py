"""What a race leaves for its reader: sentences, a table, a figure, and files of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from harness.recommend.answer import footnote, next_line, paragraph, readable, table
from harness.recommend.figure import draw
from harness.recommend.race import Standing
from harness.recommend.run import Race
from harness.replacing import make_folder
from harness.reports.drawing.style import drawing
from harness.runs.folders import reports_of
from harness.runs.write import save_figure, save_table


@dataclass(frozen=True)
class Recommendation:
    """The answer of a race.

    ``scaling`` is the method with the lowest perplexity, ``sure`` whether it is a sole winner.
    ``text`` is the paragraph, ``table`` has a row a candidate, ``shown`` is the same for people,
    with a ``note``. ``next`` says what to type to write the method for an engine, or why nothing
    serves it, and ``export`` is the command in it; both are empty for a model or a function of this
    process. ``failures`` are the candidates without a number, and why.
    """

    scaling: str
    sure: bool
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


def written(race: Race, standing: Standing) -> Recommendation:
    """Return the answer, and write it into the reports of the run folder."""
    made = table(race, standing)
    text, shown, note = paragraph(race, standing, made), readable(made, race), footnote(race, made)
    label, folder = race.plan.checkpoint.label, reports_of(race.folder)
    line, told = next_line(race, standing)
    words = [one for one in (text, note, told and f"Next: {told}") if one]
    make_folder(folder)
    with drawing():
        lengths = (race.window, race.target)
        figure = draw(made, model=label, lengths=lengths, tolerance=race.rules.tolerance)
        files = save_table(made, [({label: shown}, words)], folder / "recommend")
        files += save_figure(figure, folder, "recommend")
    return Recommendation(
        standing.leader, bool(standing.sole), text, made, shown, note, figure, told, line,
        race.failed, race.folder, tuple(files),
    )  # fmt: skip
