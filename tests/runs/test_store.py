"""The run folder: what was measured survives a kill, and nothing else gets in."""

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.store import (
    LINE,
    RUN,
    SAMPLES,
    append,
    check_intact,
    measured,
    read_run,
    read_samples,
    write_run,
    writing,
)


def sample(number: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    value = number / 3 if status == "ok" else None
    return {"cell": "c", "question": str(number), "status": status, "value": value, **more}


def store(folder: Path, *records: dict[str, Any]) -> None:
    with writing(folder) as file:
        for record in records:
            append(file, record)


def test_what_is_appended_is_read_bit_for_bit(tmp_path):
    records = [sample(n, unit=f"größe {n}") for n in range(3)]
    store(tmp_path / "deep" / "run", *records)
    found = read_samples(tmp_path / "deep" / "run")
    assert found == {("c", str(n)): records[n] for n in range(3)}
    assert list(found) == [("c", "0"), ("c", "1"), ("c", "2")]


def test_compressed_samples_are_read_and_unpacked_to_continue(tmp_path):
    store(tmp_path, sample(0), sample(1))
    content = (tmp_path / SAMPLES).read_bytes()
    (tmp_path / f"{SAMPLES}.gz").write_bytes(gzip.compress(content, 9))
    (tmp_path / SAMPLES).unlink()
    assert list(read_samples(tmp_path)) == [("c", "0"), ("c", "1")]
    store(tmp_path, sample(2))
    assert [path.name for path in tmp_path.iterdir()] == [SAMPLES]
    assert (tmp_path / SAMPLES).read_bytes().startswith(content)
    assert len(read_samples(tmp_path)) == 3


def test_damaged_compressed_samples_are_one_sentence(tmp_path):
    store(tmp_path, sample(0))
    whole = gzip.compress((tmp_path / SAMPLES).read_bytes())
    (tmp_path / SAMPLES).unlink()
    for content in (whole[:-9], b"no gzip"):
        (tmp_path / f"{SAMPLES}.gz").write_bytes(content)
        for use, verb in ((read_samples, "read"), (store, "unpacked")):
            with pytest.raises(UserError, match=f"samples.jsonl.gz cannot be {verb}"):
                use(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [f"{SAMPLES}.gz"]


@pytest.mark.parametrize(
    "torn",
    [b'{"cell": "c", "question": "9"', b"\xc3", bytes(40) + b"\n", b'\x00\n{"ce'],
    ids=lambda torn: repr(torn[:9]),
)
def test_a_torn_last_line_is_not_read_and_is_cut(tmp_path, torn):
    store(tmp_path, sample(0))
    whole = (tmp_path / SAMPLES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(whole + torn)
    assert list(read_samples(tmp_path)) == [("c", "0")]
    store(tmp_path, sample(1))
    assert list(read_samples(tmp_path)) == [("c", "0"), ("c", "1")]
    assert (tmp_path / SAMPLES).read_bytes().startswith(whole)


@pytest.mark.parametrize(
    "broken", ['{"cell": "c"', '{"cell": "c"}', "[]", "", "\x00", "x" * (LINE + 1)]
)
def test_a_broken_line_in_the_middle_is_named(tmp_path, broken):
    store(tmp_path, sample(0))
    with (tmp_path / SAMPLES).open("a") as file:
        file.write(f"{broken}\n{json.dumps(sample(1))}\n")
    with pytest.raises(UserError) as caught:
        read_samples(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / SAMPLES}, line 2 is broken; take the line out to measure it again."
    )


def test_the_last_record_of_a_sample_counts(tmp_path):
    store(tmp_path, sample(0, "out_of_memory"), sample(1), sample(0))
    assert read_samples(tmp_path)["c", "0"]["status"] == "ok"


def test_failures_that_may_pass_are_measured_again(tmp_path):
    """Out of memory is tried again; a number and an undefined loss are kept."""
    store(tmp_path, sample(0), sample(1, "out_of_memory"), sample(2, "not_finite"))
    assert measured(read_samples(tmp_path)) == {("c", "0"), ("c", "2")}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_file_holds_what_is_no_number(tmp_path, value):
    with writing(tmp_path) as file:
        append(file, sample(0))
        with pytest.raises(ValueError, match="not JSON compliant"):
            append(file, sample(1, seconds=value))
    assert list(read_samples(tmp_path)) == [("c", "0")]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_run(tmp_path, {"schema": 1, "base": value})
    assert not (tmp_path / RUN).exists()


def test_a_second_writer_is_refused(tmp_path):
    code = "import sys; from pathlib import Path; from ropewalk.harness.runs.store import writing\n"
    code += "with writing(Path(sys.argv[1])): print('written', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "written\n"
        with pytest.raises(UserError) as caught, writing(tmp_path):
            pytest.fail("two writers")
        other.communicate("")
    assert str(caught.value) == (
        f"another process is writing {tmp_path}; wait for it or choose another --out."
    )
    store(tmp_path, sample(0))
    assert len(read_samples(tmp_path)) == 1


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda folder: (folder / SAMPLES).unlink(),
    "cut": lambda folder: os.truncate(folder / SAMPLES, (folder / SAMPLES).stat().st_size - 9),
    "folder renamed": lambda folder: folder.rename(folder.with_name("moved")),
    "replaced": lambda folder: shutil.copy(folder / SAMPLES, folder / "b").replace(
        folder / SAMPLES
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("last", [False, True])
def test_samples_that_are_lost_while_a_run_writes_are_noticed(damage, tmp_path, *, last):
    folder = tmp_path / "run"
    with writing(folder) as file:
        append(file, sample(0))
        append(file, sample(1))
        DAMAGES[damage](folder)
        with pytest.raises(UserError, match="was removed, emptied or replaced"):
            check_intact(file) if last else append(file, sample(2))
    store(folder, sample(3))


def test_the_record_is_replaced_in_one_step(tmp_path):
    write_run(tmp_path, {"schema": 1, "seed": 0})
    with pytest.raises(TypeError):
        write_run(tmp_path, {"schema": 1, "seed": object()})
    assert read_run(tmp_path) == {"schema": 1, "seed": 0}
    write_run(tmp_path, {"schema": 1, "seed": 1})
    assert read_run(tmp_path) == {"schema": 1, "seed": 1}
    assert (tmp_path / RUN).read_text().endswith("}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "{folder} is not a run folder: it has no run.json."),
        ("{", "{folder}/run.json is not JSON: "),
        ('{"schema": 7}', "{folder}/run.json has schema 7; this version reads 1."),
    ],
)
def test_what_is_no_run_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / RUN).write_text(text)
    with pytest.raises(UserError) as caught:
        read_run(tmp_path)
    assert message.format(folder=tmp_path) in str(caught.value)
