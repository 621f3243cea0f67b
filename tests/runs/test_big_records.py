"""Records of many samples: read once, held in little memory, and each comparison made once."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.errors import UserError
from harness.reports import regret
from harness.runs.frame import NUMBERS, SAMPLE, make_frame
from harness.runs.record import check_sample
from harness.runs.store import each_sample
from tests.frames import sweep

REFERENCE = Path(__file__).parent.parent.parent / "results" / "reference"
OWN = {  # of the frame, beside the facts
    "run", "model", "task", "scaling", "length", "trained_length", "frequencies", "metric",
    "asked", "score", "low", "high", "n", "question", "needs_code",
}  # fmt: skip


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return list(each_sample(REFERENCE))


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_frame([REFERENCE])


@pytest.mark.slow
def test_a_frame_is_that_of_a_dictionary_a_row(frame, records):
    found = {(record["cell"], record["question"]): record for record in records}
    run = json.loads((REFERENCE / "run.json").read_text())
    keys = {(c["task"], c["scaling"], c["length"]): c["key"] for c in run["cells"]}
    rows = []
    for own in frame[[*OWN]].to_dict("records"):
        record = found[keys[own["task"], own["scaling"], own["length"]], own["question"]]
        told = {name: record.get(name) for name in SAMPLE}
        rows.append({**record["facts"], **own, **told})
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


def test_documents_are_compared_by_name_in_any_order_of_samples():
    frame = sweep(scalings=("none", "pi", "yarn"), lengths=(512,))
    turned = pd.concat([
        rows[::-1] if name == "pi" else rows for name, rows in frame.groupby("scaling", sort=False)
    ])  # fmt: skip
    wanted, found = regret.make(frame), regret.make(turned)
    order = ["task", "length", "scaling"]
    wanted, found = (table.sort_values(order, ignore_index=True) for table in (wanted, found))
    pd.testing.assert_frame_equal(wanted, found, rtol=1e-9)
