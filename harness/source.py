"""From a Hugging Face tokenizer and documents to what a task may know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from tasks._types import Passage, Source


def make_source(
    tokenizer: Any, documents: Callable[[], Iterable[tuple[str, str]]], trained_length: int
) -> Source:
    """Return the Source of a tokenizer and of (name, text) documents, read on the first use."""

    def encode(text: str) -> list[int]:
        # A document that says "<s>" or "<|endoftext|>" means these letters, not the control token.
        read = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        tokens: list[int] = read["input_ids"]
        return tokens

    def decode(tokens: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text

    @cache
    def passages() -> tuple[Passage, ...]:
        return tuple(Passage(name, tuple(encode(text))) for name, text in documents())

    return Source(encode, decode, tokenizer.bos_token_id, trained_length, passages)
