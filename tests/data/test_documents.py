"""Documents by name: embedded, files, folders and data sets, and every mistake in words."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest

import ropewalk as rw
from ropewalk.harness.data import readers
from ropewalk.harness.data.documents import of_python, open_documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.provenance import command
from tests.reading import read, refused

SHORTEST = 12_000  # characters; about 3000 tokens of the reference model
ROWS = {"text": ["one", "two", "three"], "number": [1, 2, 3]}


@pytest.fixture(scope="module")
def held_out() -> dict[str, str]:
    return dict(readers.held_out())


def test_held_out_documents_are_many_and_long(held_out):
    """At least 24 documents of different names and texts are held out, each of them long."""
    assert len(held_out) >= 23
    assert len(set(held_out.values())) == len(held_out)
    assert {name: len(text) for name, text in held_out.items() if len(text) < SHORTEST} == {}
    assert dict(read("embedded")) == held_out


@pytest.mark.parametrize("streamed", [False, True])
def test_a_data_set_in_memory_is_its_rows(streamed):
    rows: Any = datasets.Dataset.from_dict(ROWS)
    rows = rows.to_iterable_dataset() if streamed else rows
    wanted = [(f"rows[{i}]", text) for i, text in enumerate(ROWS["text"])]
    found = of_python(rows)
    assert list(found.read()) == list(found.read()) == wanted
    assert str(found) == "rows given in Python"
    with pytest.raises(UserError, match=r"rows\[0\] has no field 'text'"):
        list(of_python(rows.remove_columns("text")).read())
    if not streamed:
        assert [text for _, text in of_python(rows["text"]).read()] == ROWS["text"]


def test_texts_in_memory_are_documents():
    """An iterator ends after one reading; a map-style data set, as torch has it, is one too."""

    class MapStyle:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> str:
            return ["one", "two"][index]

    for given in (["one", "two"], iter(["one", "two"]), MapStyle()):
        found = of_python(given)
        assert list(found.read()) == list(found.read()) == [("text[0]", "one"), ("text[1]", "two")]
    for wrong in (7, [7], b"text", []):
        with pytest.raises(UserError, match="give a name, texts, or a data set of rows"):
            of_python(wrong)


@pytest.mark.slow
def test_texts_are_measured_as_their_files_are(tiny, docs, tmp_path):
    settings = {"model": str(tiny), "scaling": "none", "length": "2x"}
    tasks = ["perplexity:tail=16", "perplexity:tail=8"]
    texts = [path.read_text() for path in sorted(docs.iterdir())]
    one = rw.run(docs=iter(texts), task=tasks[0], out=tmp_path / "one", **settings)
    each = dict(zip(tasks, (texts, texts[:1]), strict=True))
    two = rw.run(docs=each, task=tasks, out=tmp_path / "two", **settings)
    named = rw.run(docs=docs, task=tasks[0], out=tmp_path / "named", **settings)
    assert one.frame()["value"].tolist() == named.frame()["value"].tolist()
    assert two.frame().groupby("task")["n"].max().to_dict() == {tasks[0]: 3, tasks[1]: 1}
    record = json.loads((tmp_path / "one" / "run.json").read_text())
    assert record["documents"]["given"] == record["asked"]["docs"] == "text given in Python"
    assert command(record) == ""


@pytest.mark.parametrize("given", ["./gone", "gone.txt", "gone.jsonl:limit=1", "http://a/b"])
def test_a_path_that_does_not_exist_is_refused_at_once(given):
    with pytest.raises(UserError, match=f"documents {given} do not exist; give a file"):
        open_documents(given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("splt=test", "--docs some/set has no option 'splt'; did you mean 'split'? known: config"),
        ("limit=few", "--docs some/set: limit=few should be a whole number from 1."),
        ("split=a,split=b", "--docs some/set: option 'split' is given twice."),
    ],
)
def test_a_bad_option_is_refused_at_once(options, words):
    with pytest.raises(UserError, match=re.escape(words)):
        open_documents(f"some/set:{options}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of data sets: carded, lines and empty."""
    folder = tmp_path_factory.mktemp("sets")
    for name in ("carded", "lines", "empty"):
        (folder / name).mkdir()
    datasets.Dataset.from_dict(ROWS).to_parquet(folder / "carded" / "test.parquet")
    (folder / "carded" / "README.md").write_text("# A data set")
    for split, stories in {"train": ["first", "second"], "test": ["third"]}.items():
        lines = "".join(json.dumps({"story": story}) + "\n" for story in stories)
        (folder / "lines" / f"{split}.jsonl").write_text(lines)
    return folder


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("lines:split=train,field=story", ["first", "second"]),
        ("lines:split=train,field=story,limit=1", ["first"]),
        ("lines:field=story", ["third"]),
        ("carded", ["one", "two", "three"]),
    ],
)
def test_documents_are_the_rows_of_a_split(folder, given, texts):
    name = given.partition(":")[0]
    assert read(folder / given) == [(f"{name}[{i}]", text) for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("carded:field=txt", "did you mean 'text'? known: number, text"),
        ("carded:field=number", "carded[0]: field 'number' is int, not text."),
        ("lines:split=dev", "Bad split: dev. Available splits: ['train', 'test']"),
        ("carded:revision=main", "has no revision; leave revision=main out."),
        ("empty", "empty has no text (in a folder: .html, .md, .py, .rst, .tex, .txt)."),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(folder, given, words):
    assert words in refused(folder / given)
