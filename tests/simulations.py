"""The committed tables of simulated error rates."""

import re

from tests import ROOT


def committed(title: str, name: str = "statistics.md") -> dict[str, dict[int, float]]:
    """Return one table: numbers by the row's name and the number of documents.

    Where columns differ by the number of methods too, it is in the name.
    """
    text = (ROOT / "results" / name).read_text("utf-8")
    _, _, text = text.partition(f"## {title}\n")
    heads, *rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in text.partition("\n## ")[0].splitlines()
        if line.startswith("| ")
    ]
    table: dict[str, dict[int, float]] = {}
    for row, *numbers in rows:
        for head, number in zip(heads[1:], numbers, strict=True):
            *methods, documents = re.findall(r"\d+", head)
            key = row.replace("; ", f"; {methods[0]} methods, ") if methods else row
            table.setdefault(key, {})[int(documents)] = float(number)
    return table
