"""Who leads each task at each length beyond the window."""

from __future__ import annotations

import pandas as pd

from harness.reports.stats.measure import SHARES
from harness.reports.stats.ranking import choice, ranking
from harness.reports.writing import sentences


def places(frame: pd.DataFrame) -> dict[tuple[str, str], list[tuple[int, list[str]]]]:
    """Return by model and task the lengths beyond the window at which one can be best, and who is.

    No one is where all score 0 of a share, where one method alone was measured, or where the units
    are too few for a verdict.
    """
    table = ranking(frame)
    nothing = table["metric"].isin(SHARES) & (table["score"] == 0)
    beyond = table["length"] > table["trained_length"]
    told = table["runner_up"].notna() & table["enough"].ne(False)
    led: dict[tuple[str, str], list[tuple[int, list[str]]]] = {}
    for place in sentences.records(table[beyond & ~nothing & told]):
        led.setdefault((place["model"], place["task"]), []).append(
            (place["length"], choice([place]))
        )
    return led
