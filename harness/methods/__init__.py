"""Find, resolve and check methods; the result of one check."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "failed", "note"]


@dataclass(frozen=True)
class Finding:
    """One line of a result. A ``note`` is information: many good methods differ in it."""

    about: str
    verdict: Verdict
    text: str
