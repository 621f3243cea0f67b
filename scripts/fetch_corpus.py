"""Download the documents that results/smollm2/corpus.csv lists; their texts are not committed.

    python -m scripts.fetch_corpus --out corpus

Each document becomes one file, in UTF-8 with Unix line ends. In a URL, what follows ``#`` is the
path of a file in a Debian package; a URL without a scheme is a file of this repository. A book that
is listed with the whole text of Project Gutenberg is cut: it begins after a tenth of the book, has
at most 200,000 characters, and consists of complete paragraphs.

A text whose SHA-256 is not the listed one is an error. A file that exists is not downloaded again.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import tarfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

from cyclopts import App

from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.files import make_folder, replacing

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "results/smollm2/corpus.csv"
MARK = re.compile(r"^\*\*\* ?(?:START|END) OF TH.*$", re.MULTILINE)
CHARACTERS = 200_000  # of a book, at most
app = App(help=__doc__)


def text_of(url: str) -> str:
    """Return the text of a document, as it is measured."""
    address, member = urldefrag(url)
    with foreign(f"{url} cannot be read"):
        content = download(urljoin(f"{ROOT.as_uri()}/", address))
        if member:
            content = in_package(content, member)
        if url.endswith(".gz"):
            content = gzip.decompress(content)
    # What is not UTF-8 has another SHA-256 than the list's, which is the error to report.
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    return cut(text) if MARK.search(text) else text


@lru_cache(maxsize=1)  # two documents are in one package
def download(url: str) -> bytes:
    """Return what is at a URL."""
    with urlopen(url, timeout=60) as response:
        content: bytes = response.read()
        return content


def in_package(package: bytes, member: str) -> bytes:
    """Return a file of a Debian package, which is an ar archive with a compressed data.tar."""
    begin = 8
    while not package.startswith(b"data.tar", begin):
        size = int(package[begin + 48 : begin + 58])
        begin += 60 + size + size % 2
    with tarfile.open(fileobj=io.BytesIO(package[begin + 60 :])) as data:
        file = data.extractfile(f"./{member}")
        assert file is not None
        return file.read()


def cut(book: str) -> str:
    """Return the paragraphs in the 200,000 characters after the first tenth of a book.

    The book is what is between the START and END lines of Project Gutenberg.
    """
    book = MARK.split(book)[1]
    first = book.index("\n\n", len(book) // 10)
    last = book.rindex("\n\n", first, first + CHARACTERS)
    return book[first:last].strip("\n") + "\n"


@app.default
def main(*, out: Path = Path("corpus")) -> None:
    """Download the documents that are not there yet.

    Args:
        out: The folder of the texts.
    """
    make_folder(out, "--out")
    with LIST.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if (path := out / row["file"]).exists():
            continue
        text = text_of(row["url"]).encode()
        if (digest := sha256(text).hexdigest()) != row["sha256"]:
            raise UserError(
                f"{path.name}: the text of {row['url']} has the SHA-256 {digest}, but {LIST.name} "
                f"lists {row['sha256']}."
            )
        with replacing(path) as new:
            new.write(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        print(path, flush=True)
    print(f"{out} has the {len(rows)} documents of {LIST.name}")


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        sys.exit(f"fetch_corpus: {error}")
