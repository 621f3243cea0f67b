"""The real clients of the hub, against a server that speaks its protocol."""

import json
import shutil
import time
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
from tests.command_line import Outcome, Ropewalk
from tests.hub_server import TOKEN, Fault, Hub, serve
from tests.quantized import save_gguf

MODEL, BOOKS = "org/tiny", "org/books"
SWEEP = {"task": "perplexity:tail=16", "scaling": "none", "length": "1x", "device": "cpu"}
SHARDS = 5
Run = Callable[..., Outcome]


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
    found = Hub(tmp_path / "hub")
    shutil.copytree(tiny, found.folder(MODEL))
    data = found.folder(BOOKS, "datasets") / "data"
    data.mkdir(parents=True)
    for part in range(SHARDS):
        texts = [f"book {part}{row} " + "rope walk yarn " * 40 for row in range(2)]
        rows = datasets.Dataset.from_dict({"text": texts})
        rows.to_parquet(data / f"test-{part:05}-of-{SHARDS:05}.parquet")
    end = serve(found)
    yield found
    close_session()
    end()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that the clients wait, which pass at once."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.fixture
def run(ropewalk: Ropewalk, docs: Path, tmp_path: Path) -> Run:
    """Return ``ropewalk run`` of a small sweep."""

    def call(*more: str, model: str = MODEL, **changes: str) -> Outcome:
        asked = {"model": model, "docs": str(docs), "out": str(tmp_path / "run")}
        asked |= SWEEP | changes
        return ropewalk("run", *(word for key in asked for word in (f"--{key}", asked[key])), *more)

    return call


def weights(**changes: Any) -> Any:
    options = {"revision": None, "dtype": "float32", "device": "cpu", **changes}
    return load_weights(
        open_checkpoint(MODEL, trust_remote_code=False, allow_pickle=False, **options)
    )


def refused(outcome: Outcome) -> str:
    """Return the one line with which a command ends, status 2."""
    assert outcome.status == 2
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("ropewalk: ")
    assert ". " not in last.removesuffix(".")
    return last


def split(hub: Hub) -> None:
    model = AutoModelForCausalLM.from_pretrained(hub.folder(MODEL))
    (hub.folder(MODEL) / "model.safetensors").unlink()
    model.save_pretrained(hub.folder(MODEL), max_shard_size="30KB")


@pytest.mark.slow
def test_a_second_run_downloads_nothing_and_an_offline_run_asks_nothing(hub, run, tmp_path):
    split(hub)
    assert run("--dry-run").status == 0
    assert hub.requests("GET", "tokenizer.json")
    assert not hub.requests("safetensors")
    done = run()
    assert done.status == 0
    assert "Downloading the weights of org/tiny from the hub, 0.1 MiB" in done.err
    shards = [path for path in hub.files(MODEL, "models") if path.startswith("model-0")]
    assert len(hub.requests("GET /cdn")) == len(shards) > 2
    model = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert model["revision"] == model["fingerprint"] == hub.commit(MODEL)
    hub.asked.clear()
    first = weights()
    assert [line for line in hub.requests(MODEL) if "/tree/" not in line] == [
        f"HEAD /{MODEL}/resolve/main/config.json"  # which commit the branch is at
    ]
    hub.asked.clear()
    assert run("--offline", "--dry-run").status == 0
    second = weights()
    assert not hub.asked
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub, waits, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.faults = [Fault("GET /cdn.*safetensors", after=60_000)]
    size = hub.files(MODEL, "models")["model.safetensors"]
    assert weights() is not None
    first, second = hub.requests("GET /cdn")
    assert second == f"{first} bytes=60000-"
    assert hub.sent < size + 20_000
    assert waits == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("file", "status"), [("tokenizer_config.json", 503), ("model.safetensors", 500)]
)
def test_a_file_that_the_hub_fails_to_give_is_not_taken_for_absent(hub, run, file, status):
    """Else a tokenizer would lack its begin token, and weights be called pickles."""
    hub.faults = [Fault(f"(HEAD|GET /cdn).*{file}", status)] * 9
    assert f"the hub answers HTTP {status}" in refused(run())


