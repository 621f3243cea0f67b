"""How a page draws every method: the colour, mark and dashes that it has in the figures."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.markers import MarkerStyle

from harness.reports.plots.methods import Methods
from harness.reports.plots.style import DASHES, REST
from harness.reports.writing.escape import csv_text

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
