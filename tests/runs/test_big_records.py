"""The frame of a large record is made of its samples, and damaged samples are rejected."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.frame import NUMBERS, SAMPLE, make_frame
from ropewalk.harness.runs.record import check_sample
from ropewalk.harness.runs.store import each_sample

REFERENCE = Path(__file__).parent.parent.parent / "results" / "reference"
OWN = {  # of the frame, beside the facts
    "run", "model", "task", "scaling", "length", "trained_length", "frequencies", "metric",
    "asked", "score", "low", "high", "n", "question", "needs_code",
}  # fmt: skip


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return list(each_sample(REFERENCE))


@pytest.mark.slow
def test_a_frame_has_the_values_of_the_samples(records):
    frame = make_frame([REFERENCE])
    found = {(record["cell"], record["question"]): record for record in records}
    run = json.loads((REFERENCE / "run.json").read_text())
    keys = {(c["task"], c["scaling"], c["length"]): c["key"] for c in run["cells"]}
    rows = []
    for row in frame[[*OWN]].to_dict("records"):
        record = found[keys[row["task"], row["scaling"], row["length"]], row["question"]]
        rows.append({**record["facts"], **row, **{name: record.get(name) for name in SAMPLE}})
    naive = pd.DataFrame(rows)
    naive = naive.astype(dict.fromkeys(NUMBERS, float))
    pd.testing.assert_frame_equal(naive[list(frame)], frame, check_exact=True)


WRONG: list[dict[str, Any]] = [
    {"cell": 1}, {"value": None}, {"value": "1"}, {"value": float("nan")}, {"weight": 0},
    {"weight": 1.5}, {"facts": None}, {"facts": {"a": {}}}, {"facts": {"a": ["b"]}},
    {"facts": {"a": [1.0, float("inf")]}}, {"seconds": float("inf")}, {"shared": "maybe"},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_a_damaged_sample_is_rejected(change, records):
    with pytest.raises(UserError, match="is damaged"):
        check_sample("here", {**records[0], **change})
