"""Mesa-Extrapolation: chunks see themselves and the first; the last sees all (arXiv:2410.15859)."""

import math

import torch

from ropewalk.scaling import none
from ropewalk.scaling.types import Band, Bands, Frequencies, Method, Rope, frequencies_on

CODE = "soacker/Mesa-Extrapolation"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    chunk: int | None = None,
    first: int | None = None,
    push: int = 50,
    on: Method = none.frequencies,
) -> Bands | Frequencies:
    """Return a triangle of chunks, with pushed positions and log-n queries in the last one.

    The first chunk has ``first`` tokens. Each later one has ``chunk`` tokens and attends to itself
    and to the first, as if they were adjacent. The last chunk attends to all keys. In it, the last
    P = (length - 1) mod chunk tokens keep their positions. Before them, positions fall by one for
    every ``push`` tokens: token i up to e = length - P - 1 is at e - floor((e - i) / push). The
    queries of the last chunk are scaled by max(1, ln(m + 1) / ln(trained window)). Inside the
    trained window the model is unchanged.

    ``first`` is by default 100 tokens, at most a 16th of the window. ``chunk`` is by default what
    the authors' DynamicSplit gives. Their ``push`` is 50, but 200 for Vicuna and 20 for Llama 2.
    ``on`` is the method whose frequencies are used.

    Differs from the authors' code (soacker/Mesa-Extrapolation), which cuts texts inside the window
    into chunks too, and moves P with every generated token; here P is that of the whole context.
    """
    window = rope.trained_length
    start = min(100, window // 16) if first is None else first
    size = _chunk(window, length, start) if chunk is None else chunk
    if start < 1 or size < 1 or push < 1 or start + size > window:
        raise ValueError(
            "first, chunk and push must be 1 or more, and first + chunk at most the trained window"
            f" of {window} tokens, got {start}, {size} and {push}"
        )
    frequencies = frequencies_on(on, rope, length)
    if length <= window:
        return frequencies
    here = torch.arange(length)
    whole = (length - start - 1) // size  # chunks between the first and the last
    last = here >= start + whole * size
    began = torch.where(here < start, 0, start + (here - start).clamp(min=0) // size * size)
    own = began.masked_fill(last, length).minimum(here + 1)
    beginning = torch.where((here < start) | last, 0, start)
    edge = length - (length - 1) % size - 1
    pushed = torch.where(here > edge, here, edge - (edge - here) // push)
    everything = torch.where(last, here + 1, 0)
    zero, true = torch.zeros_like(here), here.double()
    parts = (
        Band(own, torch.where(last, own, here + 1), true, true, frequencies),
        Band(zero, beginning, (start + here - began).double(), true, frequencies),
        Band(zero, everything, pushed.double(), pushed.double(), frequencies),
    )
    scale = ((true + 1).log() / math.log(window)).clamp(min=1)
    return Bands(length, parts, scale.masked_fill(~last, 1.0))


def _chunk(window: int, length: int, first: int) -> int:
    """Return the authors' chunk of a text: chunks that fill the window, or equal shorter ones.

    Room is left for 50 new tokens and a last chunk of 512; smaller windows have as small a share.
    """
    new, end, rest = (
        min(50, window // 32 or 1), min(512, window // 4), min(200, window // 8)
    )  # fmt: skip
    room, most = length + new - end - first, max(1, window - 2 * first)
    count, left = divmod(room, most)
    return most if left < rest else max(1, room // (count + 1))
