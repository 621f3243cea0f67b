"""A data set by hub name, read from files laid out as the hub's own client keeps them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from tests.reading import read, refused

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_set() -> Iterator[tuple[str, Path]]:
    """Put a data set of two files into the hub's cache, as ``hf download`` leaves it."""
    repository = Path(constants.HF_HUB_CACHE) / "datasets--ropewalk-tests--books"
    data = repository / "snapshots" / COMMIT / "data"
    data.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for part in range(2):
        rows = datasets.Dataset.from_dict({"text": [f"book {part}{row}" for row in range(3)]})
        rows.to_parquet(data / f"test-{part:05}-of-00002.parquet")
    yield "ropewalk-tests/books", data
    shutil.rmtree(repository)


def test_a_downloaded_set_is_read_without_the_hub(hub_set):
    """What ``hf download`` fetched will do, whole or streamed; half of its files will not."""
    name, data = hub_set
    texts = [f"book {part}{row}" for part in range(2) for row in range(3)]
    assert [text for _, text in read(f"{name}:split=test")] == texts
    assert read(f"{name}:split=test,revision={COMMIT},limit=2") == [
        ("books[0]", "book 00"),
        ("books[1]", "book 01"),
    ]
    (data / "test-00001-of-00002.parquet").unlink()
    assert "has only some of its files, and no data/test-00001" in refused(f"{name}:split=test")
    assert "hf download --repo-type dataset some/absent" in refused("some/absent:split=test")
