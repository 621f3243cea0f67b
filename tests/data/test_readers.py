"""Real inputs: formats, compressions, choice by length and seed, the cache, and what is broken."""

import bz2
import gzip
import json
import lzma
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import datasets
import pyarrow
import pytest
from huggingface_hub import constants
from pyarrow import parquet

from harness.data import readers
from harness.data import tokenize as tokenizing
from harness.data.corpus import make_corpora, open_all
from harness.data.tokenize import make_reader, tokenize
from harness.errors import UserError
from harness.plugins import load
from tests.reading import read, refused
from tests.tiny import tiny_tokenizer

TEXT = "Es war einmal …\nand it was long\r\n"
ROWS = [{"text": f"row {index} " + "rope " * index, "id": index} for index in range(6)]


def zstd(path: Path, content: bytes) -> None:
    with pyarrow.output_stream(str(path), compression="zstd") as file:
        file.write(content)


WRITERS: dict[str, Callable[[Path, bytes], object]] = {
    "": lambda path, content: path.write_bytes(content),
    ".gz": lambda path, content: path.write_bytes(gzip.compress(content)),
    ".bz2": lambda path, content: path.write_bytes(bz2.compress(content)),
    ".xz": lambda path, content: path.write_bytes(lzma.compress(content)),
    ".zst": zstd,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_compressed_text_is_the_text(suffix, tmp_path):
    path = tmp_path / f"tale.txt{suffix}"
    WRITERS[suffix](path, TEXT.encode())
    assert read(path) == read(tmp_path) == [(path.name, TEXT)]
    assert read(f"{path}:max_chars=15") == [(path.name, TEXT[:15])]


@pytest.mark.parametrize("suffix", WRITERS)
def test_lines_of_json_are_rows(suffix, tmp_path):
    path = tmp_path / f"rows.jsonl{suffix}"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS[:2]]
    WRITERS[suffix](path, f"{lines[0]}\n\n{lines[1]}".encode())
    assert read(path) == [
        (f"{path.name}[0]", ROWS[0]["text"]),
        (f"{path.name}[2]", ROWS[1]["text"]),
    ]


def write_rows(path: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    if path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=4)
    else:
        new = pyarrow.ipc.new_file if "file" in path.stem else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "stream.arrow", "file.arrow"])
def test_a_file_of_rows_is_read_row_by_row(name, tmp_path):
    write_rows(tmp_path / name)
    assert read(tmp_path / name) == [(f"{name}[{row['id']}]", row["text"]) for row in ROWS]
    assert refused(f"{tmp_path / name}:field=id") == f"{name}[0]: field 'id' is int, not text."
    assert refused(f"{tmp_path / name}:field=txt") == (
        f"{name}[0] has no field 'txt'; name the one with the text by :field=NAME "
        "(did you mean 'text'? known: id, text)."
    )


@pytest.mark.parametrize("suffix", [suffix for suffix in WRITERS if suffix])
def test_files_of_rows_and_archives_may_be_compressed(suffix, tmp_path):
    for name in ("a.parquet", "stream.arrow"):
        write_rows(tmp_path / name)
        WRITERS[suffix](tmp_path / (name + suffix), (tmp_path / name).read_bytes())
        rows = [(f"{name}{suffix}[{row['id']}]", row["text"]) for row in ROWS]
        assert read(tmp_path / (name + suffix)) == rows
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("one.txt", "first")
    WRITERS[suffix](tmp_path / f"b.zip{suffix}", (tmp_path / "b.zip").read_bytes())
    assert read(tmp_path / f"b.zip{suffix}") == [(f"b.zip{suffix}/one.txt", "first")]


def test_a_compressed_file_that_unpacks_to_far_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "UNPACKED", 2**20)
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(bytes(2**23)))
    assert refused(tmp_path / "a.parquet.gz").endswith("unpacks to more than 100 times its size.")


