"""Compare what the page of a study states with what its samples give."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from scipy import stats

from ropewalk.harness.stats.paired import Difference

# Code, addresses of links, and numbers that belong to a name, such as float32 or NTK-aware.
NO_NUMBER = re.compile(r"`[^`]*`|\]\([^)]*\)|[A-Za-z_]+-?\d[\w.]*|\d+[A-Za-z_]\w*")
NUMBER = re.compile(r"\d(?:[\d,.]*\d)?")
INTERVAL = re.compile(r"−?[\d.]+ (?:%|times|points) \[[^]]*\]")


def faults(study: Path, claims: Iterable[str], given: Iterable[str]) -> list[str]:
    """Return the claims that a study's two pages lack, and each of their numbers without support.

    Claims are computed tables, values and sentences; given are numbers that do not come from
    samples. The text may repeat any interval of a claim, with or without a plus sign.
    """
    pages = (study / name for name in ("README.md", "details.md"))
    page = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    known = [flat(claim) for claim in claims]
    text = flat(re.sub(r"```.*?```|^\d+\. ", " ", page, flags=re.S | re.M))
    lacking = [claim for claim in known if claim not in text]
    for claim in sorted(known, key=len, reverse=True):
        text = text.replace(claim, " § ")
    text = unsigned(text)
    for interval in INTERVAL.findall(unsigned(" ".join(known))):
        text = text.replace(interval, " § ")
    text = NO_NUMBER.sub(" ", text)
    found = (match for match in NUMBER.finditer(text) if match.group() not in set(given))
    return lacking + [text[max(0, one.start() - 50) : one.end() + 20] for one in found]


def unsigned(text: str) -> str:
    return text.replace("+", "")


def flat(text: str) -> str:
    return " ".join(text.split())


def number(value: float, digits: int | None = None) -> str:
    """Return 100 times a value, with one decimal where it is below 10 in size."""
    value *= 100
    digits = int(abs(value) < 9.95) if digits is None else digits
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def signed(value: float, digits: int | None = None) -> str:
    text = number(value, digits)
    return f"+{text}" if float(text.replace("−", "-")) > 0 else text


def change(value: float, low: float, high: float, digits: int | None = None) -> str:
    """Return a relative change with its interval: in per cent, or as a multiple from double on."""
    if value > 1:
        return f"{1 + value:.1f} times [{1 + low:.1f}, {1 + high:.1f}]"
    first, *rest = (signed(one, digits) for one in (value, low, high))
    return f"{first} % [{', '.join(rest)}]"


def ends(difference: Difference) -> tuple[float, float, float]:
    assert difference.low is not None
    assert difference.high is not None
    return difference.value, difference.low, difference.high


def over_seeds(logarithms: pd.Series[float]) -> str:
    """Return the mean change of ratios, given as logarithms, with Student's t over seeds."""
    half = stats.t.ppf(0.975, len(logarithms) - 1) * stats.sem(logarithms)
    mean = logarithms.mean()
    return change(*(math.expm1(end) for end in (mean, mean - half, mean + half)))


def table(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
