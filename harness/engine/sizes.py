"""Define how much the engine computes at a time."""

from __future__ import annotations

from dataclasses import dataclass

HALVINGS, LEAST_CHUNK = 4, 256
LEAST_HEAD_ROWS = 64  # fewer rows read the whole head's weights for too little work


@dataclass(frozen=True)
class Sizes:
    """Tokens of one pack, rows of a layer at once, bytes of float32 logits at once.

    They change memory and speed, and no bit of a float32 result on a CPU. ``chunk`` is a multiple
    of 32.
    """

    pack: int = 8192
    chunk: int = 2048
    logits: int = 16 * 2**20

    @property
    def smaller(self) -> tuple[Sizes, ...]:
        """These sizes, and each time half as much, down to the least."""
        chunk = min(self.chunk, LEAST_CHUNK)
        return tuple(
            Sizes(self.pack >> n, max(self.chunk >> n, chunk), self.logits >> n)
            for n in range(HALVINGS + 1)
        )

    @property
    def least(self) -> Sizes:
        """The smallest sizes, for a question that ran out of memory with these."""
        return self.smaller[-1]

    def head_rows(self, vocabulary: int) -> int:
        """Return how many rows the head computes at once."""
        return max(LEAST_HEAD_ROWS, self.logits // (4 * vocabulary))
