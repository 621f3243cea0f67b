"""Records of many samples: the frame over reading its JSON alone, and how the time grows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.setting import Row, Setting, ratios, row
from harness.runs.frame import make_frame
from harness.runs.store import RUN, SAMPLES

DEVICE = "cpu"
REFERENCE = Path(__file__).resolve().parent.parent.parent.parent / "results" / "reference"
TASK, TIMES = "passkey", (25, 100)  # of a sweep of 13 methods at 4 lengths, 25 trials


def measure(setting: Setting) -> list[Row]:
    """The pass keys of the reference run, with more trials: samples without token losses."""
    with tempfile.TemporaryDirectory() as place:
        counts = [max(1, setting.size(8 * times) // 8) for times in TIMES]
        folders = [_record(Path(place) / str(times), times) for times in counts]

        def parsed() -> None:
            with (folders[-1] / SAMPLES).open("rb") as file:
                found = [json.loads(line) for line in file]
            samples[:] = [len(found)]

        samples: list[int] = []
        make_frame(folders[:1])  # the first of a process imports
        small, large, plain = setting.interleaved(
            lambda: make_frame(folders[:1]), lambda: make_frame(folders[1:]), parsed
        )
    grown = [ratio * counts[0] / counts[1] for ratio in ratios(large, small)]
    what = f"frame of a record of {samples[0]:,} samples"
    return [
        row("h", f"{what}: time over that of json.loads alone", ratios(large, plain), "x", None),
        row("h", "the same, time a sample over that of a quarter of them", grown, "x", 1.25,
            above=False),
    ]  # fmt: skip


def _record(folder: Path, times: int) -> Path:
    """Write a record of one task of the reference run with so many times its trials."""
    folder.mkdir()
    run: dict[str, Any] = json.loads((REFERENCE / RUN).read_text(encoding="utf-8"))
    run["tasks"] = {TASK: run["tasks"][TASK]}
    run["cells"] = [cell for cell in run["cells"] if cell["task"] == TASK]
    questions = run["tasks"][TASK]["questions"]
    for length, asked in questions.items():
        questions[length] = [f"{one}{copy}" for copy in range(times) for one in asked]
    (folder / RUN).write_text(json.dumps(run), encoding="utf-8")
    with (
        (REFERENCE / SAMPLES).open(encoding="utf-8") as file,
        (folder / SAMPLES).open("w", encoding="utf-8") as out,
    ):
        own = [one for one in map(json.loads, file) if one["task"] == TASK]
        for copy in range(times):
            for one in own:
                told = {"question": f"{one['question']}{copy}", "unit": f"{one['unit']} {copy}"}
                out.write(json.dumps({**one, **told}) + "\n")
    return folder
