"""The run folder: what was measured survives a kill, and nothing else gets in."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.store import (
    RUN,
    SAMPLES,
    append,
    each_sample,
    measured,
    read_run,
    read_samples,
    writing,
)


def sample(number: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    value = number / 3 if status == "ok" else None
    named = {"cell": "c", "question": str(number), "status": status, "value": value}
    return named | {
        "task": "t", "length": 9, "frequencies": "f", "unit": "u", "weight": 1, "facts": {}
    } | more  # fmt: skip


def store(folder: Path, *records: dict[str, Any]) -> None:
    with writing(folder) as file:
        for record in records:
            append(file, record)


def test_what_is_appended_is_read_bit_for_bit(tmp_path):
    records = [sample(n, unit=f"größe {n}", facts={"losses": [1 / 3, n]}) for n in range(3)]
    store(tmp_path / "deep" / "run", *records)
    assert list(each_sample(tmp_path / "deep" / "run")) == records
    assert list(read_samples(tmp_path / "deep" / "run")) == [("c", str(n)) for n in range(3)]
    assert read_samples(tmp_path / "absent") == {}


@pytest.mark.parametrize(
    "torn",
    [b'{"cell": "c", "question": "9"', b"\xc3", bytes(40) + b"\n"],
    ids=lambda torn: repr(torn[:9]),
)
@pytest.mark.parametrize("before", [0, 1])
def test_a_torn_last_line_is_not_read_and_is_cut(tmp_path, torn, before):
    store(tmp_path, *[sample(0)] * before)
    whole = (tmp_path / SAMPLES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(whole + torn)
    assert list(read_samples(tmp_path)) == [("c", "0")] * before
    store(tmp_path, sample(1))
    assert [one["question"] for one in each_sample(tmp_path)] == ["0", "1"][-1 - before :]
    assert (tmp_path / SAMPLES).read_bytes().startswith(whole)


@pytest.mark.parametrize(
    "broken", ['{"cell": "c"', '{"cell": "c"}', "[]", "", "\x00", json.dumps(sample(1, value="x"))]
)
def test_a_broken_line_in_the_middle_is_named(tmp_path, broken):
    store(tmp_path, sample(0))
    with (tmp_path / SAMPLES).open("a") as file:
        file.write(f"{broken}\n{json.dumps(sample(1))}\n")
    with pytest.raises(UserError) as caught:
        read_samples(tmp_path)
    assert str(caught.value).startswith(
        f"{tmp_path / SAMPLES}, line 2 is broken; take the line out to measure it again: "
    )
    assert "\n" not in str(caught.value)


def test_the_last_record_of_a_sample_counts(tmp_path):
    """Out of memory is tried again; a number and an undefined loss are kept."""
    store(tmp_path, sample(0, "out_of_memory"), sample(1, "out_of_memory"), sample(0))
    store(tmp_path, sample(2, "not_finite"))
    assert read_samples(tmp_path)["c", "0"]["status"] == "ok"
    assert measured(each_sample(tmp_path)) == {("c", "0"), ("c", "2")}


def test_a_second_writer_is_refused(tmp_path):
    code = "import sys; from pathlib import Path; from ropewalk.harness.runs.store import writing\n"
    code += "with writing(Path(sys.argv[1])): print('written', flush=True); sys.stdin.read()"
    words, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "written\n"
        with pytest.raises(UserError, match="another process is writing"), writing(tmp_path):
            pytest.fail("two writers")
        other.communicate("")
    store(tmp_path, sample(0))
    assert len(read_samples(tmp_path)) == 1


@pytest.mark.parametrize("text", [None, "{", '{"schema": 1}'])
def test_what_is_no_run_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / RUN).write_text(text)
    said = "run.json cannot be read: " if text else " is not a run folder: it has no run.json."
    with pytest.raises(UserError, match=said):
        read_run(tmp_path)
