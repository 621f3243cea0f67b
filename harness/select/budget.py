"""What a race may spend: a time, or a number of forwards."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.errors import UserError
from harness.sweep.pace import duration

WRITTEN = re.compile(r"([1-9][0-9]{0,8}(?:\.[0-9]{1,3})?) ?(h|min|s|)")
SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0}


@dataclass(frozen=True)
class Budget:
    """The most that a race may take, in seconds or in forwards at the target length."""

    most: float = math.inf
    timed: bool = False

    def __str__(self) -> str:
        return "no limit" if math.isinf(self.most) else self.told(self.most)

    def told(self, cost: float) -> str:
        """Return a part of it in words, rounded up."""
        return duration(math.ceil(cost)) if self.timed else f"{math.ceil(cost):,} forwards"


def read_budget(text: str | None, default: float) -> Budget:
    """Return the budget that is written, or the default in forwards; raise UserError for others."""
    if text is None:
        return Budget(default)
    if text == "all":
        return Budget()
    found = WRITTEN.fullmatch(text)
    if found is None or (not found[2] and "." in found[1]):
        raise UserError(
            f"--budget {text!r} is invalid: write 2h, 15min, a number of forwards, or all."
        )
    return Budget(float(found[1]) * SECONDS.get(found[2], 1.0), timed=bool(found[2]))
