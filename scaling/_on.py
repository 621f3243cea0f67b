"""Resolve ``on=``: the method that another one builds on."""

from __future__ import annotations

from collections.abc import Callable

from scaling.types import Bands, Frequencies, PerLayerFrequencies, Rope, Rotation, StatefulRope

# A method with its options filled in. On the command line ``on=yarn``, ``on=yarn:factor=8`` or
# ``on=./mine.py:kept=0.6+strength=2`` (a plus joins options, where a comma ends the outer one).
Method = Callable[[Rope, int], Rotation]


def found_on(on: Method, rope: Rope, length: int) -> Frequencies | Bands:
    """Return a method's result at a length.

    Raises ValueError for one that is run as served, and for frequencies of each layer.
    """
    found = on(rope, length)
    if isinstance(found, StatefulRope):
        raise ValueError(f"on={_name(on)} only runs as it is served; nothing can build on it")
    if isinstance(found, PerLayerFrequencies):
        raise ValueError(
            f"on={_name(on)} gives frequencies for each layer; nothing can build on it"
        )
    return found


def frequencies_on(on: Method, rope: Rope, length: int) -> Frequencies:
    """Return the frequencies of a method; raise ValueError for one that moves positions itself."""
    found = found_on(on, rope, length)
    if not isinstance(found, Frequencies):
        raise ValueError(
            f"on must name a method that gives frequencies, {_name(on)!r} moves positions"
        )
    return found


def _name(on: Method) -> str:
    inner = getattr(on, "func", on)  # of a partial
    return str(getattr(inner, "__module__", on)).rpartition(".")[2]
