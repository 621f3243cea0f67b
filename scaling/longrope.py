"""LongRoPE: channels divided by searched factors, a short or a long list (arXiv:2402.13753)."""

import math
from collections.abc import Mapping

import torch

from ropewalk.scaling._files import read_table
from ropewalk.scaling.types import Frequencies, PerLayerFrequencies, Rope, factor_or_stretch

CODE = "microsoft/LongRoPE"  # of the authors, on GitHub


def frequencies(
    rope: Rope, length: int, *, factors: str | None = None, factor: float | None = None
) -> Frequencies | PerLayerFrequencies:
    """Return inv_freq / short_factor up to the trained length, / long_factor above it.

    ``factors`` is the path of a JSON file with the lists ``short_factor`` and ``long_factor``, one
    number per channel pair, with Hugging Face's names. By default the checkpoint's own lists are
    used. A file with a list ``layers`` has one such table per layer, and next to it their common
    values.

    The attention factor is the table's ``attention_factor``. Without one, it is
    sqrt(1 + ln(s) / ln(trained_length)) at every length, where s is ``factor``, or else the table's
    ``factor``, or else the stretch. The method is not ``none`` at stretch 1, unless the short list
    is all 1.

    Differs from the paper, which leaves the first tokens unscaled; frequencies cannot (its table
    11, untuned Llama-2: perplexity 7.22 with and 7.28 without at 16384 tokens, 11.51 and 13.00 at
    32768). Differs from transformers, where an input that outgrows the window changes lists.
    """
    table = rope.shipped if factors is None else read_table(factors, "factors")
    if "layers" not in table:
        return _of(rope, length, table, factors, factor)
    layers = table["layers"]
    if not isinstance(layers, list) or {isinstance(one, dict) for one in layers} != {True}:
        raise ValueError(f"layers must be a list of tables, one per layer, in {factors}")
    tables = [{**table, **one} for one in layers]
    return PerLayerFrequencies(tuple(_of(rope, length, one, factors, factor) for one in tables))


def _of(
    rope: Rope, length: int, table: Mapping[str, object], given: str | None, factor: float | None
) -> Frequencies:
    """Return the frequencies of one table."""
    if not {"short_factor", "long_factor"} <= table.keys():
        where = "the checkpoint ships none" if given is None else f"{given} has none"
        raise ValueError(
            f"longrope needs a searched table, and {where}: "
            "give factors=PATH, a JSON file with short_factor and long_factor"
        )
    pairs = rope.rotary_dim // 2
    short, long = (_factors(table, name, pairs) for name in ("short_factor", "long_factor"))
    searched = torch.tensor(long if length > rope.trained_length else short, dtype=torch.float32)
    shipped = _number(table, "factor") if factor is None else None
    scale = factor_or_stretch(factor, rope, length) if shipped is None else shipped
    attention = _number(table, "attention_factor")
    if attention is None:
        gain = math.log(max(scale, 1.0)) / math.log(rope.trained_length)
        attention = math.sqrt(1 + gain)
    return Frequencies(1.0 / (searched * rope.tokens_per_radian()), attention)


def _factors(table: Mapping[str, object], name: str, pairs: int) -> list[float]:
    """Return a list of the table: a positive number per channel pair."""
    values = table[name]
    if not isinstance(values, list | tuple) or len(values) != pairs:
        got = f"{len(values)} values" if isinstance(values, list | tuple) else repr(values)
        raise ValueError(
            f"{name} must be a list of {pairs} numbers, one per channel pair, got {got}"
        )
    for value in values:
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive numbers, got {value!r}")
    return list(values)


def _number(table: Mapping[str, object], name: str) -> float | None:
    """Return a number of the table, None if it is missing."""
    value = table.get(name)
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError(f"{name} must be a number, got {value!r}")
