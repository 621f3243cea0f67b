"""Define a scaling that runs transformers' own stateful rotary embedding, as it is served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from scaling._types import Frequencies


@dataclass(frozen=True, eq=False)
class StatefulRope:
    """The library's own rope type, whose frequencies follow the tokens it has seen.

    ``rope_parameters`` are added to the config's own (``rope_type`` and its parameters),
    ``trained_length`` is its window in tokens; ``frequencies`` those it would have if all tokens
    of the context were known at once. The prompt up to the first target is read in one forward,
    the targets one token at a time: keys cached early keep the frequencies of their time.
    """

    rope_parameters: Mapping[str, object]
    trained_length: int
    frequencies: Frequencies

    @property
    def fingerprint(self) -> str:
        """Return a hash of the parameters and of the frequencies at the whole context."""
        given = sorted(self.rope_parameters.items())
        numbers = json.dumps([self.trained_length, given, self.frequencies.fingerprint])
        return hashlib.sha256(f"served {numbers}".encode()).hexdigest()[:16]
