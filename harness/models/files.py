"""Fetch, check and hash the files of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub import snapshot_download as download
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

from harness.errors import UserError, reason, why
from harness.hub import tell
from harness.names import place, printable

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


def fetch_tokenizer(name: str, commit: str) -> None:
    """Download every file of a tokenizer, or raise what the hub's client raises.

    Else the library would take a file that the hub fails to give for one that is not there, and a
    tokenizer without its config has no begin token.
    """
    download(
        name,
        revision=commit,
        allow_patterns=TOKENIZER,
        ignore_patterns=["*/*", "*.bin"],
        local_files_only=constants.HF_HUB_OFFLINE,
    )


def fetch_gguf(place: str, revision: str | None) -> Path:
    """Return a GGUF file of the hub, ``owner/name/file``; even its config needs the whole file."""
    owner, name, file = place.split("/", 2)
    _missing_files(f"{owner}/{name}", [file], revision)
    return fetch(f"{owner}/{name}", file, revision)


def fetch_weights(name: str, commit: str, named: set[str]) -> None:
    """Download the weights that are not in the cache, in parallel, and report the size."""
    if missing := _missing_files(name, sorted(named), commit):
        download(name, revision=commit, allow_patterns=missing)
    for file in sorted(named):
        fetch(name, file, commit)


def _missing_files(name: str, files: list[str], revision: str | None) -> list[str]:
    """Return which weights have to be downloaded, and say how much that is."""
    missing = absent(name, files, revision)
    if not missing or constants.HF_HUB_OFFLINE:
        return []
    size = ""
    with suppress(HfHubHTTPError):
        infos = HfApi().get_paths_info(name, missing, revision=revision)
        size = f", {sum(getattr(one, 'size', 0) for one in infos) / 2**20:,.1f} MiB"
    tell(f"Downloading the weights of {name} from the hub{size}")
    return missing


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


def check_place(name: str) -> Path:
    """Return the path that a model's name may be; raise UserError for another file, a bad path."""
    path = place(name)
    try:
        there, folder = path.exists(), path.is_dir()
    except OSError as error:  # the name is too long
        raise UserError(
            f"--model {printable(reason(name))} is not a path: {error.strerror}."
        ) from None
    if there and not folder and path.suffix.lower() != GGUF:
        raise UserError(
            f"model {name} is a file; give the folder with its config.json, or a GGUF file."
        )
    return path


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder that holds an adapter, or no model."""
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder} holds an adapter (adapter_config.json): {ADAPTER}")
    if not (folder / "config.json").exists():
        raise UserError(
            f"{folder} is not a model, it has no config.json; give the folder that has one."
        )


def named_weights(where: str, commit: str | None, config: Any, *, allow_pickle: bool) -> set[str]:
    """Return the weight files that a model's index, or its config, names.

    Raises UserError for a name outside the model's folder, and for one that is not safetensors
    unless pickles are allowed: the library would load it by its own suffix.
    """
    explicit = getattr(config, "transformers_weights", None)
    named = set[Any]() if explicit is None else {explicit}
    for name in named:
        _check_name(where, name, allow_pickle=allow_pickle)
    index = _index(where, commit, explicit, allow_pickle=allow_pickle)
    if index is not None and index.exists():
        named |= _weight_map(index)
    for name in named:
        _check_name(where, name, allow_pickle=allow_pickle)
    return named


def _index(
    where: str, commit: str | None, explicit: str | None, *, allow_pickle: bool
) -> Path | None:
    """Return the index that the library uses, by its own order of names."""
    if explicit is not None and not explicit.endswith(INDEX):
        return None
    name = explicit or SAFE_WEIGHTS_INDEX_NAME
    if commit is not None:
        covered = explicit is None and exists(where, SAFE_WEIGHTS_NAME, commit)
        return fetch(where, name, commit) if not covered and exists(where, name, commit) else None
    folder, whole = Path(where), [SAFE_WEIGHTS_NAME]
    if allow_pickle and explicit is None and not (folder / name).exists():
        whole, name = [SAFE_WEIGHTS_NAME, WEIGHTS_NAME], WEIGHTS_INDEX_NAME
    covered = explicit is None and any((folder / one).exists() for one in whole)
    return None if covered else folder / name


def _weight_map(index: Path) -> set[Any]:
    """Return the file names in an index; raise UserError if there are none."""
    try:
        named = set(json.loads(index.read_bytes())["weight_map"].values())
        if not named:
            raise ValueError("it names no weights")
        return named
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index} is not an index of weights: {reason(error)}.") from None


def _check_name(where: str, name: Any, *, allow_pickle: bool) -> None:
    if not isinstance(name, str) or "\0" in name:
        raise UserError(f"an index of {where} names {reason(name)} as a file of weights.")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"an index of {where} names {reason(name)}, which is outside the model's folder."
        )
    if not (allow_pickle or name.endswith((SAFE, INDEX))):
        raise UserError(f"an index of {where} names {reason(name)}; {ONLY_SAFE}")


def folder_hash(folder: Path, named: Iterable[str], *, code: bool) -> str:
    """Hash config, tokenizer, code and weights, every byte: a changed model has other numbers.

    It covers the files in the folder itself and, in any place, the ``named`` weights and the
    ``code`` that may run.
    """
    inside = {path.name for path in folder.iterdir() if path.suffix in HASHED}
    elsewhere = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if code}
    digest = sha256()
    for name in sorted(inside | elsewhere | set(named)):
        path = folder / name
        if not path.is_dir():
            digest.update(f"{name} {file_hash(path)}".encode())
    return digest.hexdigest()[:16]


def tokenizer_hash(folder: Path) -> str:
    """Hash the files that a tokenizer reads.

    ``folder_hash`` covers no merges and no chat template, and is in the keys of samples.
    """
    kinds = [*TOKENIZER, "additional_chat_templates/*.jinja"]
    named = {path for kind in kinds for path in folder.glob(kind) if path.is_file()}
    digest = sha256()
    for path in sorted(named):
        digest.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}".encode())
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content; raise UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {why(error)}.") from None
