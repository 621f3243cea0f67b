"""The corpus of the study: its list, and the script that fetches the listed documents."""

import csv
import gzip
import re
from collections import Counter
from hashlib import sha256

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.store import read_run
from scripts import fetch_corpus

PINNED = re.compile(
    r"results/smollm2/books/en-[a-z-]+\.txt\.gz"
    r"|https://raw\.githubusercontent\.com/[\w.-]+/[\w.-]+/([0-9a-f]{40}|v3\.11\.7)/[\w./-]+"
    r"|https://deb\.debian\.org/[\w./-]+_4\.6\.2\.0_all\.deb#usr/share/doc/[\w./-]+"
)


def test_the_list_is_that_of_the_study():
    """Different documents at fixed URLs; the runs read those of the list."""
    with fetch_corpus.LIST.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["kind"] for row in rows) == {"book": 20, "documentation": 20, "code": 20}
    for column in ("file", "title", "url", "sha256"):
        assert len({row[column] for row in rows}) == 60
    assert all(PINNED.fullmatch(row["url"]) and row["licence"] for row in rows)
    texts = {row["file"]: (row["sha256"][:16], int(row["tokens"])) for row in rows}
    for document in read_run(fetch_corpus.LIST.parent / "perplexity.parquet/served")["documents"][
        "read"
    ]:
        assert texts[document["name"]] == (document["sha256"], document["tokens"])


def test_a_document_is_written_once_and_with_unix_line_ends(tmp_path, monkeypatch):
    source = tmp_path / "source.txt"
    source.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    digest = sha256(b"one\ntwo\n").hexdigest()
    (tmp_path / "list.csv").write_text(f"file,url,sha256\none.txt.gz,{source.as_uri()},{digest}\n")
    monkeypatch.setattr(fetch_corpus, "LIST", tmp_path / "list.csv")
    fetch_corpus.main(out=tmp_path / "corpus")
    written = tmp_path / "corpus/one.txt.gz"
    assert gzip.decompress(written.read_bytes()) == b"one\ntwo\n"
    source.write_text("changed")
    fetch_corpus.main(out=tmp_path / "corpus")  # reads nothing again
    fetch_corpus.download.cache_clear()
    written.unlink()
    with pytest.raises(UserError, match=r"has the SHA-256 \w+, but list\.csv lists"):
        fetch_corpus.main(out=tmp_path / "corpus")
    assert not list((tmp_path / "corpus").iterdir())


def test_a_whole_book_is_cut_to_paragraphs_after_a_tenth(tmp_path):
    """The licence, the first tenth and what follows 200,000 characters are left out."""
    paragraphs = [f"{number:04}\n{'word ' * 18}".strip() for number in range(5000)]
    book = "\n\n".join(paragraphs)
    source = tmp_path / "book.txt"
    mark = "*** {} OF THIS PROJECT GUTENBERG EBOOK ***"
    source.write_text(f"licence\n{mark.format('START')}\n{book}\n{mark.format('END')}\nlicence")
    kept = fetch_corpus.text_of(source.as_uri()).rstrip("\n").split("\n\n")
    first = paragraphs.index(kept[0])
    assert kept == paragraphs[first : first + len(kept)]
    size = len(paragraphs[0]) + 2
    assert 0 <= size * first - len(book) / 10 <= 2 * size
    assert 200_000 - size <= size * len(kept) <= 200_000
