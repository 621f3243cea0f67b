"""The files of a model: from the hub, what its client raises as one sentence, and their hashes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path

from huggingface_hub import constants

from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.files import expanded, is_path

ONLY_SAFE = "only safetensors are read, other weights with --allow-pickle where you trust them"
SAFE, INDEX = ".safetensors", "model.safetensors.index.json"
HASHED = (".json", ".model", ".py", SAFE, ".bin")
TOKENIZER_FILES = ("*token*", "vocab*", "merges*", "*.model", "*.tiktoken", "*.jinja")


def check_exists(name: str) -> None:
    """Raise UserError for the path of a model that is not there; a hub name is not asked for."""
    if "://" in name:
        raise UserError(f"{name} is a server: name it by --model CHECKPOINT --server {name}.")
    path = expanded(name)
    on_hub = name[0] not in "./~" and (name.count("/") < 2 or name.lower().endswith(".gguf"))
    if not on_hub and not is_path(path):
        raise UserError(
            f"{name} does not exist; give a model's folder, a GGUF file or a hub name (owner/name, "
            "owner/name/file.gguf)."
        )


def download(
    name: str, revision: str | None, wanted: list[str], unwanted: str | None = None
) -> Path:
    """Return the folder of a repository's files that match; download what the cache lacks."""
    from huggingface_hub import snapshot_download  # the whole client

    patterns = {"allow_patterns": wanted, "ignore_patterns": unwanted}
    return Path(snapshot_download(name, revision=revision, **patterns))


@contextmanager
def reading(part: str, where: str) -> Iterator[None]:
    """Read a part of a model inside; what a library raises becomes one sentence that names it."""
    what = f"the {part} of {where} cannot be read"
    with foreign(what):
        try:
            yield
        except Exception as error:
            offline = constants.HF_HUB_OFFLINE and not is_path(Path(where))
            if "trust_remote_code=True" in str(error):
                advice = "it needs the repository's own code (--trust-remote-code if you trust it)"
            elif "named model.safetensors" in str(error):
                advice = f"it has no weights in safetensors; {ONLY_SAFE}"
            elif part == "tokenizer" and Path(where).is_dir() and not _has_tokenizer(Path(where)):
                advice = "it has no tokenizer; copy its files from where the model came from"
            elif offline and isinstance(error, OSError):
                advice = "the hub's cache does not have all of it; run once without --offline"
            else:
                raise
            raise UserError(f"{what}: {advice}.") from error


def _has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(name)) for name in TOKENIZER_FILES)


def go_offline() -> None:
    """Ask the hub for nothing from now on, in this process and in those that it starts."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    constants.HF_HUB_OFFLINE = True
    if "datasets" in sys.modules:  # which read the variables when it was imported
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def folder_hash(folder: Path, *, code: bool, allow_pickle: bool) -> str:
    """Hash config, tokenizer, code and weights, every byte: a changed model has other numbers.

    It covers the files in the folder itself and, in any place below, the weights that an index
    names and, with ``code``, the code that may run.
    """
    names = {path.name for path in folder.iterdir() if path.suffix in HASHED}
    if code:
        names |= {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    index = folder / INDEX
    if index.exists() and not (folder / f"model{SAFE}").exists():
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
        if pickles := [name for name in shards if not (allow_pickle or name.endswith(SAFE))]:
            raise UserError(f"an index of {folder} names {pickles[0]}; {ONLY_SAFE}.")
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


def tensors(names: Sequence[str]) -> str:
    """Return "the tensor a.weight", or "4 tensors (a.weight, b.weight, c.weight, …)"."""
    several = ", ".join([*names[:3], "…"] if len(names) > 3 else names)
    return f"{len(names)} tensors ({several})" if len(names) > 1 else f"the tensor {names[0]}"
