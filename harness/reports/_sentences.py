"""Numbers in sentences: lengths, scores, differences, lists of names; the titles of tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context
from typing import Any

import pandas as pd

from ropewalk.harness.stats.cells import once
from ropewalk.harness.stats.measure import SHARES

SMALL = 0.1  # scores below it, as divergences in nats, differ by less than a hundredth
LARGE = 1_000_000  # bounds above it are written with a power of ten
MOST_NAMED = 6  # methods in one list; the table has them all


def text(cell: Mapping[Any, Any], digits: int | None = None) -> str:
    """Return "12.3 [11.0, 13.9]", "85 % [76, 91]", or the status where there is no score.

    Unset, ``digits`` after the point are as many as the size of the score calls for.
    """
    score, status = cell["score"], cell["status"]
    if pd.isna(score):
        return str(status).replace("_", " ")
    scale, unit = (100, " %") if cell["metric"] in SHARES else (1, "")
    if digits is None:
        size = abs(score)
        digits = 0 if unit or size >= 100 else 1 if size >= 10 else 2 if size >= SMALL else 4
    value = f"{scale * score:.{digits}f}{unit}"
    if pd.notna(cell["low"]) and pd.notna(cell["high"]):
        value += f" [{scale * cell['low']:.{digits}f}, {scale * cell['high']:.{digits}f}]"
    return value if status == "ok" else f"{value} ({status.split(' ok')[0]})"


def bound(regret: float | None, *, relative: bool, metric: str) -> str:
    """Return a regret rounded up: "2.2 %", "13 pp" (percentage points), or "" without a bound."""
    if regret is None:
        return ""
    shown = unit(relative=relative, metric=metric)
    return f"{rounded_up(100 * regret if shown else regret)}{shown}"


def unit(*, relative: bool, metric: str) -> str:
    """Return the unit of a difference: percent, percentage points, or that of the score itself."""
    return " %" if relative else " pp" if metric in SHARES else ""


def percent(share: float) -> str:
    """Return a share in whole percent; halves are rounded up."""
    return f"{math.floor(round(100 * share, 6) + 0.5)}"


def at_most(share: float) -> str:
    """Return a bound that is a share, rounded up: "2.2 %"."""
    return f"{rounded_up(100 * share)} %"


def rounded_up(value: float) -> str:
    """Return a bound of 0 or more in two digits, or as a whole number; it is not below the value.

    An error of the last binary digit is no reason to round up: 5.000000000000001 is "5".
    """
    whole = math.floor(math.log10(value)) + 1 if 1 <= value < LARGE else 2
    rounding = Context(prec=max(2, whole), rounding=ROUND_CEILING)
    rounded = rounding.create_decimal(f"{value:.9g}").normalize()
    return f"{rounded:,f}" if value < LARGE else f"{rounded:.1e}"


def signed(
    value: float | None, low: float | None = None, high: float | None = None, unit: str = " %"
) -> str:
    """Return a difference as tables have it: "+1.2 % [−0.3, +2.6]"; "" where it is not known.

    With a ``unit``, % or percentage points, the numbers are shares.
    """
    texts = []
    for end in (value, low, high):
        if end is not None and not pd.isna(end):
            share = f"{100 * end:+.1f}" if abs(end) < 0.1 else f"{100 * end:+,.0f}"
            written = share if unit else f"{end:+.3g}"
            texts.append("0" if end == 0 else written.replace("-", "−"))
    around = f" [{texts[1]}, {texts[2]}]" if len(texts) == 3 else ""
    return f"{texts[0]}{unit}{around}" if texts else ""


def change(row: Mapping[Any, Any], name: str = "change") -> str:
    """Return the difference of this name in a row, with its interval."""
    shown = unit(relative=row["relative"], metric=row["metric"])
    return signed(row[name], row[f"{name}_low"], row[f"{name}_high"], shown)


def listed(names: Sequence[str]) -> str:
    """Return "`a`, `b` and `c`"; of many the first and how many more."""
    marked = [f"`{name}`" for name in names]
    if len(marked) > MOST_NAMED:
        marked[MOST_NAMED - 1 :] = [f"{len(marked) - MOST_NAMED + 1} more"]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} and {marked[-1]}"


def counted(count: int, nouns: str) -> str:
    """Return "1 document" or "3 documents"."""
    return f"{count:,} {nouns.removesuffix('s') if count == 1 else nouns}"


def are(count: int) -> str:
    """Return the verb of so many: "is" or "are"."""
    return "is" if count == 1 else "are"


MARKUP = re.compile(r"([\\`*<|~$]|](?=[(\[:]))")


def markdown_text(text: object) -> object:
    """Return a text with Markdown's signs escaped; anything else is returned unchanged.

    A ``_`` inside a word, a ``#`` inside a line and brackets without a link are no markup.
    """
    return MARKUP.sub(r"\\\1", " ".join(text.split())) if isinstance(text, str) else text


def markdown_sentence(text: str) -> str:
    """Return a sentence whose signs Markdown takes as they are; `names` in backticks stay code."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


PROTOCOLS = {
    "tail": "Perplexity on the last {:,} tokens",
    "prefix": "Perplexity on whole windows",
    "sliding": "Perplexity in a sliding window",
    "disjoint": "Perplexity in disjoint windows",
    "overlapping": "Perplexity in overlapping windows",
}
SPELLED = {"niah": "NIAH", "ruler": "RULER", "qa": "QA", "window_kl": "KL divergence per token"}


@once
def titles(frame: pd.DataFrame) -> dict[str, str]:
    """Return a title for every task label of a frame; its options where two would be alike."""
    groups = frame.groupby("task", sort=False)
    named = {str(label): _title(str(label), rows) for label, rows in groups}
    every = list(named.values())
    for label, title in named.items():
        if every.count(title) > 1:
            named[label] = f"{title} ({label.partition(':')[2] or 'default'})"
    return named


def _title(label: str, rows: pd.DataFrame) -> str:
    family, metric = label.partition(":")[0], str(rows["metric"].iloc[0])
    protocols = rows["protocol"].dropna() if "protocol" in rows else pd.Series(dtype=str)
    if metric == "perplexity" and len(protocols) and protocols.iloc[0] in PROTOCOLS:
        # With slide, the windows of shorter lengths share these targets.
        longest = rows[rows["length"] == rows["length"].max()]
        targets = longest["weight"].mode() if "weight" in rows else pd.Series(dtype=float)
        title = PROTOCOLS[protocols.iloc[0]]
        return title.format(int(targets.iloc[0])) if len(targets) else title.replace(" {:,}", "")
    name = SPELLED.get(family, family.replace("_", " ").capitalize())
    return name if metric == family else f"{name} {metric.replace('_', ' ')}"
