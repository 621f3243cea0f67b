"""``--max-memory``: what fits is measured to the same bits, what cannot fit is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.app import main
from harness.runs.store import read_samples


def run(*words: str) -> int:
    """Run the command line and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_less_memory_gives_the_same_numbers(tiny: Path, docs: Path, tmp_path: Path) -> None:
    """A sweep held to little memory records the values of one without a limit, bit for bit."""
    words = ("--model", str(tiny), "--docs", str(docs), "--length", "8x", "--scaling", "none", "pi")
    values = []
    for name, limit in (("free", ()), ("little", ("--max-memory", "4MiB"))):
        assert run(*words, *limit, "--out", str(tmp_path / name)) == 0
        samples = read_samples(tmp_path / name)
        values.append({key: sample["value"] for key, sample in samples.items()})
    assert values[0] == values[1]


def test_too_little_memory_is_refused_before_weights_are_read(
    tiny: Path, docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence says what was given, what is needed, and what to do."""
    words = ("--model", str(tiny), "--docs", str(docs), "--length", "8x", "--max-memory", "100KB")
    assert run(*words, "--out", str(tmp_path), "--dry-run") == 2
    told = capsys.readouterr().err
    assert "--max-memory 100KB is too little: the weights and the longest question need" in told


def test_a_size_has_a_unit(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no size is answered with what is."""
    assert run("--model", str(tiny), "--max-memory", "much") == 2
    assert "max_memory: 'much' is no size; write 800MiB" in capsys.readouterr().err
