"""What is in the hub's cache is read by its name there, and nothing is requested."""

import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.models.weights import load_weights
from tests.adapters import opened, save
from tests.quantized import save_gguf

COMMIT = "c0ffee" * 6 + "c0de"
Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Return what copies a folder into the cache, as the client lays it out."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def copy(folder: Path, name: str, kind: str = "models") -> Path:
        place = tmp_path / "cache" / f"{kind}--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(COMMIT)
        return Path(shutil.copytree(folder, place / "snapshots" / COMMIT))

    return copy


def test_a_model_is_that_of_its_folder_and_known_by_its_commit(put, tiny):
    put(tiny, "org/tiny")
    found = open_checkpoint("org/tiny", dtype="float32", device="cpu")
    assert (found.label, found.revision, found.fingerprint) == ("tiny", COMMIT, COMMIT)
    assert open_checkpoint("org/tiny", revision=COMMIT, device="cpu").fingerprint == COMMIT
    state, wanted = (load_weights(one).state_dict() for one in (found, opened(tiny, None)))
    assert all(state[name].equal(tensor) for name, tensor in wanted.items())


@pytest.mark.slow
def test_a_gguf_file_is_named_by_its_path(put, tmp_path):
    file = save_gguf(tmp_path / "made" / "small.gguf")
    put(file.parent, "org/tiny")
    found = open_checkpoint("org/tiny/small.gguf", device="cpu")
    assert (found.label, found.quantized) == ("small-Q4_1", "Q4_1")
    assert found.fingerprint == open_checkpoint(str(file), device="cpu").fingerprint
    with pytest.raises(UserError, match=r"org/tiny has no file gone.gguf"):
        open_checkpoint("org/tiny/gone.gguf", device="cpu")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_is_that_of_its_folder(put, tiny, tmp_path):
    adapter = save(tiny, tmp_path / "lora")
    put(adapter, "org/lora")
    local = opened(tiny, adapter)
    for name in ("org/lora", f"org/lora@{COMMIT}"):
        named = opened(tiny, Path(name))
        assert (named.label, named.fingerprint) == (local.label, local.fingerprint)


def test_a_data_set_is_its_rows(put, tmp_path):
    (tmp_path / "books").mkdir()
    datasets.Dataset.from_dict({"text": ["one", "two"]}).to_parquet(tmp_path / "books/test.parquet")
    put(tmp_path / "books", "org/books", "datasets")
    found = list(open_documents("org/books:revision=main").read())
    assert found == [("books[0]", "one"), ("books[1]", "two")]


def test_what_is_not_there_is_one_sentence(put, tiny):
    put(tiny, "org/tiny").joinpath("config.json").unlink()
    for name in ("org/tiny", "org/absent"):
        with pytest.raises(UserError, match=f"{name} cannot be read: .*once without --offline"):
            open_checkpoint(name, device="cpu")
    with pytest.raises(UserError, match="hf download --repo-type dataset org/absent"):
        list(open_documents("org/absent").read())
