"""Documents by name and in Python: what is read is what was written, and mistakes are sentences."""

import bz2
import gzip
import hashlib
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import ropewalk as rw
from ropewalk.harness.data.corpus import Corpus
from ropewalk.harness.data.documents import held_out, of_python, open_documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.provenance import command
from ropewalk.harness.sweep.notes import doc_notes
from tests.tiny import tiny_tokenizer

# The library leaves a CSV file open of which not all is read.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"
)
SHORTEST = 12_000  # characters; about 3000 tokens of the reference model
TEXT = "Es war einmal …\nand it was long\n"
PROSE = "A long sentence of the kind that a book has, and then another one.\n" * 20
ROWS = [{"text": f"row {index} " + "rope " * index, "id": index} for index in range(6)]


def read(given: object) -> list[tuple[str, str | None]]:
    """Return the documents of a name."""
    return list(open_documents(str(given)).read())


def refused(given: object) -> str:
    """Return the sentence with which documents are refused."""
    with pytest.raises(UserError) as caught:
        read(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def measured(given: object) -> Corpus:
    """Return the corpus of documents, read."""
    found = Corpus(open_documents(str(given)), tiny_tokenizer(), 64)
    found.context.documents()
    return found


def taken(given: object) -> list[str]:
    return [entry["name"] for entry in measured(given).entries]


def zstd(content: bytes) -> bytes:
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "zstd") as file:
        file.write(content)
    return bytes(packed.getvalue().to_pybytes())


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd,
}  # fmt: skip
KINDS = ["a.parquet", "stream.arrow", "file.arrow"] + [
    f"a{kind}{packed}" for kind in (".jsonl", ".ndjson", ".json", ".csv") for packed in PACKED
]


def write_rows(path: Path) -> None:
    """Write ROWS in the format of a file's suffixes."""
    packed = path.suffix if path.suffix in PACKED else ""
    plain = path.with_name(path.name.removesuffix(packed))
    table = pyarrow.Table.from_pylist(ROWS)
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    if plain.suffix == ".parquet":
        parquet.write_table(table, plain, row_group_size=4)
    elif plain.suffix == ".arrow":
        new = pyarrow.ipc.new_file if "file" in plain.stem else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(plain), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    elif plain.suffix == ".csv":
        table.to_pandas().to_csv(plain, index=False)
    else:
        plain.write_text(json.dumps(ROWS) if plain.suffix == ".json" else lines)
    path.write_bytes(PACKED[packed](plain.read_bytes()))


def test_held_out_documents_are_many_and_long():
    """At least 23 documents of different names and texts are held out, each of them long."""
    texts = dict(held_out())
    assert len(texts) >= 23
    assert len(set(texts.values())) == len(texts)
    assert {name: len(text) for name, text in texts.items() if len(text) < SHORTEST} == {}
    assert dict(read("embedded")) == texts


@pytest.mark.parametrize("streamed", [False, True])
def test_a_data_set_in_memory_is_its_rows(streamed):
    rows: Any = datasets.Dataset.from_list(ROWS)
    rows = rows.to_iterable_dataset() if streamed else rows
    wanted = [(f"rows[{row['id']}]", row["text"]) for row in ROWS]
    found = of_python(rows)
    assert list(found.read()) == list(found.read()) == wanted
    assert str(found) == "rows given in Python"
    with pytest.raises(UserError, match=r"rows\[0\] has no field 'text'"):
        list(of_python(rows.remove_columns("text")).read())


def test_texts_in_memory_are_documents():
    """An iterator ends after one reading; a map-style data set, as torch has it, is one too."""

    class MapStyle:
        def __getitem__(self, index: int) -> str:
            return ["one", "two"][index]

    for texts in (["one", "two"], iter(["one", "two"]), MapStyle()):
        found = of_python(texts)
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


@pytest.mark.parametrize(("given", "words"), [
    ("./gone", "documents ./gone do not exist; give a file"),
    ("gone.jsonl:limit=1", "documents gone.jsonl:limit=1 do not exist; give a file"),
    ("http://a/b", "documents http://a/b do not exist; give a file"),
    (":limit=1", "documents :limit=1 do not exist; give a file"),
    ("a/set:splt=test", "--docs a/set has no option 'splt'; did you mean 'split'? known: config"),
    ("a/set:limit=few", "--docs a/set: limit=few should be a valid integer"),
    ("a/set:count=0", "--docs a/set: count=0 should be greater than 0"),
    ("a/set:split=a,split=b", "--docs a/set: option 'split' is given twice."),
])  # fmt: skip
def test_a_bad_name_or_option_is_refused_at_once(given, words):
    with pytest.raises(UserError, match=re.escape(words)):
        open_documents(given)


