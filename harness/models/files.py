"""Fetch, check and hash the files of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
)
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from ropewalk.harness.errors import UserError, reason, why
from ropewalk.harness.hub import tell

TOKENIZER = ["*token*", "vocab*", "merges*", "*.model", "*.tiktoken", "*.jinja"]

ONLY_SAFE = "only safetensors are read, other weights with --allow-pickle where you trust them."
ADAPTER = "give its base model as --model and this as --adapter."


def fetch(name: str, file: str, revision: str | None) -> Path:
    """Return a file of a hub model from the cache; download it first if necessary.

    Raises UserError for a file that is not there, and otherwise what the hub's client raises.
    """
    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except EntryNotFoundError as error:
        offline = constants.HF_HUB_OFFLINE
        if isinstance(error, LocalEntryNotFoundError) and not offline:
            raise  # the hub cannot be reached
        if file == "config.json" and exists(name, "adapter_config.json", revision):
            why = f"holds an adapter (adapter_config.json): {ADAPTER}"
        elif offline:
            why = f"cannot be read offline: the hub's cache has no {file} of it; run once without"
            why += " --offline."
        elif file == SAFE_WEIGHTS_NAME:
            why = f"has no weights in safetensors; {ONLY_SAFE}"
        else:
            why = f"cannot be read: the hub has no {file} in it (one of GGUF files: give"
            why += f" {name}/FILE.gguf)."
        raise UserError(f"{name} {why}") from None


def exists(name: str, file: str, revision: str | None) -> bool:
    """Return whether a hub model has a small file; the cache keeps also that there is none."""
    known = try_to_load_from_cache(name, file, revision=revision)
    if known is not None or constants.HF_HUB_OFFLINE:
        return isinstance(known, str)
    try:
        hf_hub_download(name, file, revision=revision)
    except RemoteEntryNotFoundError:
        return False
    return True


def download(
    name: str, revision: str | None, wanted: list[str], unwanted: list[str] | None = None
) -> Path:
    """Download the files of a hub model that match, in parallel, and return their folder."""
    options = {"revision": revision, "local_files_only": constants.HF_HUB_OFFLINE}
    return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=unwanted, **options))


def fetch_tokenizer(name: str, commit: str) -> None:
    """Download every file of a tokenizer, or raise what the hub's client raises.

    Else the library would take a file that the hub fails to give for one that is not there, and a
    tokenizer without its config has no begin token.
    """
    download(name, commit, TOKENIZER, ["*/*", "*.bin"])


def fetch_gguf(place: str, revision: str | None) -> Path:
    """Return a GGUF file of the hub, ``owner/name/file``; even its config needs the whole file."""
    owner, name, file = place.split("/", 2)
    fetch_weights(f"{owner}/{name}", revision, [file])
    return fetch(f"{owner}/{name}", file, revision)


def fetch_weights(name: str, commit: str | None, files: Iterable[str]) -> None:
    """Download the weights that are not in the cache, in parallel, and say how much that is."""
    missing = absent(name, files, commit)
    if missing and not constants.HF_HUB_OFFLINE:
        size = ""
        with suppress(HfHubHTTPError):
            infos = HfApi().get_paths_info(name, missing, revision=commit)
            size = f", {sum(getattr(one, 'size', 0) for one in infos) / 2**20:,.1f} MiB"
        tell(f"Downloading the weights of {name} from the hub{size}")
        download(name, commit, missing)
    for file in missing:
        fetch(name, file, commit)


def absent(name: str, files: Iterable[str], revision: str | None) -> list[str]:
    """Return which files are not in a model's folder, or of a hub model not in the cache."""
    if (folder := Path(name)).is_dir():
        return [file for file in files if not (folder / file).exists()]
    cached = ((file, try_to_load_from_cache(name, file, revision=revision)) for file in files)
    return [file for file, path in cached if not isinstance(path, str)]


SAFE = ".safetensors"
HASHED = (".json", ".model", ".py", SAFE, ".bin")
INDEX = ".index.json"
GGUF = ".gguf"


def weight_files(where: str, commit: str | None, config: Any, *, allow_pickle: bool) -> set[str]:
    """Return the names of the weight files that transformers reads, by its own order of names.

    Raises UserError for files that are not safetensors unless pickles are allowed: the library
    loads a file by its own suffix.
    """
    explicit = getattr(config, "transformers_weights", None)
    names = [explicit] if explicit else [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME]
    if allow_pickle and not explicit:
        names += [WEIGHTS_NAME, WEIGHTS_INDEX_NAME]
    known = [name for name in names if not absent(where, [name], commit)]
    if commit and not known and not constants.HF_HUB_OFFLINE:
        there = HfApi().list_repo_files(where, revision=commit)
        known = [name for name in names if name in there]
    files = {known[0] if known else names[0]}
    if known and known[0].endswith(INDEX):
        index = fetch(where, known[0], commit) if commit else Path(where) / known[0]
        files = set(json.loads(index.read_bytes())["weight_map"].values())
    for name in () if allow_pickle else files:
        if not name.endswith(SAFE):
            raise UserError(f"an index of {where} names {reason(name)}; {ONLY_SAFE}")
    return files


def folder_hash(folder: Path, weights: Iterable[str], *, code: bool) -> str:
    """Hash config, tokenizer, code and weights, every byte: a changed model has other numbers.

    It covers the files in the folder itself and, in any place, the ``weights`` and the ``code``
    that may run.
    """
    inside = {path.name for path in folder.iterdir() if path.suffix in HASHED}
    elsewhere = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if code}
    return _hash_of(folder, inside | elsewhere | set(weights))


def tokenizer_hash(folder: Path) -> str:
    """Hash the files that a tokenizer reads.

    ``folder_hash`` covers no merges and no chat template, and is in the keys of samples.
    """
    kinds = [*TOKENIZER, "additional_chat_templates/*.jinja"]
    paths = {path for kind in kinds for path in folder.glob(kind)}
    return _hash_of(folder, {path.relative_to(folder).as_posix() for path in paths})


def _hash_of(folder: Path, names: set[str]) -> str:
    digest = sha256()
    for name in sorted(names):
        if (folder / name).is_file():
            digest.update(f"{name} {file_hash(folder / name)}".encode())
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content; raise UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {why(error)}.") from None
