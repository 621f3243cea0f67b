"""bands: what it does and where it comes from, in one line."""

import torch

from ropewalk.scaling import Bands, Frequencies, Rope, by_distance


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
