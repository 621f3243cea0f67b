"""From text to tokens, once: what was read before comes from a cache on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import cached_assets_path, constants

from harness.attempt import attempt
from tasks._tokens import Tokens

CACHE = 1  # raised when a cached file would be read as something else
DIGEST = hashlib.sha256().digest_size
LEAST = 1 << 17  # characters; a shorter text is tokenized about as fast as it is looked up

Read = tuple[Tokens, "array[int] | None"]


def make_reader(tokenizer: Any) -> Callable[[str], Read]:
    """Return a function from a text to its tokens and to the bytes before each of them.

    The bytes are None for a tokenizer that does not tell where its tokens stand. Long texts are
    kept in the Hugging Face assets cache (HF_ASSETS_CACHE), by a hash of the tokenizer and of the
    text. A file there is written whole or not at all, and one that is damaged is written anew.
    """
    folder = _folder(tokenizer)

    def read(text: str) -> Read:
        if folder is None or len(text) < LEAST:
            return tokenize(tokenizer, text)
        file = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.tokens"
        found = _load(file)
        if found is None:
            found = tokenize(tokenizer, text)
            _save(file, found)
        return found

    return read


def tokenize(tokenizer: Any, text: str) -> Read:
    """Return the tokens of a text, without special ones, and the bytes before each token."""
    # A document that says "<s>" or "<|endoftext|>" means these letters, not the control token.
    options = {
        "add_special_tokens": False,
        "split_special_tokens": True,
        "return_offsets_mapping": tokenizer.is_fast,
        "verbose": False,
    }
    read = attempt("tokens", "a text", lambda: tokenizer(text, **options))
    tokens = Tokens(read["input_ids"])
    if not tokenizer.is_fast or not tokens:
        return tokens, None
    letters = np.array([end for _, end in read["offset_mapping"]], dtype=np.int64)
    # An offset may step back (a byte of a letter, a space that was trimmed); what was read stays.
    letters = np.maximum.accumulate(letters)
    before = _bytes_before(text)
    ends = array("q", [0, *before[letters].tolist()])
    ends[-1] = int(before[-1])  # white space that the tokenizer drops at the end is text too
    return tokens, ends


def _bytes_before(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes before each letter of a text, and those of the whole, in UTF-8."""
    code = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (code > 0x7F).astype(np.int64) + (code > 0x7FF) + (code > 0xFFFF)
    return np.concatenate([[0], np.cumsum(sizes)])


def _folder(tokenizer: Any) -> Path | None:
    """Return where the tokens of this tokenizer are kept; None where it cannot be told apart."""
    if not tokenizer.is_fast:
        return None
    told = f"{CACHE} {version('tokenizers')} {tokenizer.backend_tokenizer.to_str()}"
    name = hashlib.sha256(told.encode()).hexdigest()[:32]
    try:
        return Path(
            cached_assets_path(
                "ropewalk", "tokens", subfolder=name, assets_dir=constants.HF_ASSETS_CACHE
            )
        )
    except (OSError, ValueError):  # a home that cannot be written: only time is lost
        return None


def _load(file: Path) -> Read | None:
    """Return what a file holds; None where there is none, or not a whole one."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    told, body = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(body).digest() != told:
        return None
    tokens, ends = np.frombuffer(body, dtype="<i4").reshape(2, -1).tolist()
    return Tokens(tokens), array("q", [0, *ends])


def _save(file: Path, found: Read) -> None:
    """Write a file beside its place and move it there, so that no other reader sees half of it.

    It has a hash of what follows, then the tokens, then the bytes up to the end of each.
    """
    tokens, ends = found
    if ends is None:
        return
    body = np.array([list(tokens), ends[1:]], dtype="<i4").tobytes()
    with suppress(OSError):  # a full disk costs time, not the sweep
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".new")
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(hashlib.sha256(body).digest() + body)
            Path(name).replace(file)
        finally:
            Path(name).unlink(missing_ok=True)
