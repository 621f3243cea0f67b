"""Define how much the engine computes at a time."""

from __future__ import annotations

from dataclasses import dataclass

HALVINGS, LEAST_CHUNK = 4, 256
ROWS = 32  # a chunk is a multiple of this on a CPU: odd ends have other bits
OTHER = 2048  # most rows of a chunk where attention is not plain
LEAST_HEAD_ROWS = 64  # fewer rows read the whole head's weights for too little work


@dataclass(frozen=True)
class Sizes:
    """Tokens of one pack, rows of a layer at once, bytes of its temporaries and of float32 logits.

    They change memory and speed, and no bit of a float32 result on a CPU. ``chunk`` is a multiple
    of 32. The rows of a text's first chunk need no mask, with which attention takes 1.3 to 1.8
    times as long: a chunk is as long as its temporaries (``layer``) allow.
    """

    pack: int = 8192
    chunk: int = 32_768
    layer: int = 512 * 2**20
    logits: int = 16 * 2**20

    @property
    def smaller(self) -> tuple[Sizes, ...]:
        """These sizes, and each time half as much, of rows a quarter, down to the least."""
        least = min(self.chunk, LEAST_CHUNK)
        return tuple(
            Sizes(
                self.pack >> n, max(self.chunk >> 2 * n, least), self.layer >> n, self.logits >> n
            )
            for n in range(HALVINGS + 1)
        )

    @property
    def least(self) -> Sizes:
        """The smallest sizes, for a question that ran out of memory with these."""
        return self.smaller[-1]

    def layer_rows(self, each: int, *, causal: bool) -> int:
        """Return how many rows a layer computes at once, of which each takes ``each`` bytes.

        ``causal`` says that attention is plain: other kernels gain nothing from long chunks.
        """
        most, least = self.chunk if causal else min(self.chunk, OTHER), LEAST_CHUNK
        return min(most, max(least, self.layer // each // ROWS * ROWS))

    def head_rows(self, vocabulary: int) -> int:
        """Return how many rows the head computes at once."""
        return max(LEAST_HEAD_ROWS, self.logits // (4 * vocabulary))
