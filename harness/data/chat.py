"""Split a tokenizer's chat template into what stands before and after a user's message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.files import confined
from tasks._types import no_template

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
    before, found, after = text.partition(MESSAGE)
    if not found or MESSAGE in after:
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
