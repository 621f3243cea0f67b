"""Dynamic NTK: NTK-aware at factor * length / trained_length - (factor - 1) (emozilla)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

from ropewalk.scaling import ntk
from ropewalk.scaling.types import Band, Bands, Frequencies, Rope, Rotation, factor_or_stretch

CODE = "huggingface/transformers"  # of the authors, on GitHub


def bands(
    rope: Rope,
    length: int,
    *,
    factor: float = 1.0,
    mode: Literal["frozen", "per_query", "transformers"] = "frozen",
    block: int = 32,
) -> Bands | Frequencies | StatefulRope:
    """Return the frequencies of the given length, or the bands of a growing length.

    - ``frozen`` (see ``frequencies``) uses those of the whole context for every query and key.
    - ``per_query`` uses, for query m and all of its keys, the frequencies of the query's own
      length m + 1, in steps of ``block`` tokens rounded up. This is correct step-by-step decoding
      under any chunking, and exact with ``block`` 1. Rotating the cached keys again is not enough
      beyond one layer: keys of deeper layers were computed from hidden states with an older base.
      Reading eight windows takes twice the time of a single base with ``block`` 32, and 28 times
      with 1.
    - ``transformers`` is the library's own stateful type, run as it is served: the prompt in one
      forward pass, then token by token. Keys keep the base they were cached with.
    """
    if block < 1:
        raise ValueError(f"block must be 1 token or more, got {block}")
    if mode == "frozen" or length <= rope.trained_length:
        return frequencies(rope, length, factor=factor)
    whole = frequencies(rope, length, factor=factor)
    if mode == "transformers":
        parameters = {"rope_type": "dynamic", "factor": float(factor)}
        return StatefulRope(parameters, rope.trained_length, whole)
    here, positions = torch.arange(length), torch.arange(length, dtype=torch.float64)
    edges = [0, rope.trained_length]
    edges += [*range((rope.trained_length // block + 1) * block, length, block), length]
    parts = []
    for start, stop in pairwise(edges):
        own = frequencies(rope, -(-stop // block) * block if start else 1, factor=factor)
        rows = here[start:stop]
        query, key = positions[start:stop], positions[:stop]  # views: one row of keys for all
        parts.append(Band(torch.zeros_like(rows), rows + 1, query, key, own, start))
    return Bands(length, tuple(parts)).plainest()


def frequencies(rope: Rope, length: int, *, factor: float = 1.0) -> Frequencies:
    """Return ntk at a scale that grows with the length; unscaled inside the trained window.

    This factor is not the ratio of target to trained length. Transformers calls it factor, others
    alpha. The scale is 1 + factor * (length / trained_length - 1). With a factor of 1 the method is
    ntk at the stretch. At four windows, the factors 1, 2 and 4 scale by 4, 7 and 13.

    Differs from transformers: the length is the given one for the whole forward pass. There the
    base follows the longest input so far and is reset only below the window: Llama-2 reads 8192
    tokens after 32768 at base 82685 instead of 20221. Its window is ``max_position_embeddings``.
    It computes with the length in float32, which changes frequencies by up to 4e-6.
    """
    alpha = factor_or_stretch(factor, rope, length)
    if length <= rope.trained_length:
        return ntk.frequencies(rope, length, factor=1.0)
    scale = alpha * length / rope.trained_length - (alpha - 1)
    return ntk.frequencies(rope, length, factor=scale)


@dataclass(frozen=True, eq=False)
class StatefulRope(Rotation):
    """The library's own rope type, whose frequencies follow the tokens it has seen.

    ``rope_parameters`` are added to the config's own (``rope_type`` and its parameters),
    ``trained_length`` is its window in tokens; ``frequencies`` are those it would have if all
    tokens of the context were known at once. The prompt up to the first target is read in one
    forward pass, the targets one token at a time: keys keep the frequencies they were cached with.
    """

    rope_parameters: Mapping[str, object]
    trained_length: int
    frequencies: Frequencies
    stateful = True

    @property
    def fingerprint(self) -> str:
        """A hash of the parameters, the window and the frequencies."""
        parameters = sorted(self.rope_parameters.items())
        numbers = json.dumps([self.trained_length, parameters, self.frequencies.fingerprint])
        return hashlib.sha256(f"served {numbers}".encode()).hexdigest()[:16]

    def frequency_sets(self) -> tuple[Frequencies, ...]:
        """Return those of the whole context."""
        return (self.frequencies,)

    def to_record(self) -> dict[str, Any]:
        """Return the frequencies, and the parameters as ``served``."""
        return super().to_record() | {"served": dict(self.rope_parameters)}
