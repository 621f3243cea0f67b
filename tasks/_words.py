"""Draw the words, numbers and identifiers that are hidden in prompts."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from random import Random
from typing import Literal
from uuid import UUID

Kind = Literal["words", "numbers", "uuids"]


@cache
def words(*lists: str) -> tuple[str, ...]:
    """Return the words of lists of the package wonderwords (MIT), sorted, each once."""
    folder = files("wonderwords.assets")
    texts = [(folder / f"{name}list.txt").read_text(encoding="utf-8") for name in lists]
    return tuple(sorted({word.strip() for text in texts for word in text.split("\n")} - {""}))


def drawn(kind: Kind, draw: Random) -> str:
    """Draw an adjective-noun pair, a number of seven digits or a random UUID, as RULER does."""
    if kind == "numbers":
        return str(draw.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(UUID(int=draw.getrandbits(128), version=4))
    return f"{draw.choice(words('adjective'))}-{draw.choice(words('noun'))}"
