"""Read the documents on every machine: the standard library's sources and the language reference.

A fixed part is held out: the reference model was not trained on it. The texts differ a little
between Python versions; a record therefore has their hashes.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Modules that every supported Python has, none generated, each of 12,000 characters or more.
HELD_OUT_MODULES = (
    "_markupbase", "argparse", "bdb", "concurrent/futures/_base", "difflib", "email/header",
    "email/headerregistry", "heapq", "json/__init__", "mailbox", "optparse", "shutil",
    "statistics", "tomllib/_parser", "tracemalloc", "unittest/suite", "weakref",
    "xml/etree/ElementPath", "xml/sax/handler", "zoneinfo/_zoneinfo",
)  # fmt: skip
# Chapters of the language reference that have no page in common with another one.
HELD_OUT_TOPICS = ("formatstrings", "string-methods", "typesmapping")


def held_out() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the held-out documents, modules first."""
    from pydoc_data.topics import topics  # half a megabyte

    root = Path(sysconfig.get_path("stdlib"))
    for module in HELD_OUT_MODULES:
        text = (root / f"{module}.py").read_text(encoding="utf-8", errors="replace")
        yield f"{module}.py", text
    for topic in HELD_OUT_TOPICS:
        yield f"topics/{topic}", topics[topic]