@pytest.mark.slow
def test_a_hub_that_limits_requests_is_waited_for_in_words(hub, run, waits):
    """As long as it asks, and a limit that stays is one sentence."""
    hub.faults = [Fault("HEAD .*config.json", 429, {"Retry-After": "60"})]
    done = run("--dry-run")
    assert (done.status, waits) == (0, [])  # the client's first retry is at once
    hub.faults = [Fault("HEAD .*config.json", 429, {"Retry-After": "60"})] * 9
    shutil.rmtree(constants.HF_HUB_CACHE)
    done = run("--dry-run")
    assert "limits requests (HTTP 429)" in refused(done)
    assert waits == [61] * 5
    assert "next attempt in 61 s (1 of 5)" in done.err


@pytest.mark.slow
def test_what_is_gated_says_what_to_do(hub, run, monkeypatch):
    hub.gated = {MODEL, BOOKS}
    told = run("--dry-run", model="reference", docs=f"{BOOKS}:count=1").err
    assert "data set org/books (split test) cannot be read: " in told
    assert "is a gated dataset on the Hub. You must be authenticated to access it." in told
    for token in ("", "hf_other"):
        monkeypatch.setenv("HF_TOKEN", token)
        told = refused(run("--dry-run"))
        assert f"it is gated; accept its conditions at {constants.ENDPOINT}/org/tiny" in told
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert run("--dry-run", docs=f"{BOOKS}:count=1").status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "org/absent"}, "the hub has no such model"),
        ({"model": f"{MODEL}@gone"}, "the hub has no such revision"),
        ({"docs": "org/absent:count=1"}, "doesn't exist on the Hub"),
        ({"docs": f"{BOOKS}:revision=gone,count=1"}, "the hub has no such revision"),
        ({"docs": f"{BOOKS}:split=train,count=1"}, "Available splits: ['test']"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_wrong_name_is_one_sentence(run, change, told):
    assert told in run("--dry-run", **change).err


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ("config.json", "the hub has no config.json in it"),
        ("model.safetensors", "no weights in safetensors"),
    ],
)
def test_a_file_that_the_hub_has_not_is_named(hub, run, removed, told):
    (hub.folder(MODEL) / removed).unlink()
    assert told in refused(run())


@pytest.mark.slow
def test_a_gguf_file_of_the_hub_is_named_by_its_path(hub, run, tmp_path):
    """OWNER/NAME/FILE is downloaded once, is read offline then, and is told from one not there."""
    file = save_gguf(tmp_path / "made" / "small.gguf")
    shutil.copy(file, hub.folder(MODEL) / file.name)
    place = f"{MODEL}/{file.name}"
    done = run(model=place, scaling="yarn:factor=2")
    assert done.status == 0, done.err
    assert f"Downloading the weights of {MODEL} from the hub, 0.1 MiB" in done.err
    model = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (model["name"], model["quantized"]) == ("small-Q4_1", "Q4_1")
    assert model["fingerprint"] == open_checkpoint(str(file), device="cpu").fingerprint
    assert "no gone.gguf in it" in refused(run("--dry-run", model=f"{MODEL}/gone.gguf"))
    hub.asked.clear()
    assert run("--offline", "--dry-run", model=place, scaling="yarn:factor=2").status == 0
    assert not hub.asked


@pytest.mark.slow
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_offline_the_file_that_the_cache_lacks_is_named(hub, run, file):
    if file != "config.json":
        assert run("--dry-run").status == 0
    for path in Path(constants.HF_HUB_CACHE).rglob(file):
        path.unlink()
    hub.asked.clear()
    told = refused(run("--offline"))
    assert file in told
    assert "without --offline" in told
    assert not hub.asked


@pytest.mark.slow
@pytest.mark.usefixtures("online", "waits")
def test_a_hub_that_is_not_reached_is_one_sentence(run):
    told = refused(run("--dry-run"))
    assert f"the hub ({constants.ENDPOINT}) cannot be reached; --offline" in told


@pytest.mark.slow
def test_a_set_of_many_files_is_not_downloaded_whole(hub, run):
    assert run("--dry-run", model="reference", docs=f"{BOOKS}:count=3").status == 0
    read = {line.split()[1] for line in hub.requests("GET /cdn/datasets")}
    assert len(read) == 2


@pytest.mark.slow
def test_a_set_is_read_offline_only_where_it_was_downloaded(hub, run):
    assert run("--dry-run", model="reference", docs=BOOKS).status == 0
    hub.asked.clear()
    told = refused(run("--dry-run", "--offline", model="reference", docs=BOOKS))
    assert f"hf download --repo-type dataset {BOOKS}" in told
    assert not hub.asked