@pytest.mark.parametrize("name", ["a:b.txt", "12:30.jsonl", "a:limit=1.txt", "x:*.txt"])
def test_a_name_with_colons_takes_options(name, tmp_path):
    file = tmp_path / name.replace("*", "y")
    file.write_text('{"text": "long"}\n{"text": "b"}' if ".jsonl" in name else "long")
    texts = ["long", "b"] if ".jsonl" in name else ["long"]
    assert [text for _, text in read(tmp_path / name)] == texts
    assert [text for _, text in read(f"{tmp_path / name}:limit=1,max_chars=2")] == ["lo"]


def test_an_archive_is_its_text_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "books.zip", "w") as archive:
        archive.writestr("b/two.md", "second")
        archive.writestr("../one.txt", "first")
        archive.writestr("cover.png", b"\x89PNG")
    wanted = [("books.zip/../one.txt", "first"), ("books.zip/b/two.md", "second")]
    assert read(tmp_path / "books.zip") == read(tmp_path) == wanted
    assert [path.name for path in tmp_path.iterdir()] == ["books.zip"]


def test_what_is_hidden_is_no_document(tmp_path):
    """What macOS and editors put beside texts is not read, in folders and archives; ZIP is zip."""
    hidden = ("._one.txt", ".git/note.txt", ".ipynb_checkpoints/one-checkpoint.txt", ".rows.jsonl")
    for name in (*hidden, "one.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"first" if name == "one.txt" else b"\x00\x05\x16\xff")
    with zipfile.ZipFile(tmp_path / "books.ZIP", "w") as archive:
        archive.writestr("two.txt", "second")
        for name in ("__MACOSX/._two.txt", *hidden):
            archive.writestr(name, b"\x00\x05\x16\xff")
    assert read(tmp_path) == [("books.ZIP/two.txt", "second"), ("one.txt", "first")]


def test_a_glob_names_files_below_what_they_share(tmp_path):
    """Files come in order and are named so that they differ; one that matches nothing is told."""
    for name in ("a/x.txt", "b/x.txt", "b/c/y.txt", "b/z.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [name for name, _ in read(tmp_path / "**" / "*.txt")] == [
        "a/x.txt",
        "b/c/y.txt",
        "b/x.txt",
    ]
    assert read(f"{tmp_path}/b/*.txt") == [("x.txt", "b/x.txt")]
    assert refused(f"{tmp_path}/*.html") == f"no file matches {tmp_path}/*.html."
    assert refused(f"{tmp_path}/b/*.txt:split=test") == (
        f"--docs {tmp_path}/b/*.txt: split is for data sets; these are files."
    )
    for given in (f"{tmp_path}/b/*.txt", tmp_path / "a" / "x.txt"):
        told = f"--docs {given}: field is for files of rows; these are texts."
        assert refused(f"{given}:field=text") == told


def corpora(given: str) -> Any:
    opened = open_all(given, [load("task", "perplexity")])
    return make_corpora(opened, tiny_tokenizer(), 64)


def taken(given: object) -> list[str]:
    read = corpora(str(given))
    read.context("perplexity").documents()
    return [entry["name"] for entry in read.entries()]


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


def test_documents_are_taken_by_length_and_count(hub_like):
    read = corpora(f"{hub_like}:split=train,min_tokens=100,count=3")
    passages = read.context("perplexity").documents()
    assert [p.name for p in passages] == ["books[2]", "books[3]", "books[4]"]
    assert [len(p.tokens) for p in passages] == [entry["tokens"] for entry in read.entries()]
    assert min(len(p.tokens) for p in passages) >= 100


def test_no_more_of_a_set_is_read_than_is_taken(hub_like):
    """Streamed, the broken last shard is never met by those who ask for less; else it is told."""
    assert taken(f"{hub_like}:split=train,count=8")[-1] == "books[7]"
    with pytest.raises(UserError, match=r"data set .*books \(split train\) cannot be read: "):
        taken(f"{hub_like}:split=train,count=9")


@pytest.mark.slow
def test_a_seed_draws_the_same_documents_again(tmp_path, monkeypatch):
    # The library waits so many seconds after every drawn stream.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    texts = {f"{index:02}.txt": f"text {index}" for index in range(20)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    rows = datasets.Dataset.from_dict({"text": list(texts.values())})
    rows.save_to_disk(tmp_path / "saved")
    rows.to_parquet(tmp_path / "streamed" / "train.parquet")
    lines = [json.dumps({"text": text}) for text in texts.values()]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    sets = ("*.txt:", "saved:", "streamed:split=train,", "rows.jsonl:", "streamed/train.parquet:")
    for given in (f"{tmp_path}/{name}" for name in sets):
        draws = [taken(f"{given}count=5,seed={seed}") for seed in (1, 1, 2)]
        assert draws[0] == draws[1] != draws[2]
        assert len(set(draws[0])) == 5
        assert draws[0] != taken(f"{given}count=5")


def test_a_drawn_saved_row_keeps_its_number(tmp_path):
    rows = datasets.Dataset.from_dict({"text": [f"text {index}" for index in range(9)]})
    rows.save_to_disk(tmp_path / "saved")
    drawn = read(f"{tmp_path}/saved:seed=4")
    assert sorted(drawn) == [(f"saved[{index}]", f"text {index}") for index in range(9)] != drawn


def test_rows_are_drawn_from_beyond_the_buffer(tmp_path):
    lines = [json.dumps({"text": f"text {index}"}) for index in range(250)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    drawn = [name for name, _ in read(f"{tmp_path}/rows.jsonl:seed=1")]
    assert sorted(drawn) == sorted(f"rows.jsonl[{index}]" for index in range(250))
    early = {int(name.partition("[")[2].rstrip("]")) for name in drawn[:100]}
    assert max(early) > 100
    assert early != set(range(100))


def test_too_few_documents_are_not_passed_over(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 50)
    (tmp_path / "b.txt").write_text("b" * 30)
    with pytest.raises(UserError) as caught:
        taken(f"{tmp_path}:min_tokens=40,count=2")
    assert str(caught.value) == (
        f"--docs {tmp_path}:min_tokens=40,count=2 holds 1 documents of 40 tokens or more, not 2; "
        "give more, or ask for fewer or shorter ones."
    )


BROKEN: dict[str, tuple[bytes, str]] = {
    "utf16.txt": (
        "rope".encode("utf-16"),
        " is not UTF-8 text (byte 0) (UTF-16, by its first bytes)",
    ),
    "half.txt": ("façade …".encode()[:-1], " is not UTF-8 text (byte 8); convert it first."),
    "empty.txt": (b"", " has no text."),
    "blank.jsonl": (b"\n\n", " has no text."),
    "torn.txt.gz": (gzip.compress(b"rope" * 999)[:-9], " cannot be read: Compressed file ended"),
    "none.txt.gz": (b"rope", " cannot be read: Not a gzipped file"),
    "none.txt.xz": (b"rope", " cannot be read: Input format not supported"),
    "none.txt.bz2": (b"rope", " cannot be read: Invalid data stream"),
    "none.txt.zst": (b"rope", " cannot be read: "),
    "none.zip": (b"rope", " cannot be read: File is not a zip file."),
    "none.parquet": (b"rope" * 9, " cannot be read: Parquet magic bytes not found"),
    "a.parquet.gz": (b"rope", " cannot be read: Not a gzipped file"),
    "b.parquet.gz": (gzip.compress(bytes(9)), " cannot be read: Parquet magic bytes not found"),
    "a.tar.gz": (b"rope", " is an archive; unpack it and give the folder, or make it a .zip."),
    "a.tgz": (b"rope", " is an archive; unpack it and give the folder, or make it a .zip."),
    "none.arrow": (b"rope" * 9, " cannot be read: "),
    "line.jsonl": (b'{"text": "a"}\n{"text": \n', ", line 2 is not JSON: "),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xe9"}\n', ", line 2 is not JSON: 'utf-8' codec"),
    "list.jsonl": (b"[1]\n", "[0] is not a record with fields, but list."),
    "deep.json": (b"[" * 99_999, " is not JSON: "),
    "number.jsonl": (b'{"text": 7}\n', "[0]: field 'text' is int, not text."),
    "surrogate.jsonl": (b'{"text": "a\\ud800"}\n', "[0] has a lone surrogate"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_one_sentence(name, tmp_path):
    content, told = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    message = refused(tmp_path / name)
    assert name + told in message
    assert "\n" not in message


def giants(folder: Path, size: int) -> list[str]:
    """Write documents of one line and that size, most of it holes that cost no disk."""
    for name, head in (("a.txt", b""), ("a.jsonl", b'{"text": "'), ("a.json", b'{"text": "')):
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(size)
    with gzip.open(folder / "b.txt.gz", "wb", compresslevel=1) as packed:
        for _ in range(size // 2**20):
            packed.write(bytes(2**20))
    giant = pyarrow.array(["a" * size, "b"], type=pyarrow.large_string())
    rows = pyarrow.table({"text": giant, "title": ["one", "two"]})
    parquet.write_table(rows, folder / "c.parquet", row_group_size=1)
    with pyarrow.ipc.new_stream(folder / "d.arrow", rows.schema) as stream:
        stream.write_table(rows)
    datasets.Dataset(rows).save_to_disk(folder / "saved")
    return ["a.txt", "a.jsonl", "a.json", "b.txt.gz", "c.parquet", "d.arrow", "saved"]


@pytest.mark.slow
def test_a_giant_of_one_line_is_refused_in_bounded_memory(tmp_path, monkeypatch):
    """However large the file, no more of it is held than the largest document there may be."""
    monkeypatch.setattr(readers, "LARGEST", 2 * 2**20)
    monkeypatch.setattr(readers, "GIANT", 4 * 2**20)
    for name in giants(tmp_path, 32 * 2**20):
        in_table = name[0] in "cds"
        tracemalloc.start()
        message = refused(tmp_path / name)
        titles = read(f"{tmp_path / name}:field=title") if in_table else []
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert ("[0] is longer than 4 MiB" if in_table else "is longer than") in message
        assert [text for _, text in titles] == ["one", "two"] * in_table
        assert peak < 20 * 2**20
    assert read(f"{tmp_path}/a.txt:max_chars=9") == [("a.txt", "\0" * 9)]


class TestCache:
    """Tokens of long texts are read from disk, and never wrongly."""

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
        monkeypatch.setattr(tokenizing, "LEAST", 100)
        self.cache = tmp_path

    @pytest.fixture
    def text(self) -> str:
        return "".join(Random(1).choices("abc …", k=500))

    @pytest.fixture
    def unread(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:

        def arm() -> None:
            monkeypatch.setattr(tokenizing, "tokenize", lambda *_: pytest.fail("tokenized again"))

        return arm

    def test_a_text_is_tokenized_once(self, text, unread):
        first = make_reader(tiny_tokenizer())(text)
        assert first == tokenize(tiny_tokenizer(), text)
        unread()
        assert make_reader(tiny_tokenizer())(text) == first

    def test_texts_and_tokenizers_are_kept_apart(self, text, tmp_path):
        other = tiny_tokenizer()
        other.add_tokens(["abc"])
        readers = [make_reader(tiny_tokenizer()), make_reader(other)]
        found = [reader(given) for reader in readers for given in (text, text + "abc", "short")]
        assert found[0] != found[3]
        assert len(list(tmp_path.rglob("*.tokens"))) == 4

    @pytest.mark.slow
    def test_a_damaged_file_is_written_anew(self, text, tmp_path):
        right = make_reader(tiny_tokenizer())(text)
        (file,) = tmp_path.rglob("*.tokens")
        whole = file.read_bytes()
        draw = Random(2)
        for _ in range(40):
            place = draw.randrange(len(whole))
            flipped = whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]
            for damaged in (whole[:place], flipped):
                file.write_bytes(damaged)
                assert make_reader(tiny_tokenizer())(text) == right
        assert [path.suffix for path in file.parent.iterdir()] == [".tokens"]

    def test_no_cache_costs_only_time(self, text, tmp_path, monkeypatch):
        (tmp_path / "taken").touch()
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "taken"))
        assert make_reader(tiny_tokenizer())(text) == tokenize(tiny_tokenizer(), text)
