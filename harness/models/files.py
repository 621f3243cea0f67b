"""Check and hash the files of a model: which ones are read, and whether that is allowed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath
from typing import Any

from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from harness.errors import UserError, reason
from harness.files import MIB, open_regular, read_regular
from harness.models.download import ADAPTER, ONLY_SAFE, TOKENIZER, exists, fetch
from harness.names import place, printable

LONGEST_NAME = 4096  # characters of a path, the limit of the system
WHOLE = (".json", ".jinja", ".model", ".py", ".txt")  # read whole into memory
LARGEST = 256 * MIB  # of such a file; the largest tokenizers have 40
SAFE = ".safetensors"
HASHED = (".json", ".model", ".py", SAFE, ".bin")
INDEX = ".index.json"
GGUF = ".gguf"


def check_place(name: str) -> Path:
    """Return the path that a model's name may be; raise UserError for another file, a bad path."""
    if len(name) > LONGEST_NAME:
        message = f"the model's name has {len(name):,} characters, at most {LONGEST_NAME:,} are"
        message += f" read: {printable(name[:40])}…"
        raise UserError(message)
    path = place(name)
    try:
        found, folder = path.exists(), path.is_dir()
    except OSError as error:  # a part of the name is too long
        raise UserError(
            f"--model {printable(reason(name))} is not a path: {error.strerror}."
        ) from None
    if found and not folder and path.suffix.lower() != GGUF:
        raise UserError(
            f"model {name} is a file; give the folder with its config.json, or a GGUF file."
        )
    return path


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder that is not a model's, before a file is read.

    That is a folder of an adapter, a pipe or a device instead of a file, and a file too large to
    be read whole.
    """
    names = sorted(entry.name for entry in os.scandir(folder))
    if "adapter_config.json" in names:
        raise UserError(f"{folder} holds an adapter (adapter_config.json): {ADAPTER}")
    if "config.json" not in names:
        raise UserError(
            f"{folder} is not a model, it has no config.json; give the folder that has one."
        )
    for name in names:
        path = folder / name
        if path.suffix in (*WHOLE, *HASHED) and not path.is_dir():
            check_file(path, LARGEST if path.suffix in WHOLE else None)


def check_file(path: Path, limit: int | None = None) -> None:
    """Raise UserError unless this is a regular file of at most ``limit`` bytes."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or reason(error)}.") from None
    if limit is not None and size > limit:
        raise UserError(f"{path} has {size / MIB:,.0f} MiB; at most {limit // MIB} MiB are read.")


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
    """Return the file names in an index; raise UserError if it has none."""
    try:
        found = set(json.loads(read_regular(index, limit=LARGEST))["weight_map"].values())
        if not found:
            raise ValueError("it names no weights")
        return found
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
    """Hash the files that a tokenizer reads: ``folder_hash`` has no merges and no chat template.

    It is recorded beside that hash, which is in the keys of samples and stays as it is.
    """
    kinds = [*TOKENIZER, "additional_chat_templates/*.jinja"]
    named = {path for kind in kinds for path in folder.glob(kind) if path.is_file()}
    digest = sha256()
    for path in sorted(named):
        digest.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}".encode())
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a regular file's content; raise UserError where it cannot be read."""
    try:
        opened: Any = open_regular(path)
        with opened as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or reason(error)}.") from None
