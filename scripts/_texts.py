"""The texts that the reference model and the encodings are trained on."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from ropewalk.harness.data.readers import HELD_OUT_MODULES, HELD_OUT_TOPICS, held_out

# Neither measured nor trained on: pdb.py has the same text in its docstrings, in other lines.
SET_ASIDE_TOPICS = ("debugger",)
# Generated tables are neither prose nor written code. Tests quote the modules they test.
LEFT_OUT = ("encodings", "site-packages", "test", "tests", "idle_test", "pydoc_data", "ensurepip")
SHINGLE = 3  # consecutive lines; a training text has none of a held-out text


def training() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of all other documents, without passages of a held-out one.

    A passage is a run of SHINGLE lines of at least 60 characters. The same words in other lines
    remain: 1 % of the held-out words occur in runs of 20 or more in training texts too.
    """
    unseen = [text for _, text in held_out()] + [topics[topic] for topic in SET_ASIDE_TOPICS]
    seen = {run for text in unseen for _, run in _shingles(text)}
    root = Path(sysconfig.get_path("stdlib"))
    kept_out = {f"{module}.py" for module in HELD_OUT_MODULES}
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in LEFT_OUT]
    inside = (path for folder in folders for path in folder.rglob("*.py"))
    for path in sorted([*root.glob("*.py"), *inside]):
        name = path.relative_to(root).as_posix()
        generated = path.name.startswith("_sysconfigdata")
        if name not in kept_out and not generated and not set(Path(name).parts) & set(LEFT_OUT):
            yield name, _without(path.read_text(encoding="utf-8", errors="replace"), seen)
    for topic, text in sorted(topics.items()):
        if topic not in HELD_OUT_TOPICS + SET_ASIDE_TOPICS:
            yield f"topics/{topic}", _without(text, seen)


def _shingles(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield every run of SHINGLE lines that has at least 60 characters, and its first line."""
    bare = [line.strip() for line in text.splitlines()]
    for i in range(len(bare) - SHINGLE + 1):
        run = tuple(bare[i : i + SHINGLE])
        if sum(map(len, run)) >= 60:
            yield i, run


def _without(text: str, seen: set[tuple[str, ...]]) -> str:
    """Return the text without the lines of every run that is in ``seen``."""
    found = (first for first, run in _shingles(text) if run in seen)
    dropped = {line for first in found for line in range(first, first + SHINGLE)}
    kept = (line for i, line in enumerate(text.splitlines()) if i not in dropped)
    return "\n".join(kept) + "\n"
