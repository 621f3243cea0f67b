"""A model by hub name, read from files laid out as the hub's own client keeps them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from harness.cli import main

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_name(tiny: Path) -> str:
    """Put the tiny model into the hub's cache, as a download of its main branch would."""
    repository = Path(constants.HF_HUB_CACHE) / "models--ropewalk-tests--tiny"
    if not repository.exists():
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        shutil.copytree(tiny, repository / "snapshots" / COMMIT)
    return "ropewalk-tests/tiny"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_hub_model_is_recorded_by_its_commit(hub_name: str, docs: Path, tmp_path: Path) -> None:
    """A branch may move; the record and the keys hold the commit it stood for."""
    words = ["--model", hub_name, "--docs", str(docs), "--task", "perplexity:tail=32"]
    words += ["--scaling", "none", "pi", "--length", "1x", "2x", "--out", str(tmp_path / "run")]
    assert run(*words) == 0
    model = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (model["name"], model["revision"], model["fingerprint"]) == ("tiny", COMMIT, COMMIT)
    before = (tmp_path / "run" / "samples.jsonl").read_bytes()
    assert run(*words, "--revision", COMMIT) == 0
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == before


def test_a_model_that_is_not_there_is_refused_in_a_sentence(
    docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offline and unknown: the name is given back, no traceback, status 2."""
    assert run("--model", "ropewalk-tests/absent", "--docs", str(docs), "--dry-run") == 2
    message = capsys.readouterr().err
    assert "the config of ropewalk-tests/absent cannot be read" in message
    assert "Traceback" not in message
