"""Score against context length, a panel per model and task, with intervals and trained window."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.reports.plots.curve_panels import curves

BANDS = (
    "Bands: 95 % intervals of each method alone; the methods share documents and trials, so that "
    "differences may be significant where bands overlap (differences)."
)


def make(frame: pd.DataFrame) -> Figure:
    """Draw every scaling once; those with the same frequencies in all cells share a line.

    Models that were asked the same questions have one scale of scores.
    """
    return curves(frame, BANDS)