@pytest.mark.parametrize("suffix", PACKED)
def test_a_text_is_what_was_written(suffix, tmp_path):
    """Compressed or not; with the line ends of Unix and without the byte order mark."""
    path = tmp_path / f"tale.txt{suffix}"
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes(PACKED[suffix]("\ufeff".encode() + TEXT.replace("\n", end).encode()))
        assert read(path) == read(tmp_path) == [(path.name, TEXT)]
        for longest in (1, 15, 16, 17, 99):
            assert read(f"{path}:max_chars={longest}") == [(path.name, TEXT[:longest])]


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_what_was_written(name, tmp_path):
    file = tmp_path / name
    write_rows(file)
    assert read(file) == [(f"{name}[{row['id']}]", row["text"]) for row in ROWS]
    short = [(f"{name}[0]", "row"), (f"{name}[1]", "row")]
    assert read(f"{file}:field=text,limit=2,max_chars=3") == short
    assert "[0] has no field 'txt'; name the one with" in refused(f"{file}:field=txt")
    assert "[0]: field 'id' is int, not text." in refused(f"{file}:field=id")


@pytest.mark.parametrize(("name", "content", "texts"), [
    ("bare.jsonl", '"one"\n"two"\n', ["one", "two"]),
    ("list.json", '["one",\n{"text": "two"}]', ["one", "two"]),
    ("object.json", '{\n"text": "one"}', ["one"]),
    ("lines.json", '{"text": "one"}\n\n{"text": "two"}', ["one", "two"]),
    ("dates.jsonl", '{"text": "2024-01-01"}\n{"text": "2024-01-02"}', ["2024-01-01", "2024-01-02"]),
    ("null.jsonl", 'null\n"one"', [None, "one"]),
])  # fmt: skip
def test_json_is_texts_or_rows_by_line_or_in_a_list(name, content, texts, tmp_path):
    (tmp_path / name).write_text(content)
    assert [text for _, text in read(tmp_path / name)] == texts


def test_documents_are_the_rows_of_a_split(tmp_path):
    """By the names of files in a folder as the hub has it; of those with a card too."""
    for name in ("carded", "lines", "empty"):
        (tmp_path / name).mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "carded" / "test.parquet")
    (tmp_path / "carded" / "README.md").write_text("# A data set")
    for split, stories in {"train": ["first", "second"], "test": ["third"]}.items():
        lines = "".join(json.dumps({"story": story}) + "\n" for story in stories)
        (tmp_path / "lines" / f"{split}.jsonl").write_text(lines)
    for name, texts in {
        "lines:split=train,field=story": ["first", "second"],
        "lines:split=train,field=story,limit=1": ["first"],
        "lines:field=story": ["third"],
        "carded": [row["text"] for row in ROWS],
    }.items():
        label = name.partition(":")[0]
        assert read(tmp_path / name) == [(f"{label}[{i}]", text) for i, text in enumerate(texts)]
    for name, words in {
        "carded:field=txt": "did you mean 'text'? known: id, text",
        "lines:split=dev": "Bad split: dev. Available splits: ['train', 'test']",
        "carded:revision=main": "has no revision; leave revision=main out.",
        "empty": "empty has no text (in a folder: .html, .md, .py, .rst, .tex, .txt).",
    }.items():
        assert words in refused(tmp_path / name)
    (tmp_path / "line.jsonl").write_text('{"text": "a"}\n{"text": \n')
    assert "line.jsonl: line 2 is not JSON" in refused(tmp_path / "line.jsonl")


def test_a_folder_is_its_text_files(tmp_path):
    """In order, without what is hidden; a file whose name has a colon is one too."""
    files = {"b/two.md": b"second", "a.txt.gz": gzip.compress(b"first"), "c:d.txt": b"third"}
    hidden = ("cover.png", "._one.txt", ".git/note.txt", "__MACOSX/two.txt", ".rows.jsonl")
    for file, content in {**files, **dict.fromkeys(hidden, b"\x00\xff")}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    assert read(tmp_path) == [("a.txt.gz", "first"), ("b/two.md", "second"), ("c:d.txt", "third")]
    assert read(tmp_path / "c:d.txt") == [("c:d.txt", "third")]


