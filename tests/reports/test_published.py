"""The published values that are bundled, and runs set beside them."""

import pandas as pd
import pytest

from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load, names
from ropewalk.harness.reports import _published
from ropewalk.harness.reports._published import (
    display_values,
    match_values,
    read_tables,
    rows_of,
    tasks_of,
)
from ropewalk.harness.runs.frame import make_frame
from ropewalk.harness.sweep.spec import BUNDLED, parse_all
from ropewalk.scaling import Rope, ntk, pi, yarn
from tests.command_line import status


def value(table: str, model: str, scaling: str, length: int, tuned: str = "no") -> float:
    """Look one number up, which must be there once."""
    frame = read_tables()
    rows = frame[frame["table"] == table]
    chosen = (rows["model"] == model) & (rows["scaling"] == scaling) & (rows["length"] == length)
    [found] = rows.loc[chosen & (rows["tuned"] == tuned), "value"]
    return float(found)


def test_values_are_those_of_the_papers():
    """Corners of the printed tables, looked up by hand."""
    assert value("dca", "Llama-2-7B", "yarn on ntk", 65536) == 41.57
    assert value("dca", "Llama-2-70B", "dca", 4096) == 5.24
    assert value("lceg-pg19", "Llama-2-7B", "self_extend", 65536) == 7.15
    assert value("lceg-ruler", "Llama-2-7B", "ntk", 65536, "1B tokens at 32k") == 0.4626
    assert value("pi-pg19", "LLaMA-7B", "pi factor 8", 16384) == 112.13
    assert value("yarn-table-1", "LLongMA-2-7b", "pi", 10240, "tuned at 8k") == 8.07
    assert value("yarn-table-2", "Mistral-7B-v0.1", "native", 16384, "as published") == 36.8


def test_every_value_is_there_once_with_a_source_and_a_method_that_exists():
    frame = read_tables()
    cell = ["table", "model", "scaling", "tuned", "length", "metric"]
    assert not frame.duplicated(cell).any()
    assert frame["source"].str.match("arXiv:|https://").all()
    known = {*names("method"), ""}
    assert {text.partition(":")[0] for text in frame["method"]} <= known


def test_the_methods_of_lceg_are_those_of_its_code():
    """Tuned at 32k: PI and YaRN of factor 8; NTK of 4 * max(length, 32k) / 4k - 3, 29 or 61."""
    frame = read_tables()
    frame = frame[frame["source"].str.startswith("arXiv:2409.12181")]
    tuned = frame["tuned"] == "1B tokens at 32k"
    rope = Rope(128, 10_000.0, 4096)
    fixed = {
        "pi": pi.frequencies(rope, 1, factor=8.0),
        "yarn": yarn.frequencies(rope, 1, factor=8.0),
    }
    for row in frame[tuned].to_dict("records"):
        base = 4 * max(row["length"], 32768) / 4096 - 3
        wanted = fixed.get(row["scaling"]) or ntk.frequencies(rope, 1, factor=base)
        method = load("method", row["method"])
        assert resolve(method, rope, row["length"]).fingerprint == wanted.fingerprint, row


# A run beside a table.

CELLS = pd.DataFrame(
    [("pi", 4096, 7.9, 7.0, 8.9), ("pi", 8192, 9.6, 9.0, 10.2), ("none", 8192, 150.0, 90.0, 200.0)],
    columns=["scaling", "length", "score", "low", "high"],
).assign(n=10, task="perplexity:protocol=overlapping", status=["ok", "9 of 10 ok, 1 failed", "ok"])


def test_a_run_is_set_beside_its_table_value_by_value():
    """7.90 for 7.87 is within 2 %, 9.60 for 9.19 is not, 150 holds "more than 100"."""
    rows = rows_of("dca", None, None, "meta-llama/Llama-2-7b-hf")
    matched = match_values(rows, CELLS, 0.02)
    table = matched.set_index(["scaling", "length"])
    assert table.loc[("pi (dynamic)", 4096), "verdict"] == "within"
    assert table.loc[("pi (dynamic)", 8192), "verdict"] == "outside"
    assert table.loc[("pi (dynamic)", 8192), "difference"] == pytest.approx(9.6 / 9.19 - 1)
    assert table.loc[("none", 8192), "verdict"] == "within"
    assert table.loc[("dca", 4096), "verdict"] == "not measured"
    shown = display_values(matched).set_index(["scaling", "length"])["measured [95 %]"]
    assert shown["pi (dynamic)", "8192"] == "9.60 [9.00, 10.20] (9 of 10)"
    assert shown["dca", "4096"] == ""


@pytest.mark.parametrize("sweep", sorted(BUNDLED.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_bundled_sweep_measures_is_in_its_table(sweep):
    """Every method has a value of each model, under the protocol of the table."""
    for spec in parse_all(sweep, {}):
        rows = rows_of(str(spec.published), None, None, spec.model)
        (task,) = (load("task", name) for name in spec.task)
        tasks = {task.label: {"metric": task.module.METRIC, "options": task.options}}
        model = {"trained_length": rows["trained_length"].iloc[0]}
        assert tasks_of(rows, {"tasks": tasks, "model": model}) == ([task.label], [])
        cells = pd.DataFrame(
            {"scaling": name, "length": int(length), "score": score, "task": task.label}
            for score, name in enumerate(spec.scaling)
            for length in spec.length
        ).assign(low=None, high=None, n=1, status="ok")
        found = match_values(rows, cells, 0)["measured"].dropna()
        assert {*found} == {*range(len(spec.scaling))}


def test_the_command_writes_the_comparison_and_its_status_is_the_verdict(
    run, tmp_path, monkeypatch
):
    score = float(make_frame([run])["score"].iloc[0])
    cell = {"scaling": "pi", "method": "pi", "length": 128, "value": score}
    own = read_tables().query("table == 'dca'").iloc[[0]]
    own = own.assign(protocol="tail", stride=pd.NA, trained_length=64, **cell)
    for factor, wanted in ((1.0, 0), (2.0, 1)):
        table = own.assign(value=factor * score)
        monkeypatch.setattr(_published, "read_tables", lambda table=table: table)
        assert status("compare", run, "--published", "dca", "--out", tmp_path / "out") == wanted
    page = (tmp_path / "out" / "compare-dca.md").read_text()
    assert "0 of 1 values" in page
    assert "−50 %" in page
    assert "The run is of llama, not of Llama-2-7B." in page
