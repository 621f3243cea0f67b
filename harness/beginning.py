"""A file to begin a method of one's own with: it runs as it is."""

from __future__ import annotations

from keyword import iskeyword
from pathlib import Path

from harness.errors import UserError
from harness.plugins import names

FREQUENCIES = '''\
"""{name}: what it does and where it comes from, in one line."""

from scaling import Frequencies, Rope


def frequencies(rope: Rope, length: int, *, strength: float = 1.0) -> Frequencies:
    """Return one frequency per channel pair: float32, radians per token, fastest first.

    Here NTK-aware: a base that grows with the stretch, max(1, length / trained_length). The same
    rope and length must give the same bits. Keyword-only parameters are the options of the method.
    """
    growth = rope.stretch(length) ** (strength * rope.rotary_dim / (rope.rotary_dim - 2))
    return Frequencies(rope.inv_freq(rope.base * growth))
'''

BANDS = '''\
"""{name}: what it does and where it comes from, in one line."""

import torch

from scaling import Bands, Frequencies, Rope, by_distance


def bands(rope: Rope, length: int, *, window: int = 64) -> Bands:
    """Return which pairs of query and key are rotated to which positions (tokens).

    Here ReRoPE: true positions up to a distance of window, no larger ones beyond. No pair may be in
    two bands, and every query must meet a key. Keyword-only parameters are the options.
    """
    plain = Frequencies(rope.inv_freq())
    query, key = torch.full((length,), window), torch.zeros(length)
    near = by_distance(length, plain, 0, window)
    far = by_distance(length, plain, window, query=query, key=key)
    return Bands(length, (near, far))
'''


def begin_method(name: str, folder: Path, text: str = FREQUENCIES) -> Path:
    """Write NAME.py; raise UserError for a name that cannot be one, or is taken."""
    if not name.isidentifier() or iskeyword(name):
        message = f"{name!r} is no name for a method; write letters, digits and _, as in my_rope."
        raise UserError(message)
    if name in names("method"):
        message = f"a method of Ropewalk is called {name!r}; choose another name."
        raise UserError(message)
    file = folder / f"{name}.py"
    if file.exists():
        message = f"{file} exists already; choose another name, or another folder with --out."
        raise UserError(message)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text.format(name=name))
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror}."
        raise UserError(message) from None
    return file
