"""Tokenize texts and chat templates; tokens of all but short texts are cached on disk."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import cached_assets_path, constants

from harness.files import UNFINISHED, confined
from harness.hub import attempt
from tasks._tokens import Tokens
from tasks.types import no_template

CACHE = 1  # raised when the format of a cached file changes
DIGEST = hashlib.sha256().digest_size
LEAST = 1 << 11  # characters; tokenizing a shorter text is about as fast as reading the cache

Tokenized = tuple[Tokens, "array[int] | None"]


def make_reader(tokenizer: Any) -> Callable[[str], Tokenized]:
    """Return a function from a text to its tokens and to the bytes before each of them.

    The bytes are None for a tokenizer without offsets. Tokens of all but short texts are stored in
    the Hugging Face assets cache (HF_ASSETS_CACHE), by a hash of the tokenizer and of the text. A
    file there is written whole or not at all, and a damaged one is written again.
    """
    folder = _folder(tokenizer)
    for left in folder.glob(UNFINISHED) if folder else ():  # by a kill; another writer costs time
        left.unlink(missing_ok=True)

    def read(text: str) -> Tokenized:
        if folder is None or len(text) < LEAST:
            return tokenize(tokenizer, text)
        file = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.tokens"
        tokenized = _load(file)
        if tokenized is None:
            tokenized = tokenize(tokenizer, text)
            _save(file, tokenized)
        return tokenized

    return read


def tokenize(tokenizer: Any, text: str) -> Tokenized:
    """Return the tokens of a text, without special ones, and the bytes before each token."""
    # "<s>" or "<|endoftext|>" in a document are these characters, not the control token.
    options = {
        "add_special_tokens": False,
        "split_special_tokens": True,
        "return_offsets_mapping": tokenizer.is_fast,
        "verbose": False,
    }
    encoding = attempt("tokens", "a text", lambda: tokenizer(text, **options))
    tokens = Tokens(encoding["input_ids"])
    if not tokenizer.is_fast:
        return tokens, None
    if not tokens:
        return tokens, array("q", [0])
    letters = np.array([end for _, end in encoding["offset_mapping"]], dtype=np.int64)
    # An offset may go back (a byte of a character, a trimmed space); bytes read stay counted.
    letters = np.maximum.accumulate(letters)
    before = _bytes_before(text)
    ends = array("q", [0, *before[letters].tolist()])
    ends[-1] = int(before[-1])  # white space that the tokenizer drops at the end is text too
    return tokens, ends


def _bytes_before(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the UTF-8 bytes before each character of a text, and those of the whole."""
    code = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (code > 0x7F).astype(np.int64) + (code > 0x7FF) + (code > 0xFFFF)
    return np.concatenate([[0], np.cumsum(sizes)])


def _folder(tokenizer: Any) -> Path | None:
    """Return the cache folder of this tokenizer; None where it cannot be identified."""
    if not tokenizer.is_fast:
        return None
    state = f"{CACHE} {version('tokenizers')} {tokenizer.backend_tokenizer.to_str()}"
    name = hashlib.sha256(state.encode()).hexdigest()[:32]
    try:
        return Path(
            cached_assets_path(
                "ropewalk", "tokens", subfolder=name, assets_dir=constants.HF_ASSETS_CACHE
            )
        )
    except (OSError, ValueError):  # a home that cannot be written costs time only
        return None


def _load(file: Path) -> Tokenized | None:
    """Return a file's tokens; None where there is no whole file."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, body = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        return None
    numbers, ends = np.frombuffer(body, dtype="<i4").reshape(2, -1)
    tokens, before = array("i"), array("q", [0])
    tokens.frombytes(numbers.astype("i").tobytes())
    before.frombytes(ends.astype("q").tobytes())
    return Tokens(tokens), before


def _save(file: Path, tokenized: Tokenized) -> None:
    """Write a hash of the rest, the tokens, and the bytes up to the end of each.

    The file is written under another name and moved; a damaged one is written again later.
    """
    tokens, ends = tokenized
    if ends is None:
        return
    body = np.array([list(tokens), ends[1:]], dtype="<i4").tobytes()
    new = file.with_name(UNFINISHED.replace("*", secrets.token_hex(8)))
    with suppress(OSError):  # a full disk costs time, not the sweep
        try:
            new.write_bytes(hashlib.sha256(body).digest() + body)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)


MESSAGE = "the message"
DAY = "26 Jul 2024"  # for templates that print today's, so that a prompt is the same on every day
FIXED_DAY = (
    "{%- macro strftime_now(format) -%}{{ {'%Y-%m-%d': '2024-07-26'}.get(format, '"
    + DAY
    + "') }}{%- endmacro -%}"
)


Chat = Callable[[str], tuple[list[int], list[int], str]]
USER, REPLY = {"role": "user", "content": MESSAGE}, {"role": "assistant", "content": MESSAGE}


def chat_of(tokenizer: Any) -> Chat:
    """Return the function that ``TaskContext.chat`` is.

    Control tokens are control tokens there, and the begin token is there if the template writes
    it. Raises ValueError where there is no template, it fails, or it changes the message.
    """
    if not getattr(tokenizer, "chat_template", None):
        no_template("")
    before, after, space = _rendered(tokenizer)
    # A tokenizer may put a space before any text, so what follows a text is read with it.
    anchor, last = _tokens(tokenizer, MESSAGE), _tokens(tokenizer, MESSAGE + after)
    size = len(anchor)
    generation = last[size:] if last[:size] == anchor else _tokens(tokenizer, after)
    return lambda beginning: (_tokens(tokenizer, before + beginning), generation, space)


def _rendered(tokenizer: Any) -> tuple[str, str, str]:
    """Return what a template writes before a message, after it, and then before a reply."""
    try:
        text = _applied(tokenizer, [USER], add_generation_prompt=True)
    except ValueError as error:
        raise ValueError(f"the tokenizer's chat template fails: {error}") from error
    before, message, after = text.partition(MESSAGE)
    if not message or MESSAGE in after:
        raise ValueError(
            "the tokenizer's chat template does not contain a user's message once, as it is"
        )
    try:
        replied = _applied(tokenizer, [USER, REPLY], add_generation_prompt=False)
    except ValueError:
        return before, after, ""
    space = replied.removeprefix(text).partition(MESSAGE)[0]
    return before, after, space if space.isspace() else ""


def _applied(tokenizer: Any, messages: list[dict[str, str]], **options: bool) -> str:
    """Return what a template writes; raise ValueError where it fails or has no end."""
    return confined(
        lambda: tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            chat_template=FIXED_DAY + tokenizer.get_chat_template(),
            date_string=DAY,
            **options,
        )
    )


def _tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
