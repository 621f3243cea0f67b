"""Hash the files of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import file_digest, sha256
from pathlib import Path

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.hub import ONLY_SAFE

TOKENIZER_FILES = ("*token*", "vocab*", "merges*", "*.model", "*.tiktoken", "*.jinja")
SAFE = ".safetensors"
HASHED = (".json", ".model", ".py", SAFE, ".bin")


def folder_hash(folder: Path, *, code: bool, allow_pickle: bool) -> str:
    """Hash config, tokenizer, code and weights, every byte: a changed model has other numbers.

    It covers the files in the folder itself and, in any place below, the weights that an index
    names and, with ``code``, the code that may run.
    """
    names = {path.name for path in folder.iterdir() if path.suffix in HASHED}
    if code:
        names |= {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.exists() and not (folder / SAFE_WEIGHTS_NAME).exists():
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
        for name in () if allow_pickle else shards:
            if not name.endswith(SAFE):
                raise UserError(f"an index of {folder} names {name}; {ONLY_SAFE}.")
        names |= shards
    return _hash_of(folder, names)


def tokenizer_hash(folder: Path) -> str:
    """Hash the files that a tokenizer reads.

    ``folder_hash`` covers no merges and no chat template, and is in the keys of samples.
    """
    kinds = (*TOKENIZER_FILES, "additional_chat_templates/*.jinja")
    paths = {path for kind in kinds for path in folder.glob(kind)}
    return _hash_of(folder, (path.relative_to(folder).as_posix() for path in paths))


def _hash_of(folder: Path, names: Iterable[str]) -> str:
    digest = sha256()
    for name in sorted(names):
        if (folder / name).is_file():
            digest.update(f"{name} {file_hash(folder / name)}".encode())
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
