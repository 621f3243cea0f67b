"""What every test stands on: no hub, one thread, a tiny model and a few documents."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.hub_server import ENDPOINT

# Read when torch, transformers and datasets are imported, so set before; children inherit them.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_ENDPOINT": ENDPOINT,
    "HF_HOME": tempfile.mkdtemp(prefix="ropewalk-tests-"),
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

import pytest
import torch

from harness import plugins
from harness.cli.app import main
from harness.model.checkpoint import Checkpoint, open_checkpoint
from harness.model.weights import load_weights
from harness.runs import write
from tests.command_line import MANY, Outcome, Ropewalk, sweep
from tests.tiny import save_tiny

WORDS = [
    "rope",
    "walk",
    "yarn",
    "strand",
    "twist",
    "hemp",
    "tar",
    "length",
    "long",
    "lane",
    "bobbin",
    "splice",
    "knot",
]


def pytest_configure(config: pytest.Config) -> None:
    """Compute on one thread: the same bits on every machine, and no fight for cores."""
    del config
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, so that two processes end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _few_reports() -> Iterator[None]:
    """Let a run in this process write two reports: all of them take longer than a tiny sweep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "names", lambda _: ["best", "scores"])
        yield


@pytest.fixture
def every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run in this process write every report, as it does for a user."""
    monkeypatch.setattr(write, "names", plugins.names)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny model by family; each is made once."""
    folders: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in folders:
            folders[family] = save_tiny(tmp_path_factory.mktemp("models") / family, family)
        return folders[family]

    return of


@pytest.fixture(scope="session")
def tiny(saved: Callable[[str], Path]) -> Path:
    """Return the folder of a tiny Llama with its tokenizer."""
    return saved("llama")


@pytest.fixture(scope="session")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three documents of 2000 to 4000 characters."""
    folder = tmp_path_factory.mktemp("docs")
    draw = Random("documents")
    for index in range(3):
        text = " ".join(draw.choices(WORDS, k=400 + 150 * index))
        (folder / f"document-{index}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def reference() -> tuple[Checkpoint, Any]:
    """Return the embedded checkpoint and its model, float32 on the CPU."""
    opened = open_checkpoint(
        "reference", revision=None, dtype="float32", device="cpu",
        trust_remote_code=False, allow_pickle=False,
    )  # fmt: skip
    return opened, load_weights(opened)


@pytest.fixture
def ropewalk(capsys: pytest.CaptureFixture[str]) -> Ropewalk:
    """Return the command line, called in this process."""

    def call(*words: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Outcome(ended.value.code or 0, out, err)  # type: ignore[arg-type]

    return call


@pytest.fixture(scope="session")
def many(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of many samples that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "many"
    with pytest.raises(SystemExit) as ended:
        main(sweep(tiny, docs, folder, **MANY))
    assert not ended.value.code
    return folder
