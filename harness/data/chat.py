"""Split a tokenizer's chat template into what stands before and after a user's message."""

from __future__ import annotations

from typing import Any

from jinja2.exceptions import TemplateError

from harness.errors import reason
from tasks._types import no_template

MESSAGE = "the message"
DAY = "26 Jul 2024"  # for templates that print today's, so that a prompt is the same on every day
FIXED_DAY = (
    "{%- macro strftime_now(format) -%}{{ {'%Y-%m-%d': '2024-07-26'}.get(format, '"
    + DAY
    + "') }}{%- endmacro -%}"
)


def template_frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens before a user's only message, and after it up to the assistant's reply.

    Control tokens are control tokens here, and the begin token is there if the template writes
    it. Raises ValueError where there is no template, it fails, or it changes the message.
    """
    if not getattr(tokenizer, "chat_template", None):
        return no_template()
    before, after = _rendered(tokenizer)
    # A tokenizer may put a space before any text, so both sides are read with the message.
    anchor = _tokens(tokenizer, MESSAGE)
    first, last = _tokens(tokenizer, before + MESSAGE), _tokens(tokenizer, MESSAGE + after)
    size = len(anchor)
    return (
        first[:-size] if first[-size:] == anchor else _tokens(tokenizer, before),
        last[size:] if last[:size] == anchor else _tokens(tokenizer, after),
    )


def _rendered(tokenizer: Any) -> tuple[str, str]:
    """Return the text of the template before and after the message."""
    try:
        text: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": MESSAGE}],
            tokenize=False,
            add_generation_prompt=True,
            chat_template=FIXED_DAY + tokenizer.get_chat_template(),
            date_string=DAY,
        )
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        message = f"the tokenizer's chat template fails: {reason(error)}"
        raise ValueError(message) from error
    before, found, after = text.partition(MESSAGE)
    if not found or MESSAGE in after:
        message = "the tokenizer's chat template does not contain a user's message once, as it is"
        raise ValueError(message)
    return before, after


def _tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
