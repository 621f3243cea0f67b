"""What a search found: a file that ``--scaling`` reads, a table, and what to make of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.files import replacing
from harness.methods.resolve import follows, resolve
from harness.plugins import load
from harness.reports.writing.sentences import counted, listed, signed
from harness.reports.writing.tables import page
from harness.select.losses import difference, regrets, score
from harness.select.search import Trial
from harness.select.tuning import Tuning
from harness.stats.paired import Difference

FOUND, REPORT = "found.json", "tune.md"
Table = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One method: its losses in nats per target on both halves, and its difference there.

    ``regret`` is how much worse than the best of all it is at most on what was held out.
    """

    scaling: str
    search: float
    held: float
    on_search: Difference | None = None
    on_held: Difference | None = None
    regret: float | None = None


def rows(tuning: Tuning, label: str) -> list[Row]:
    """Return the found method, then the closed-form ones, the best on the search documents first.

    The differences are from that best one, and None for itself and where one has no number. A
    closed-form method that is the found one is in its row alone.
    """
    halves = (tuning.split.search, tuning.split.held)
    every = {
        name: [tuning.losses(name, units) for units in halves] for name in (label, *tuning.closed)
    }
    others = (name for name in tuning.closed if name != label)
    order = sorted(others, key=lambda name: score(every[name][0]))
    made = []
    held_out = {name: found for name in (label, *order) if (found := every[name][1])}
    bounds = dict(zip(held_out, regrets(list(held_out.values())) or [], strict=False))
    for name in (label, *order):
        pairs = zip(every[name], every[order[0]], strict=True)
        apart = [difference(one, best) if one and best else None for one, best in pairs]
        search, held = (score(one) for one in every[name])
        told = apart if name != order[0] else [None, None]
        made.append(Row(name, search, held, told[0], told[1], bounds.get(name)))
    return made


def write(tuning: Tuning, found: Trial, table: Sequence[Row], trials: int) -> Path:
    """Write found.json, which ``--scaling`` reads, and return its path."""
    path = tuning.folder / FOUND
    inner = Path(found.method)
    whole: Table = (
        json.loads(inner.read_text(encoding="utf-8"))
        if inner.suffix == ".json"
        else {"scaling": found.method}
    )
    whole |= {
        "model": tuning.plan.checkpoint.name,
        "length": tuning.length,
        "task": tuning.plan.tasks[0].label,
        "minimised": f"loss of the {tuning.kind}, nats each",
        "trials": trials,
        "search": table[0].search,
        "held_out": table[0].held,
    }
    with replacing(path) as new:
        new.write((json.dumps(whole, indent=1) + "\n").encode())
    return path


def shown(tuning: Tuning, table: Sequence[Row]) -> pd.DataFrame:
    """Return the table as texts."""
    best = table[1].scaling
    name = {"targets": "perplexity", "key tokens": "perplexity of key tokens"}
    metric = name.get(tuning.kind, "perplexity of the answers")
    return pd.DataFrame(
        {
            "scaling": row.scaling,
            f"{metric}, search": perplexity(row.search),
            "held out": perplexity(row.held),
            f"less {best}, search": _apart(row.on_search, ends=False),
            f"less {best}, held out [95 %]": _apart(row.on_held),
        }
        for row in table
    )


def words(tuning: Tuning, found: Trial, table: Sequence[Row], trials: int) -> list[str]:
    """Say what was found, whether it holds on held-out documents, and how much of it is lost."""
    first, best = table[0], table[1].scaling
    other = "other " * (first.scaling in tuning.closed)
    units = "trials" if tuning.kind == "answers" else "documents"
    searched, held = (
        counted(len(half), units) for half in (tuning.split.search, tuning.split.held)
    )
    tried = f"{counted(trials, 'points')}, number {found.number}"
    told = [f"{found.method} is the best of {tried}, on {searched}."]
    if first.on_held is None or first.on_search is None:
        return [*told, f"It or {best} has no number on all of them: nothing is compared."]
    gains = [apart.value for apart in (first.on_search, first.on_held)]
    low, high = first.on_held.low, first.on_held.high
    told.append(
        f"There its perplexity differs by {signed(gains[0])} from that of {best}, the best {other}"
        f"closed-form method; on the {held} held out by {_apart(first.on_held)}. The gap "
        f"between the two is {100 * abs(gains[1] - gains[0]):.1f} percentage points."
    )
    if low is None or high is None:
        return [*told, f"Use {best}: {held} held out are too few for an interval."]
    use = first if high < 0 else table[1]
    verdict = "lower" if high < 0 else "higher" if low > 0 else "not significantly different"
    bound = "" if use.regret is None else (
        f" On what was held out its perplexity is at most {100 * use.regret:.1f} % above that of "
        f"the best of {len(table)} methods (95 %)."
    )  # fmt: skip
    return [*told, f"Held out, the found method is {verdict}: use {use.scaling}.{bound}"]


def served(given: str, tuning: Tuning) -> str:
    """Return a method with the factor that a server keeps, where it takes that of each length."""
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    fixed = f"{given}{',' if ':' in given else ':'}factor={rope.stretch(length):.15g}"
    try:
        found = resolve(load("method", fixed), rope, length)
    except UserError:  # it has no factor, or one already
        return given
    return (
        fixed
        if found.fingerprint == resolve(load("method", given), rope, length).fingerprint
        else given
    )


def unpriced(methods: Sequence[str], tuning: Tuning) -> list[str]:
    """Say of which methods a run inside the window does not tell the price that a server pays."""
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    window = rope.trained_length
    known = [load("method", given) for given in methods] if length > window else []
    changing = [
        method.label for method in known
        if follows(resolve(method, rope, length), resolve(method, rope, window), window)
    ]  # fmt: skip
    if not changing:
        return []
    return [
        f"It is not that of {listed(changing)} as a server keeps it: measured inside the window is "
        f"the form for {window:,} tokens, served for all lengths that for {length:,}."
    ]


def report(tuning: Tuning, table: Sequence[Row], told: Sequence[str]) -> Path:
    """Write the page with the sentences and the table, and return its path."""
    path = tuning.folder / REPORT
    title = f"{tuning.plan.tasks[0].label} at {tuning.length} tokens"
    with replacing(path) as new:
        new.write(page([({title: shown(tuning, table)}, told)]).encode())
    return path


def perplexity(nats: float) -> str:
    """Return a loss in nats a target as a perplexity of four digits."""
    if not math.isfinite(nats):
        return "no number"
    return f"{math.exp(min(nats, 700.0)):#.4g}".removesuffix(".")


def _apart(found: Difference | None, *, ends: bool = True) -> str:
    if found is None:
        return ""
    return signed(found.value, *((found.low, found.high) if ends else ()))