def test_a_glob_names_files_below_what_they_share(tmp_path):
    for name in ("a/x.txt", "b/x.txt", "b/c/y.txt", "b/z.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    names = ["a/x.txt", "b/c/y.txt", "b/x.txt"]
    assert [name for name, _ in read(tmp_path / "**" / "*.txt")] == names
    assert read(f"{tmp_path}/b/*.txt") == [("x.txt", "b/x.txt")]
    assert "do not exist; give a file" in refused(f"{tmp_path}/*.html")
    assert refused(f"{tmp_path}/b/*.txt:field=text").endswith("leave field=text out.")


def test_equal_texts_have_one_hash_and_are_measured_once(tmp_path):
    """Whatever their line ends; what is left out is counted by its kind."""
    (tmp_path / "a.txt").write_bytes(PROSE.encode())
    (tmp_path / "b.txt").write_bytes(PROSE.replace("\n", "\r\n").encode())
    for name in ("a.c", "b.c.gz", "LICENSE"):
        (tmp_path / name).write_bytes(b"int main;")
    found = measured(tmp_path)
    (entry,) = found.entries
    assert entry == measured(tmp_path / "b.txt").entries[0] | {"name": "a.txt"}
    assert entry["sha256"] == hashlib.sha256(PROSE.encode()).hexdigest()[:16]
    (note,) = doc_notes(found.left_out)
    assert note == (
        "Left out: documents with the same text as another one (1), other files (1), .c files (2)."
    )


def test_a_null_row_is_left_out_and_counted(tmp_path):
    texts = [PROSE, None, PROSE[9:], None]
    datasets.Dataset.from_dict({"text": texts}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for name in ("a.parquet", "a.jsonl"):
        found = measured(tmp_path / name)
        assert (len(found.entries), found.left_out) == (2, {"null": 2})


def test_no_more_is_read_than_is_taken(tmp_path):
    """A broken file, as the last shard, is never met by those who ask for less; else it is told."""
    rows = [{"text": f"book {index} " + "word " * (10 * index), "id": index} for index in range(12)]
    for shard in range(3):
        path = tmp_path / "books" / "data" / f"train-{shard:05}-of-00003.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows[4 * shard : 4 * shard + 4]), path)
    path.write_bytes(path.read_bytes()[:-20])
    books = tmp_path / "books"
    found = measured(f"{books}:split=train,min_tokens=100,count=3").entries
    assert [entry["name"] for entry in found] == ["books[2]", "books[3]", "books[4]"]
    assert min(entry["tokens"] for entry in found) >= 100
    assert taken(f"{books}:split=train,count=8")[-1] == "books[7]"
    with pytest.raises(UserError, match=r"data set .*books \(split train\) cannot be read: "):
        taken(f"{books}:split=train,count=9")
    (tmp_path / "a.txt").write_text("a" * 50)
    with pytest.raises(UserError, match="holds 0 documents of 60 tokens or more, not 1; give more"):
        taken(f"{tmp_path}/a.txt:min_tokens=60,count=1")


@pytest.mark.slow
def test_a_seed_draws_the_same_documents_again(tmp_path):
    texts = {f"{index:03}.txt": f"text {index}" for index in range(150)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "streamed").mkdir()
    lines = [json.dumps({"text": text}) for text in texts.values()]
    (tmp_path / "streamed" / "train.jsonl").write_text("\n".join(lines))
    sets = ("*.txt:", "streamed:split=train,", "streamed/train.jsonl:")
    for source in (f"{tmp_path}/{name}" for name in sets):
        draws = [taken(f"{source}count=5,seed={seed}") for seed in (1, 1, 2)]
        assert draws[0] == draws[1] != draws[2]
        assert len(set(draws[0])) == 5
        assert sorted(text or "" for _, text in read(f"{source}seed=1")) == sorted(texts.values())


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*KINDS, *(f"a.txt{packed}" for packed in PACKED)]),
    st.sampled_from(KINDS),
    st.integers(0, 600),
    st.none() | st.binary(max_size=30),
)
def test_any_file_is_documents_or_one_sentence(tmp_path, name, kind, at, new):
    """A file of one kind that is called another, ends anywhere, or has other bytes somewhere."""
    write_rows(tmp_path / kind)
    whole = (tmp_path / kind).read_bytes()
    path = tmp_path / "damaged" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(whole[:at] + (new + whole[at + len(new) :] if new else b""))
    try:
        found = measured(path)
    except UserError as error:
        (sentence,) = error.sentences
        assert path.name in sentence
        assert "\n" not in sentence
    else:
        assert all(entry["name"].startswith(path.name) for entry in found.entries)
