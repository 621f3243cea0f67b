"""Download a model's files from the hub: one at a time as they are asked for, weights together."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub import snapshot_download as download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
)
from transformers.utils import SAFE_WEIGHTS_NAME

from harness.errors import UserError
from harness.hub import tell

TOKENIZER = ["*token*", "vocab*", "merges*", "*.model", "*.tiktoken", "*.jinja"]

ONLY_SAFE = "only safetensors are read, other weights with --allow-pickle where you trust them."
ADAPTER = "give its base model as --model and this as --adapter."


def fetch(name: str, file: str, revision: str | None) -> Path:
    """Return a file of a hub model from the cache, downloaded where the cache lacks it.

    Raises UserError for a file that is not there, and otherwise what the hub's client raises.
    """
    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except EntryNotFoundError as error:
        offline = constants.HF_HUB_OFFLINE
        if isinstance(error, LocalEntryNotFoundError) and not offline:
            raise  # the hub cannot be reached
        if file == "config.json" and exists(name, "adapter_config.json", revision):
            message = f"{name} holds an adapter (adapter_config.json): {ADAPTER}"
        elif offline:
            message = (
                f"{name} cannot be read offline: the hub's cache has no {file} of it; run once"
            )
            message += " without --offline."
        elif file == SAFE_WEIGHTS_NAME:
            message = f"{name} has no weights in safetensors; {ONLY_SAFE}"
        else:
            message = f"{name} cannot be read: the hub has no {file} in it"
            message += f" (one of GGUF files: give {name}/FILE.gguf)."
        raise UserError(message) from None


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
    _tell_size(f"{owner}/{name}", [file], revision)
    return fetch(f"{owner}/{name}", file, revision)


def fetch_weights(name: str, commit: str, named: set[str]) -> None:
    """Download the weights that the cache lacks, in parallel, and say how much that is."""
    if lacking := _tell_size(name, sorted(named), commit):
        download(name, revision=commit, allow_patterns=lacking)
    for file in sorted(named):
        fetch(name, file, commit)


def _tell_size(name: str, files: list[str], revision: str | None) -> list[str]:
    """Return which weights have to be downloaded, and say how much that is."""
    lacking = [
        file
        for file in files
        if not isinstance(try_to_load_from_cache(name, file, revision=revision), str)
    ]
    if not lacking or constants.HF_HUB_OFFLINE:
        return []
    size = ""
    with suppress(HfHubHTTPError):
        found = HfApi().get_paths_info(name, lacking, revision=revision)
        size = f", {sum(getattr(one, 'size', 0) for one in found) / 2**20:,.1f} MiB"
    tell(f"Downloading the weights of {name} from the hub{size}")
    return lacking
