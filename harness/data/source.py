"""Make a task's source from a Hugging Face tokenizer and documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from harness.data.chat import Chat, chat_of
from harness.data.tokenize import tokenize
from tasks._tokens import Tokens
from tasks._types import Document, TaskContext

SHORT = 500  # characters of a text, of which many are remembered


def make_source(
    tokenizer: Any, documents: Callable[[], Iterable[tuple[str, str]]], trained_length: int
) -> TaskContext:
    """Return the context of a tokenizer and of (name, text) documents, read on the first use."""
    return source_of(
        tokenizer,
        lambda: (Document(name, *tokenize(tokenizer, text)) for name, text in documents()),
        trained_length,
    )


def source_of(
    tokenizer: Any, passages: Callable[[], Iterable[Document]], trained_length: int
) -> TaskContext:
    """Return the context of a tokenizer and of documents in its tokens, read on the first use."""

    def encoded(text: str) -> Tokens:
        return tokenize(tokenizer, text)[0]

    # A prompt is mostly made of the same few texts, and of a needle that all lengths have.
    long, short = lru_cache(maxsize=64)(encoded), lru_cache(maxsize=2**16)(encoded)

    def encode(text: str) -> list[int]:
        return list((short if len(text) < SHORT else long)(text))

    def decode(tokens: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text

    @cache
    def read() -> tuple[Document, ...]:
        return tuple(passages())

    @cache
    def template() -> Chat:
        return chat_of(tokenizer)

    def chat(beginning: str) -> tuple[list[int], list[int], str]:
        return template()(beginning)

    return TaskContext(
        encode, decode, tokenizer.bos_token_id, trained_length, read, chat, tokenizer
    )
