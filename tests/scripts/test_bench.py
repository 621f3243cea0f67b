"""The benchmark's rows on tiny inputs and its tables."""

import pandas as pd
import pytest

from scripts import bench


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefix", "pass", "passkeys", "positions"])  # in this process
def test_a_row_is_measured_on_a_short_input(name, tmp_path):
    bench.main(["--quick", "--out", str(tmp_path), "--only", name])
    (numbers,) = tmp_path.glob("*.csv")
    rows = pd.read_csv(numbers)
    assert (rows["name"] == name).all()
    assert (rows[["ours", "theirs"]] > 0).all(axis=None)
    assert (rows["low"] <= rows["ratio"]).all()
    assert (rows["ratio"] <= rows["high"]).all()
    page = numbers.with_suffix(".md").read_text(encoding="utf-8")
    assert all(f"| {name} | {what} |" in page for what in rows["what"])


def test_committed_tables_are_those_of_their_numbers():
    files = list(bench.RESULTS.glob("*.csv"))
    assert files
    for file in files:
        page = file.with_suffix(".md").read_text(encoding="utf-8")
        assert page == bench.markdown(pd.read_csv(file))
