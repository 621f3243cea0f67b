"""Tokenize texts and chat templates; tokens of all but short texts are cached on disk."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import constants

from ropewalk.harness.errors import UserError, foreign, reason
from ropewalk.harness.files import make_folder, replacing
from ropewalk.tasks._prompt import THOUGHT
from ropewalk.tasks._tokens import Tokens

LEAST = 1 << 11  # characters; tokenizing a shorter text is about as fast as reading the cache

Tokenized = tuple[Tokens, "array[int] | None"]


def make_reader(tokenizer: Any) -> Callable[[str], Tokenized]:
    """Return a function from a text to its tokens and to the bytes before each of them.

    The bytes are None for a tokenizer without offsets. Tokens of all but short texts are stored in
    the Hugging Face assets cache (HF_ASSETS_CACHE), by a hash of the tokenizer and of the text.
    """
    if not tokenizer.is_fast:
        return partial(tokenize, tokenizer)
    state = f"{version('tokenizers')} {tokenizer.backend_tokenizer.to_str()}"
    name = hashlib.sha256(state.encode()).hexdigest()[:32]
    folder = Path(constants.HF_ASSETS_CACHE, "ropewalk", "tokens", name)

    def read(text: str) -> Tokenized:
        if len(text) < LEAST:
            return tokenize(tokenizer, text)
        file = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.npy"
        with suppress(OSError, ValueError, EOFError):  # it is not there, or not whole
            stored, ends = np.load(file).tolist()
            return Tokens(stored), array("q", [0, *ends])
        tokens, before = tokenize(tokenizer, text)
        with suppress(UserError):  # a full disk costs time, not the sweep
            make_folder(folder)
            with replacing(file) as new:
                np.save(new, np.array([[*tokens], [*(before or ())][1:]], dtype=np.int32))
        return tokens, before

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
    with foreign("the tokenizer cannot encode a text"):
        encoding = tokenizer(text, **options)
    tokens = Tokens(encoding["input_ids"])
    if not tokenizer.is_fast:
        return tokens, None
    if not tokens:
        return tokens, array("q", [0])
    letters = np.array([end for _, end in encoding["offset_mapping"]], dtype=np.int64)
    # An offset may go back (a byte of a character, a trimmed space); bytes read stay counted.
    letters = np.maximum.accumulate(letters)
    code = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (code > 0x7F).astype(np.int64) + (code > 0x7FF) + (code > 0xFFFF)  # in UTF-8
    before = np.concatenate([[0], np.cumsum(sizes)])
    ends = array("q", [0, *before[letters].tolist()])
    ends[-1] = int(before[-1])  # white space that the tokenizer drops at the end is text too
    return tokens, ends


def opening_of(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that every window begins with: the begin token.

    Where a tokenizer names none, it is what it puts before a text, as GLM's [gMASK]<sop>.
    """
    if tokenizer.bos_token_id is not None:
        return (tokenizer.bos_token_id,)
    whole, own = (
        list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (True, False)
    )
    starts = range(len(whole) - len(own) + 1)
    return tuple(whole[: next((at for at in starts if whole[at : at + len(own)] == own), 0)])


MESSAGE = "the message"
DAY = "26 Jul 2024"  # for templates that print today's, so that a prompt is the same on every day
FIXED_DAY = (
    "{%- macro strftime_now(format) -%}{{ {'%Y-%m-%d': '2024-07-26'}.get(format, '"
    + DAY
    + "') }}{%- endmacro -%}"
)


def chat_of(
    tokenizer: Any, thinking: bool | None = None
) -> Callable[[str], tuple[list[int], list[int], str]]:
    """Return the function that ``TaskContext.chat`` is, with or without thinking.

    Control tokens are control tokens there, and the begin token is there if the template writes
    it. Raises ValueError where there is no template, it fails, or it changes the message.
    """
    encode = partial(_encoded, tokenizer)
    options = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
    text = _applied(tokenizer, "user", add_generation_prompt=True, **options)
    if thinking is not None:
        other = dict.fromkeys(options, not thinking)
        if text == _applied(tokenizer, "user", add_generation_prompt=True, **other):
            raise ValueError(
                "the tokenizer's chat template does not switch thinking on or off; use chat=true"
            )
    if thinking:
        read = tokenizer.decode(encode(THOUGHT), skip_special_tokens=True)
        if THOUGHT not in tokenizer.get_chat_template() or THOUGHT not in read:
            raise ValueError(
                f"reasoning does not end with {THOUGHT} in a text of this model, so its answer is "
                "not found; use chat=direct"
            )
    before, message, after = text.partition(MESSAGE)
    if not message or MESSAGE in after:
        raise ValueError(
            "the tokenizer's chat template does not contain a user's message once, as it is"
        )
    space = ""  # before a reply
    with suppress(ValueError):  # a template may close the reasoning of a reply by itself
        replied = _applied(tokenizer, "user", "assistant", add_generation_prompt=False)
        space = replied.removeprefix(text).partition(MESSAGE)[0]
    # A tokenizer may put a space before any text, so what follows a text is read with it.
    anchor, last = encode(MESSAGE), encode(MESSAGE + after)
    size = len(anchor)
    generation = last[size:] if last[:size] == anchor else encode(after)
    space = space if space.isspace() else ""
    return lambda beginning: (encode(before + beginning), generation, space)


def turns_of(tokenizer: Any) -> Callable[[str, str], list[int]]:
    """Return the function that ``TaskContext.turns`` is; raise ValueError as ``chat_of`` does."""
    text = _applied(tokenizer, "user", "assistant", "user", add_generation_prompt=True)
    parts = text.split(MESSAGE)
    if len(parts) != 4:
        raise ValueError("the tokenizer's chat template does not contain every message as it is")
    before, reply, between, last = parts
    around = {"first": (before, reply), "next": (between, reply), "last": (between, last)}

    def turn(message: str, place: str) -> list[int]:
        begin, end = around[place]
        return _encoded(tokenizer, f"{begin}{message}{end}")

    return turn


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _applied(tokenizer: Any, *roles: str, add_generation_prompt: bool, **options: bool) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("the tokenizer has no chat template; leave out chat=true")
    try:
        return str(
            tokenizer.apply_chat_template(
                [{"role": role, "content": MESSAGE} for role in roles],
                tokenize=False,
                chat_template=FIXED_DAY + tokenizer.get_chat_template(),
                date_string=DAY,
                add_generation_prompt=add_generation_prompt,
                **options,
            )
        )
    except Exception as error:
        raise ValueError(f"the tokenizer's chat template fails: {reason(error)}") from error
