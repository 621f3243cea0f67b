"""What a race answers: a table with a row a candidate, and one paragraph."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import pandas as pd

from harness.recommend.race import (
    BUDGET,
    FAILED,
    MARGIN,
    ONE,
    OPEN,
    PRICE,
    WORSE,
    Array,
    Standing,
)
from harness.recommend.run import Race
from harness.reports.stats.paired import ENOUGH, of_means
from harness.reports.writing.sentences import listed
from scaling._bands import Bands
from tasks._intervals import LEAST, ratio

SOLE, LEADS, CLOSE = "best", "lowest so far", "not distinguished"
VERDICTS = {
    WORSE: "worse", PRICE: "costs more", FAILED: "failed", OPEN: "set aside",
}  # fmt: skip
KINDS = ("worse", "price")  # of which the table has value, low and high


def table(race: Race, standing: Standing) -> pd.DataFrame:
    """Return a row a candidate, the recommended one first, then those not distinguished from it.

    ``perplexity`` is of the target length, on the ``documents`` that the candidate was measured
    on; ``worse`` is the share by which it is higher than the leader's on the same documents, and
    ``price`` by which it is higher inside the window than the plain model's. ``low`` and ``high``
    are 95 % intervals of each alone.
    """
    gone = {one.name: one for one in standing.dropped}
    rows: list[dict[str, Any]] = []
    for name, same in race.alike.items():
        one = gone.get(name)
        count = one.documents if one else standing.documents
        verdict = VERDICTS[one.why] if one else _verdict(name, standing)
        row: dict[str, Any] = {"scaling": name, "same": ", ".join(same[1:]) or None}
        row |= {"verdict": verdict, "by": one.by or None if one else None, "documents": count}
        rows.append(row | _numbers(race, standing, name, count))
    for name, reason in race.failed.items():
        if name not in gone:
            rows.append({"scaling": name, "verdict": "failed", "documents": 0})
        next(row for row in rows if row["scaling"] == name)["reason"] = reason
    place = {SOLE: 0, LEADS: 0, CLOSE: 1, VERDICTS[OPEN]: 2, VERDICTS[FAILED]: 4}
    columns = ["scaling", "same", "verdict", "by", "documents", "perplexity", "low", "high"]
    columns += [f"{kind}{end}" for kind in KINDS for end in ("", "_low", "_high")]
    found = pd.DataFrame(rows).reindex(columns=[*columns, "reason"])
    order = found["verdict"].map(place).fillna(3)
    by = found.assign(order=order).sort_values(["order", "worse"], kind="stable")
    return by.drop(columns="order").reset_index(drop=True)


def readable(made: pd.DataFrame, race: Race) -> pd.DataFrame:
    """Return the table for people: differences alone, for documents differ more than methods."""
    return pd.DataFrame({
        "scaling": made["scaling"] + made["same"].map(lambda n: f" = {n}" if n else ""),
        f"above the first at {race.target}": [_span(*row) for row in _parts(made, "worse")],
        f"price at {race.window}": [_span(*row) for row in _parts(made, "price")],
        "documents": made["documents"].astype(str),
        "verdict": made["verdict"],
    })  # fmt: skip


def paragraph(race: Race, standing: Standing, made: pd.DataFrame) -> str:
    """Say which method holds, its price, how sure this is, what is open and what was spent."""
    return " ".join(
        part for part in (
            _choice(race, standing, made), _price(race, made), _doubt(race, standing),
            _ended(race, standing), _spent(race),
        ) if part
    )  # fmt: skip


def next_line(race: Race, standing: Standing) -> str:
    """Return the command that writes the recommended method for an engine."""
    plan = race.plan
    given = {method.label: method.given for method in plan.methods}[standing.leader]
    bands = isinstance(race.cell(standing.leader, race.target).rotation, Bands)
    to = "hf-code" if bands else "transformers"
    words = ["ropewalk", "export", plan.spec.model, "--scaling", str(given)]
    return shlex.join([*words, "--length", str(race.target), "--to", to])


def _numbers(race: Race, standing: Standing, name: str, count: int) -> dict[str, float | None]:
    """Return the numbers of a candidate that was measured."""
    if name in race.failed:
        return {}
    far = race.losses((name, standing.leader), race.target, count)
    value, low, high = ratio(far[name].tolist(), [1.0] * count).exp()
    found: dict[str, float | None] = {"perplexity": value, "low": low, "high": high}
    known = race.free(name) or all(key in race.asked for key in race.keys(name, race.window, count))
    found |= _share("worse", far[name] - far[standing.leader])
    return found | (_share("price", race.price(name, count)) if known else {})


def _share(kind: str, apart: Array) -> dict[str, float | None]:
    """Return by which share perplexities differ, with its interval."""
    (found,) = of_means(apart[:, None], np.ones((len(apart), 1)), relative=True)
    return {kind: found.value, f"{kind}_low": found.low, f"{kind}_high": found.high}


def _verdict(name: str, standing: Standing) -> str:
    if name != standing.leader:
        return CLOSE
    return SOLE if standing.sole else LEADS


def _choice(race: Race, standing: Standing, made: pd.DataFrame) -> str:
    row = made.iloc[0]
    around = "" if pd.isna(row["low"]) else f" [{row['low']:.3g}, {row['high']:.3g}]"
    at = f"{race.target:,} tokens ({row['perplexity']:.3g}{around})"
    count, documents = standing.everyone, f"{standing.documents} documents"
    leader = f"`{standing.leader}`"
    if standing.sole:
        return (
            f"Use {leader}: of {count} candidates it has the lowest perplexity at {at}, on "
            f"{documents}, and every other is surely worse there or costs too much in the window."
        )
    if standing.ended == MARGIN:
        return (
            f"Use {leader}: of {count} candidates it has the lowest perplexity at {at}, on "
            f"{documents}, and all that are left differ by less than "
            f"{100 * race.rules.margin:.3g} %."
        )
    return (
        f"{leader} has the lowest perplexity of {count} candidates at {at}, on {documents}, but is"
        " not sure to be the best."
    )


def _price(race: Race, made: pd.DataFrame) -> str:
    row, limit = made.iloc[0], f"the tolerance of {100 * race.rules.tolerance:.3g} %"
    where = f"Inside the window ({race.window:,} tokens)"
    if race.follows(row["scaling"]):
        where = (
            f"It follows the length: what is exported for {race.target:,} tokens is another inside "
            f"the window, and its price is not measured. At the length of the window"
        )
    if race.free(row["scaling"]):
        return f"{where} it costs nothing: there it is the model itself."
    told = _span(row["price"], row["price_low"], row["price_high"])
    high, bound = row["price_high"], race.rules.tolerance
    if row["price"] > bound:
        return f"{where} it costs {told} of the perplexity, which is more than {limit}."
    sure = "" if pd.notna(high) and high <= bound else f", not surely within {limit}"
    return f"{where} it costs {told} of the perplexity{sure or f', within {limit}'}."


def _doubt(race: Race, standing: Standing) -> str:
    """Say what the race does not tell, and how often it errs."""
    told = []
    others = [name for name in standing.left if name != standing.leader]
    if others and standing.ended != MARGIN:
        told.append(f"Not distinguished from it: {listed(others)}.")
    if standing.open:
        told.append(f"Set aside for the budget, and not distinguished: {listed(standing.open)}.")
    if standing.documents < LEAST:
        told.append(f"From fewer than {LEAST} documents nothing can be concluded.")
    elif standing.documents < ENOUGH:
        told.append(
            f"{standing.documents} documents are too few to name a winner; it needs {ENOUGH}."
        )
    told.append(
        f"Whichever candidate is the best, a race drops it in at most "
        f"{100 * race.rules.error:.2g} % of cases, if its first documents are like the others: a "
        "failure that is rare among documents may be seen too late."
    )
    return " ".join(told)


def _ended(race: Race, standing: Standing) -> str:
    if standing.ended in (ONE, MARGIN):
        return ""
    if standing.ended == BUDGET or standing.open:
        return f"The budget of {race.budget} ended the race; --budget all goes on from here."
    return "All documents are measured: more of them would tell more."


def _spent(race: Race) -> str:
    asked, grid = len(race.asked), race.grid
    share = f"{100 * asked / grid:.0f} %"
    return (
        f"Spent: {asked:,} of the {grid:,} forwards ({share}) that measuring everything takes, in "
        f"{race.seconds / 60:.3g} min."
    )


def _parts(made: pd.DataFrame, kind: str) -> list[tuple[float, float, float]]:
    return list(made[[kind, f"{kind}_low", f"{kind}_high"]].itertuples(index=False, name=None))


def _span(value: float, low: float, high: float) -> str:
    """Return "+1.2% [−0.3, +2.6]"; empty where nothing is known."""
    if value is None or math.isnan(value):
        return ""
    if value == 0 and low in (0, None):
        return "0"
    texts = [_signed(100 * end) for end in (value, low, high) if not pd.isna(end)]
    return f"{texts[0]}%" + (f" [{texts[1]}, {texts[2]}]" if len(texts) > 1 else "")


def _signed(percent: float) -> str:
    digits = 0 if abs(percent) >= 10 else 1
    return f"{percent:+,.{digits}f}".replace("-", "−")
