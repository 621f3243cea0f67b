"""Documents that are not what they seem: line ends, web pages, null rows, decompression bombs."""

import json
import zipfile
from pathlib import Path

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from harness.data import corpus, embedded, readers
from harness.data.corpus import Corpora, make_corpora, open_all
from harness.data.documents import open_documents
from harness.data.readers import is_html
from harness.errors import UserError
from harness.inspection.notes import doc_notes, doc_warnings
from harness.plugins import load
from tests.reading import refused
from tests.tiny import tiny_tokenizer

PROSE = "A long sentence of the kind that a book has, and then another one.\n" * 20


def read(given: object) -> Corpora:
    """Return the documents of a sweep, read."""
    found = make_corpora(
        open_all(str(given), [load("task", "perplexity")]), tiny_tokenizer(), trained_length=64
    )
    found.context("perplexity").documents()
    return found


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_are_those_of_unix_and_that_is_said(end, tmp_path):
    (tmp_path / "a.txt").write_bytes(PROSE.encode())
    (tmp_path / "b.txt").write_bytes(PROSE.replace("\n", end).encode())
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": PROSE.replace("\n", end)}))
    as_written = read(tmp_path / "a.txt").entries()[0]
    for name in ("b.txt", "rows.jsonl"):
        found = read(tmp_path / name)
        (entry,) = found.entries()
        assert entry["sha256"] == as_written["sha256"]
        assert entry["line_ends"] == "normalized"
    both = read(tmp_path)
    assert both.left_out() == {"repeated": 1, ".jsonl files": 1}
    assert len(both.entries()) == len(both.context("perplexity").documents()) == 1
    assert "line_ends" not in as_written


def test_files_of_a_folder_that_are_not_read_are_counted_by_their_kind(tmp_path):
    (tmp_path / "a.txt").write_text(PROSE)
    for name in ("a.c", "b.c.gz", "c.csv", "LICENSE"):
        (tmp_path / name).write_bytes(PROSE.encode())
    found = read(tmp_path)
    assert len(found.entries()) == 1
    (note,) = doc_notes(found.left_out())
    assert note == "Left out: other files (1), .c files (2), .csv files (1)."


@pytest.mark.parametrize("longest", [1, 2, 7, 30, 139, 140, 141, 9999])
def test_the_beginning_of_a_text_is_the_same_whatever_its_line_ends(longest, tmp_path):
    """Characters are counted after line ends are those of Unix, in files and in rows."""
    text = "\n".join(["a", "", "", PROSE])
    for end in ("\n", "\r\n", "\r"):
        other = text.replace("\n", end)
        (tmp_path / "a.txt").write_bytes(other.encode())
        (tmp_path / "rows.jsonl").write_text(json.dumps({"text": other}))
        for name in ("a.txt", "rows.jsonl"):
            (passage,) = (
                read(f"{tmp_path / name}:max_chars={longest}").context("perplexity").documents()
            )
            assert tiny_tokenizer().decode(list(passage.tokens)) == text[:longest]


def test_a_web_page_is_a_warning(tmp_path):
    (tmp_path / "page.txt").write_text(f"<html><body>{'<p>A paragraph of it.</p>' * 40}</html>")
    (entry,) = read(tmp_path / "page.txt").entries()
    assert entry["markup"] == "html"
    assert "HTML" in doc_warnings([entry])[0]
    assert not is_html(f"{PROSE} A <p> begins a paragraph, and a < b.")
    assert [name for name, text in embedded.held_out() if is_html(text)] == []


def test_a_text_with_zeros_is_a_warning(tmp_path):
    """UTF-16 without its mark is UTF-8 with a zero after every letter, and is not a text."""
    (tmp_path / "a.txt").write_bytes(PROSE.encode("utf-16-le"))
    (tmp_path / "b.txt").write_text(PROSE)
    odd, plain = read(tmp_path).entries()
    assert odd["nul"] == len(PROSE)
    assert "nul" not in plain
    (warning,) = doc_warnings([odd, plain])
    assert "NUL characters" in warning
    assert "a.txt." in warning


def test_a_text_of_unknown_tokens_is_a_warning():
    known = {"name": "a.txt", "tokens": 1000, "unknown": 5}
    strange = {"name": "b.txt", "tokens": 1000, "unknown": 500}
    assert doc_warnings([known]) == []
    assert "b.txt" in doc_warnings([known, strange])[0]


def test_a_null_row_is_left_out_and_counted(tmp_path):
    texts = [PROSE, None, PROSE[9:], None]
    rows = datasets.Dataset.from_dict({"text": texts})
    rows.to_parquet(tmp_path / "a.parquet")
    rows.save_to_disk(tmp_path / "saved")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for name in ("a.parquet", "saved", "a.jsonl"):
        found = read(tmp_path / name)
        assert len(found.entries()) == 2
        assert found.left_out() == {"null": 2}
        assert doc_notes(found.left_out()) == ["Left out: rows with null instead of a text (2)."]
    (tmp_path / "b.jsonl").write_text('{"text": null}\n')
    assert "has no text" in refused(tmp_path / "b.jsonl")


def test_an_encrypted_archive_is_one_sentence(tmp_path):
    """Python says with a RuntimeError that a password is needed."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "secret")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + flags] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert "a.zip cannot be read" in refused(tmp_path / "a.zip")


def stream(path: Path, table: pyarrow.Table) -> None:
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    new = pyarrow.ipc.new_file if path.stem == "file" else pyarrow.ipc.new_stream
    with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as out:
        out.write_table(table)


@pytest.mark.slow
@pytest.mark.parametrize("dictionary", [False, True])
def test_what_unpacks_to_far_too_much_is_not_unpacked(dictionary, tmp_path, monkeypatch):
    """A small Parquet file is rejected by the size that it gives, before memory is taken for it."""
    monkeypatch.setattr(readers, "UNPACKED", 2**20)
    giant = pyarrow.array(["short"] * 99 + ["a" * 2**25])
    small = pyarrow.array([PROSE, PROSE[9:]])
    path = tmp_path / "a.parquet"
    for column in (giant, small):
        column = column.dictionary_encode() if dictionary else column
        parquet.write_table(pyarrow.table({"text": column}), path, compression="zstd")
        if len(column) == 100:
            assert "unpack to" in refused(path)
        else:
            texts = [text for _, text in open_documents(str(path)).read()]
            assert texts == [PROSE, PROSE[9:]]


@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow"])
def test_other_columns_of_an_arrow_file_are_not_unpacked(name, tmp_path):
    table = pyarrow.table({"other": ["a" * 2**24] * 4, "text": ["short"] * 4})
    stream(tmp_path / name, table)
    before = pyarrow.total_allocated_bytes()
    documents = open_documents(str(tmp_path / name)).read()
    assert next(iter(documents)) == (f"{name}[0]", "short")
    assert pyarrow.total_allocated_bytes() - before < 2**22


def test_all_documents_together_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LARGEST", 3000)
    for index in range(4):
        (tmp_path / f"{index}.txt").write_text(f"{index}{PROSE}")
    with pytest.raises(UserError, match=r"more than 3,000 characters; take the first with count="):
        read(tmp_path)
    assert len(read(f"{tmp_path}:count=2").entries()) == 2
