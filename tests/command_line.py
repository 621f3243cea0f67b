"""A small sweep on the command line, and what it leaves."""

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ropewalk.harness.cli import main
from ropewalk.harness.runs.store import SAMPLES
from ropewalk.tasks import perplexity

SETTINGS: dict[str, list[str]] = {
    "length": ["4x", "5x"],
    "task": ["perplexity:tail=16", "passkey:depths=2,trials=2"],
    "scaling": ["none", "yarn:factor=4"],
}
CELLS, QUESTIONS = 2 * 2 * 2, 2 * 2 * (3 + 4)  # three documents, four keys
MANY = {"task": ["perplexity:tail=16", "passkey:depths=4,trials=4"], "length": ["5x"]}  # to kill in
MINE = """
from ropewalk.scaling.types import Frequencies

def frequencies(rope, length, *, factor: float = 1.0):
    return Frequencies(rope.inv_freq() / factor)
"""


class Outcome(NamedTuple):
    """What a command left: exit status and what it said."""

    status: int
    out: str
    err: str


Ropewalk = Callable[..., Outcome]


def status(*words: object) -> int:
    """Call the command line in this process and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def sweep(model: Path, docs: Path | str, folder: Path, **changes: Sequence[str]) -> list[str]:
    """Return the words of a small sweep over 8 cells."""
    words = ["run", "--model", str(model), "--docs", str(docs), "--out", str(folder)]
    for flag, values in {**SETTINGS, "device": ["cpu"], **changes}.items():
        words += [f"--{flag}", *values]
    return words


def write_task(change: Callable[[str], str]) -> list[str]:
    """Write mine.py, the built-in perplexity but for a change, and return the names of both."""
    text = inspect.getsource(perplexity)
    assert change(text) != text
    Path("mine.py").write_text(change(text))
    return ["./mine.py:tail=16", "perplexity:tail=16"]


def lines_of(place: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON Lines file, or of the samples of a run folder."""
    file = place / SAMPLES if place.is_dir() else place
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def put_lines(run: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write the samples of a run folder."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / SAMPLES).write_text(text, encoding="utf-8")


def samples(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what was measured, less what a clock and a memory gauge say, each sample once."""
    lines = lines_of(folder)
    found = {(line["cell"], line["question"]): line for line in lines}
    assert len(found) == len(lines), "a sample was measured twice"
    for record in found.values():
        del record["seconds"], record["peak_mib"], record["session"]
    return found
