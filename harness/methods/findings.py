"""The result of one check: what it is about, whether it holds, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "failed", "note"]


@dataclass(frozen=True)
class Finding:
    """One line of a result. A ``note`` is information: many good methods differ in it."""

    about: str
    verdict: Verdict
    text: str
