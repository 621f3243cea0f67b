"""The real clients of the hub, against a server that speaks its protocol."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from huggingface_hub import close_session, constants
from transformers import AutoModelForCausalLM

from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.models.weights import load_weights
from tests.adapters import opened, save
from tests.command_line import Outcome, Ropewalk
from tests.hub_server import TOKEN, Hub, serve
from tests.quantized import save_gguf

MODEL, BOOKS = "org/tiny", "org/books"
SWEEP = {"task": "perplexity:tail=16", "scaling": "none", "length": "1x", "device": "cpu"}
SHARDS = 5
Run = Callable[..., Outcome]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the libraries ask the server, into an empty cache; ``--offline`` lasts for a test."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
        monkeypatch.setattr(datasets.config, name, False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def hub(online: None, tiny: Path, tmp_path: Path) -> Iterator[Hub]:
    """Return a hub with a tiny model and a data set of five files with two documents each."""
    del online
    hub = Hub(tmp_path / "hub")
    model = AutoModelForCausalLM.from_pretrained(shutil.copytree(tiny, hub.folder(MODEL)))
    (hub.folder(MODEL) / "model.safetensors").unlink()
    model.save_pretrained(hub.folder(MODEL), max_shard_size="30KB")
    data = hub.folder(BOOKS, "datasets") / "data"
    data.mkdir(parents=True)
    for part in range(SHARDS):
        texts = [f"book {part}{row} " + "rope walk yarn " * 40 for row in range(2)]
        rows = datasets.Dataset.from_dict({"text": texts})
        rows.to_parquet(data / f"test-{part:05}-of-{SHARDS:05}.parquet")
    end = serve(hub)
    yield hub
    close_session()
    end()


@pytest.fixture
def run(ropewalk: Ropewalk, docs: Path, tmp_path: Path) -> Run:
    """Return ``ropewalk run`` of a small sweep."""

    def call(*more: str, model: str = MODEL, **changes: str) -> Outcome:
        flags = {"model": model, "docs": str(docs), "out": str(tmp_path / "run")}
        flags |= SWEEP | changes
        return ropewalk("run", *(word for flag in flags for word in (f"--{flag}", flags[flag])),
                        *more)  # fmt: skip

    return call


def weights() -> Any:
    return load_weights(open_checkpoint(MODEL, dtype="float32", device="cpu"))


def refused(outcome: Outcome) -> str:
    """Return the one line with which a command ends, status 2."""
    assert outcome.status == 2, outcome
    return outcome.err.strip().splitlines()[-1]


def test_a_second_run_downloads_nothing_and_an_offline_run_asks_nothing(hub, run, tmp_path):
    assert run("--dry-run").status == 0
    assert hub.requests("GET", "tokenizer.json")
    assert not hub.requests("GET", "model-0")
    assert run().status == 0
    shards = [path for path in hub.files(MODEL, "models") if path.startswith("model-0")]
    assert len(hub.requests("GET /cdn")) == len(shards) > 2
    model = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert model["revision"] == model["fingerprint"] == hub.commit(MODEL)
    hub.asked.clear()
    first = weights()
    assert not hub.requests("GET /cdn")
    hub.asked.clear()
    assert run("--offline", "--dry-run").status == 0
    second = weights()
    assert not hub.asked
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_what_is_gated_says_what_to_do(hub, run, monkeypatch):
    hub.gated = {MODEL, BOOKS}
    error = run("--dry-run", model="reference", docs=f"{BOOKS}:count=1").err
    assert f"data set {BOOKS} (split test) cannot be read: " in error
    assert "is a gated dataset on the Hub. You must be authenticated to access it." in error
    error = refused(run("--dry-run"))
    assert f"it is gated; accept its conditions at {constants.ENDPOINT}/{MODEL}" in error
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run("--dry-run", docs=f"{BOOKS}:count=1").status == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "org/absent"}, "no model of the hub has this name"),
        ({"model": f"{MODEL}@gone"}, "the hub has no such revision"),
        ({"model": f"{MODEL}/gone.gguf"}, "has no file gone.gguf"),
        ({"docs": "org/absent:count=1"}, "doesn't exist on the Hub"),
        ({"docs": f"{BOOKS}:revision=gone,count=1"}, "data set org/books"),
        ({"docs": f"{BOOKS}:split=train,count=1"}, "Available splits: ['test']"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_wrong_name_is_one_sentence(run, change, words):
    assert words in refused(run("--dry-run", **change))


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        ("config.json", "the config of org/tiny cannot be read"),
        ("model.safetensors.index.json", "it has no weights in safetensors; "),
    ],
)
def test_a_file_that_the_hub_has_not_is_named(hub, run, removed, words):
    (hub.folder(MODEL) / removed).unlink()
    assert words in refused(run())


def test_a_gguf_file_of_the_hub_is_named_by_its_path(hub, run, tmp_path):
    """OWNER/NAME/FILE is downloaded once, and is read offline then."""
    file = save_gguf(tmp_path / "made" / "small.gguf")
    shutil.copy(file, hub.folder(MODEL) / file.name)
    flags = {"model": f"{MODEL}/{file.name}", "scaling": "yarn:factor=2"}
    assert run(**flags).status == 0
    model = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (model["name"], model["quantized"]) == ("small-Q4_1", "Q4_1")
    assert model["fingerprint"] == open_checkpoint(str(file), device="cpu").fingerprint
    hub.asked.clear()
    assert run("--offline", "--dry-run", **flags).status == 0
    assert not hub.asked


def test_an_adapter_has_a_hub_name(hub, tiny, tmp_path):
    adapter = save(tiny, tmp_path / "lora")
    shutil.copytree(adapter, hub.folder("org/lora"))
    local = opened(tiny, adapter)
    for name in ("org/lora", f"org/lora@{hub.commit('org/lora')}"):
        named = opened(tiny, Path(name))
        assert (named.label, named.fingerprint) == (local.label, local.fingerprint)


def test_offline_a_cache_that_lacks_a_file_is_one_sentence(hub, run):
    assert "run once without --offline" in refused(run("--offline"))
    constants.HF_HUB_OFFLINE = False
    assert run("--dry-run").status == 0
    hub.asked.clear()
    assert "run once without --offline" in refused(run("--offline"))
    assert not hub.asked


@pytest.mark.usefixtures("online")
def test_a_hub_that_is_not_reached_is_one_sentence(run):
    error = refused(run("--dry-run"))
    assert f"the hub ({constants.ENDPOINT}) cannot be reached; --offline" in error


def test_a_set_of_many_files_is_not_downloaded_whole(hub, run):
    assert run("--dry-run", model="reference", docs=f"{BOOKS}:count=3").status == 0
    read = {line.split()[1] for line in hub.requests("GET /cdn/datasets")}
    assert len(read) == 2


def test_a_set_is_read_offline_only_where_it_was_downloaded(hub, run):
    from huggingface_hub import snapshot_download

    offline = {"model": "reference", "docs": BOOKS}
    assert run("--dry-run", **offline).status == 0
    hub.asked.clear()
    error = refused(run("--dry-run", "--offline", **offline))
    assert f"hf download --repo-type dataset {BOOKS}" in error
    assert not hub.asked
    constants.HF_HUB_OFFLINE = False
    folder = Path(snapshot_download(BOOKS, repo_type="dataset"))
    hub.asked.clear()
    assert run("--dry-run", "--offline", **offline).status == 0
    next(folder.rglob("*.parquet")).unlink()
    assert "does not have all of it" in refused(run("--dry-run", "--offline", **offline))
    assert not hub.asked
