"""The committed tables of simulated error rates."""

from tests import ROOT


def committed(title: str, name: str = "statistics.md") -> dict[str, dict[int, float]]:
    """Return one table: numbers by the row's name and the number of documents."""
    text = (ROOT / "results" / name).read_text("utf-8")
    _, _, text = text.partition(f"## {title}\n")
    rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in text.partition("\n## ")[0].splitlines()
        if line.startswith("| ")
    ]
    numbers = [int(head.split()[0]) for head in rows[0][1:]]
    return {row[0]: dict(zip(numbers, map(float, row[1:]), strict=True)) for row in rows[1:]}
