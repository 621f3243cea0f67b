"""What a race may spend: a time, or a number of forwards."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import UserError
from harness.sweep.pace import duration

WRITTEN = re.compile(r"([1-9][0-9]{0,8}(?:\.[0-9]{1,3})?) ?(h|min|s|)")
SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0}
SHARE = 3  # by default a race spends one part of so many of what measuring all would take
ALWAYS = 4  # candidates that may run through all documents, however few there are


@dataclass(frozen=True)
class Budget:
    """A number of forwards or of seconds that a race may take; both None: all of them."""

    forwards: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        """Return it in words."""
        if self.forwards is not None:
            return f"{self.forwards:,.0f} forwards"
        if self.seconds is not None:
            return duration(self.seconds)
        return "no limit"


def read_budget(text: str | None, grid: int, documents: int) -> Budget:
    """Return the budget that is written, by default a third of the ``grid``, in forwards.

    Raises UserError for any other text.
    """
    if text is None:
        return Budget(forwards=min(grid, max(grid / SHARE, 2 * ALWAYS * documents)))
    if text == "all":
        return Budget()
    found = WRITTEN.fullmatch(text)
    if found is None or (not found[2] and "." in found[1]):
        message = f"--budget {text!r} is no budget; write 2h, 30min, a number of forwards, or all."
        raise UserError(message)
    amount = float(found[1])
    if found[2]:
        return Budget(seconds=amount * SECONDS[found[2]])
    return Budget(forwards=amount)
