"""The check of a GPU, as a smoke test on a CPU."""

import json

import pytest

from scripts import gpu_check


def lines(folder):
    text = (folder / "gpu_check.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_every_section_writes_its_measurements(tmp_path):
    assert gpu_check.main(["--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    rows = lines(tmp_path)[1:]
    assert all(row["ok"] for row in rows)
    measured = {row["section"] for row in rows if row["what"] != "whole section"}
    assert measured == set(gpu_check.SECTIONS)


def test_a_section_that_fails_is_recorded_and_the_next_one_runs(tmp_path, monkeypatch):
    def fails(_):
        yield {"what": "first", "ok": True}
        raise ValueError("no such operator")

    def misses(_):
        yield {"what": "slow", "ok": False}

    sections = {"fails": (fails, 9, False), "misses": (misses, 9, False)}
    monkeypatch.setattr(gpu_check, "SECTIONS", sections)
    given = ["--device", "cpu", "--out", str(tmp_path), "--sections", "fails,misses"]
    assert gpu_check.main(given) == 1
    told = [(row["section"], row["what"], row["ok"]) for row in lines(tmp_path)[1:]]
    assert told == [
        ("fails", "first", True),
        ("fails", "ValueError: no such operator", False),
        ("fails", "whole section", True),
        ("misses", "slow", False),
        ("misses", "whole section", True),
    ]
