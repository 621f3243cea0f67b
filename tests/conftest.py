"""What every test stands on: no hub, one thread, a tiny model and a few documents."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

# Read when torch, transformers and datasets are imported, so set before; children inherit them.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing answers there
    "HF_HOME": tempfile.mkdtemp(prefix="ropewalk-tests-"),
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",  # two threads that wait actively take a core each
    "TOKENIZERS_PARALLELISM": "false",
}
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # children need not compile every module again

import pytest
from hypothesis import HealthCheck, settings

from tests import small_runs
from tests.command_line import MANY, Outcome, Ropewalk, status, sweep

# What takes seconds to import is imported where it is used: a process that only hands out tests,
# as that of ``pytest -n``, waits for none of it.
if TYPE_CHECKING:
    from ropewalk.harness.models.checkpoint import Checkpoint

# How long an example takes says how busy the machine is, and nothing of the property. The examples
# are the same in every run; HYPOTHESIS_SEARCH=1 draws others.
settings.register_profile(
    "busy",
    deadline=None,
    max_examples=20,
    derandomize="HYPOTHESIS_SEARCH" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy")
LONGEST = (
    "bench", "gpu_check", "page", "seeds", "encodings", "recommend", "bands", "answers", "doctor",
    "run", "export", "cluster", "memory", "trackers", "trust", "layers", "race", "api",
    "generation", "checkpoints", "gguf", "exact", "families", "readme", "failures", "folders",
)  # fmt: skip
WORDS = [
    "rope", "walk", "yarn", "strand", "twist", "hemp", "tar", "length", "long", "lane", "bobbin",
    "splice", "knot",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that two processes end together."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path.stem, len(places)), item.path))


def pytest_collection_finish() -> None:
    """Leave what is imported out of later collections of garbage: each would take long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def last_screen() -> Iterator[Callable[..., None]]:
    """Shorten the end of every run, and return what shows its last screen."""
    from ropewalk.harness.commands.report import answer

    with pytest.MonkeyPatch.context() as patch:
        small_runs.shorten(patch)
        yield answer


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch, last_screen: Callable[..., None]) -> None:
    """Let a run end with its last screen."""
    monkeypatch.setattr("ropewalk.harness.commands.report.answer", last_screen)


@pytest.fixture
def default_reports(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let a run in this process write its figures, as it does for a user."""
    request.getfixturevalue("scored")
    monkeypatch.setattr("ropewalk.harness.reports._write.FIGURES", small_runs.FIGURES)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny model by family; each is made once."""
    folders: dict[str, Path] = {}

    def of(family: str) -> Path:
        from tests.tiny import save_tiny

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
    from ropewalk.harness.models.checkpoint import open_checkpoint
    from ropewalk.harness.models.weights import load_weights

    opened = open_checkpoint("reference", dtype="float32", device="cpu")
    return opened, load_weights(opened)


@pytest.fixture
def ropewalk(capsys: pytest.CaptureFixture[str]) -> Ropewalk:
    """Return the command line, called in this process."""

    def call(*words: object) -> Outcome:
        return Outcome(status(*words), *capsys.readouterr())

    return call


@pytest.fixture
def weightless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that reads weights."""

    def fail(checkpoint: object) -> None:
        pytest.fail(f"the weights of {checkpoint} were read")

    monkeypatch.setattr("ropewalk.harness.sweep.this_process.load_weights", fail)


@pytest.fixture
def rejected(ropewalk: Ropewalk) -> Callable[..., str]:
    """Return what calls the command line and returns the message of its error, in one line."""

    def message(*words: object) -> str:
        done = ropewalk(*words)
        assert done.status == 2, done.out + done.err
        assert "Traceback" not in done.err
        return " ".join(done.err.split())

    return message


@pytest.fixture(scope="session")
def many(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of many samples that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "many"
    assert status(*sweep(tiny, docs, folder, **MANY)) == 0
    return folder


@pytest.fixture(scope="session")
def small(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of three samples that nothing disturbed."""
    return small_runs.sweep(tiny, docs, tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture
def run(small: Path, tmp_path: Path) -> Path:
    """Return a copy of a small run, to be changed."""
    return Path(shutil.copytree(small, tmp_path / "run"))
