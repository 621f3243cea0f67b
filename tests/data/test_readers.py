"""What is read of files is what was written: formats, compressions, choices, and what is broken."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ropewalk.harness.data.corpus import Corpus
from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.notes import doc_notes
from tests.reading import read, refused
from tests.tiny import tiny_tokenizer

# The library leaves a CSV file open of which not all is read.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"
)
TEXT = "Es war einmal …\nand it was long\n"
PROSE = "A long sentence of the kind that a book has, and then another one.\n" * 20
ROWS = [{"text": f"row {index} " + "rope " * index, "id": index} for index in range(6)]


def zstd(content: bytes) -> bytes:
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "zstd") as file:
        file.write(content)
    return bytes(packed.getvalue().to_pybytes())


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def write_rows(path: Path) -> None:
    """Write ROWS in the format of a file's suffix."""
    table = pyarrow.Table.from_pylist(ROWS)
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=4)
    elif path.suffix == ".arrow":
        new = pyarrow.ipc.new_file if "file" in path.stem else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    elif path.suffix == ".csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        path.write_text(json.dumps(ROWS) if path.suffix == ".json" else lines)


def measured(given: object) -> Corpus:
    """Return the corpus of documents, read."""
    found = Corpus(open_documents(str(given)), tiny_tokenizer(), 64)
    found.context.documents()
    return found


def taken(given: object) -> list[str]:
    return [entry["name"] for entry in measured(given).entries]


@pytest.mark.parametrize("suffix", PACKED)
def test_a_text_is_what_was_written(suffix, tmp_path):
    """Compressed or not; with the line ends of Unix and without the byte order mark."""
    path = tmp_path / f"tale.txt{suffix}"
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes(PACKED[suffix]("\ufeff".encode() + TEXT.replace("\n", end).encode()))
        assert read(path) == read(tmp_path) == [(path.name, TEXT)]
        for longest in (1, 15, 16, 17, 99):
            assert read(f"{path}:max_chars={longest}") == [(path.name, TEXT[:longest])]


@pytest.mark.parametrize(
    "name",
    ["a.parquet", "stream.arrow", "file.arrow"]
    + [f"a{kind}{suffix}" for kind in (".jsonl", ".ndjson", ".json", ".csv") for suffix in PACKED],
)
def test_rows_are_what_was_written(name, tmp_path):
    plain = tmp_path / name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".xz")
    plain = plain.with_name(plain.name.removesuffix(".zst"))
    write_rows(plain)
    (tmp_path / name).write_bytes(PACKED[name.removeprefix(plain.name)](plain.read_bytes()))
    rows = [(f"{name}[{row['id']}]", row["text"]) for row in ROWS]
    assert read(tmp_path / name) == rows
    assert read(f"{tmp_path / name}:field=text,limit=2,max_chars=3") == [
        (label, "row") for label, _ in rows[:2]
    ]
    assert "[0] has no field 'txt'; name the one with" in refused(f"{tmp_path / name}:field=txt")
    assert "[0]: field 'id' is int, not text." in refused(f"{tmp_path / name}:field=id")


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
    for name in (f"{tmp_path}/b/*.txt", tmp_path / "a" / "x.txt"):
        assert refused(f"{name}:field=text").endswith("has no field; leave field=text out.")


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
    rows = datasets.Dataset.from_dict({"text": texts})
    rows.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for name in ("a.parquet", "a.jsonl"):
        found = measured(tmp_path / name)
        assert (len(found.entries), found.left_out) == (2, {"null": 2})


@pytest.fixture(scope="module")
def hub_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as a data set repository has it: Parquet shards, the last of them broken."""
    folder = tmp_path_factory.mktemp("repository") / "books"
    rows = [{"text": f"book {index} " + "word " * (10 * index), "id": index} for index in range(12)]
    for shard in range(3):
        path = folder / "data" / f"train-{shard:05}-of-00003.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows[4 * shard : 4 * shard + 4]), path)
    path.write_bytes(path.read_bytes()[:-20])
    return folder


def test_no_more_is_read_than_is_taken(hub_like, tmp_path):
    """What is broken is never met by those who ask for less; else it is told."""
    found = measured(f"{hub_like}:split=train,min_tokens=100,count=3").entries
    assert [entry["name"] for entry in found] == ["books[2]", "books[3]", "books[4]"]
    assert min(entry["tokens"] for entry in found) >= 100
    assert taken(f"{hub_like}:split=train,count=8")[-1] == "books[7]"
    with pytest.raises(UserError, match=r"data set .*books \(split train\) cannot be read: "):
        taken(f"{hub_like}:split=train,count=9")
    (tmp_path / "a.txt").write_text("a" * 50)
    (tmp_path / "b.txt").write_bytes(b"\xff")
    assert taken(f"{tmp_path}:count=1") == ["a.txt"]
    assert "b.txt cannot be read: 'utf-8' codec can't decode" in refused(tmp_path)
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
        assert sorted(text for _, text in read(f"{source}seed=1")) == sorted(texts.values())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("half.txt", "façade …".encode()[:-1], " cannot be read: 'utf-8' codec can't decode"),
        ("empty.txt", b"", " has no text (in a folder: "),
        (
            "torn.txt.gz",
            gzip.compress(b"rope" * 999, mtime=0)[:-9],
            " cannot be read: Compressed file",
        ),
        ("books.zip", b"PK\xff", " cannot be read: 'utf-8' codec can't decode"),
        ("line.jsonl", b'{"text": "a"}\n{"text": \n', ": line 2 is not JSON"),
    ],
)
def test_what_is_broken_is_one_sentence(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    sentence = refused(tmp_path / name)
    assert name + message in sentence
    assert "\n" not in sentence


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "id", ""]) | st.text(max_size=3), inner)
    ),
    max_leaves=8,
)
WHOLE = [gzip.compress(TEXT.encode()), zstd(b'{"text": "a"}'), TEXT.encode()]
KINDS = [".txt", ".jsonl", ".json", ".csv", ".parquet", ".arrow"]


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.binary(max_size=60)
    | st.lists(JSON, max_size=3).map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
    | st.tuples(st.sampled_from(WHOLE), st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]]),
    st.sampled_from(KINDS),
    st.sampled_from([*PACKED]),
)
def test_any_file_is_documents_or_one_sentence(tmp_path, content, kind, packed):
    path = tmp_path / f"a{kind}{packed}"
    for written in (content, PACKED[packed](content)):
        path.write_bytes(written)
        try:
            found = measured(path)
        except UserError as error:
            (sentence,) = error.sentences
            assert path.name in sentence
            assert "\n" not in sentence
        else:
            assert all(entry["name"].startswith(path.name) for entry in found.entries)
