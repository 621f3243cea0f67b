"""What a race answers: a table with a row a candidate, and one paragraph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.export._line import serving
from harness.plugins import FUNCTION
from harness.recommend.chances import UNSEEN, Array
from harness.recommend.race import (
    BUDGET,
    FAILED,
    MARGIN,
    ONE,
    OPEN,
    PRICE,
    WORSE,
    Standing,
)
from harness.recommend.run import Race
from harness.reports.stats.paired import ENOUGH, of_means
from harness.reports.writing.sentences import counted, listed, signed
from harness.sweep.pace import duration
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
    ``price`` by which it is higher inside the window than the plain model's: of a method that
    ``follows`` the length, that of its form there. ``low`` and ``high`` are 95 % intervals of each
    alone.
    """
    gone = {one.name: one for one in standing.dropped}
    rows: list[dict[str, Any]] = []
    for name, same in race.alike.items():
        one = gone.get(name)
        count = one.documents if one else standing.documents
        verdict = VERDICTS[one.why] if one else _verdict(name, standing)
        row: dict[str, Any] = {"scaling": name, "same": ", ".join(same[1:]) or None}
        row |= {"verdict": verdict, "by": one.by or None if one else None, "documents": count}
        row["follows"] = race.follows(name)
        rows.append(row | _numbers(race, standing, name, count))
    for name, reason in race.failed.items():
        if name not in gone:
            rows.append({"scaling": name, "verdict": "failed", "documents": 0})
        next(row for row in rows if row["scaling"] == name)["reason"] = reason
    place = {SOLE: 0, LEADS: 0, CLOSE: 1, VERDICTS[OPEN]: 2, VERDICTS[FAILED]: 4}
    columns = ["scaling", "same", "verdict", "by", "documents", "perplexity", "low", "high"]
    columns += [f"{kind}{end}" for kind in KINDS for end in ("", "_low", "_high")]
    found = pd.DataFrame(rows).reindex(columns=[*columns, "follows", "reason"])
    order = found["verdict"].map(place).fillna(3)
    by = found.assign(order=order).sort_values(["order", "worse"], kind="stable")
    return by.drop(columns="order").reset_index(drop=True)


def readable(made: pd.DataFrame, race: Race) -> pd.DataFrame:
    """Return the table for people: differences alone, for documents differ more than methods."""
    return pd.DataFrame({
        "scaling": made["scaling"]
        + made["same"].map(lambda n: f" = {n}" if isinstance(n, str) else ""),
        f"above the first at {race.target}": _spans(made, "worse"),
        f"price at {race.window}": _spans(made, "price")
        + made["follows"].map({True: " †"}).fillna(""),
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


def footnote(race: Race, made: pd.DataFrame) -> str:
    """Say whose price is not that of a server; empty where there is none."""
    if not made["follows"].eq(True).any():
        return ""
    return (
        f"†: it changes with the length of the input. The price is that of its form at "
        f"{race.window:,} tokens, not of that at {race.target:,}, which a server keeps."
    )


def next_line(race: Race, standing: Standing) -> tuple[str, str]:
    """Return the command that writes the recommended method for an engine, and what to say of it.

    Both are empty where the model or the method is an object of this process.
    """
    plan = race.plan
    method = {method.label: method for method in plan.methods}[standing.leader]
    if method.digest == FUNCTION or plan.checkpoint.loaded is not None:
        return "", ""
    found = race.cell(standing.leader, race.target).rotation
    assert found is not None  # of a candidate that has numbers
    return serving(plan.spec, method.given, found, race.target)


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
    count, documents = standing.everyone, counted(standing.documents, "documents")
    leader = f"`{standing.leader}`"
    failed = any(one.why == FAILED for one in standing.dropped)
    others = "every other with a number" if failed else "every other"
    if standing.sole:
        return (
            f"Use {leader}: of {count} candidates it has the lowest perplexity at {at}, on "
            f"{documents}, and {others} is surely worse there or costs too much in the window."
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
    row, bound = made.iloc[0], race.rules.tolerance
    high, limit = row["price_high"], f"the tolerance of {100 * bound:.3g} %"
    if race.free(row["scaling"]):
        told = "it is the model itself and costs nothing"
        if race.ships:
            told = "it is the model without the scaling it ships, above which prices are told"
    else:
        told = f"it costs {signed(row['price'], row['price_low'], high)} of the perplexity"
        if row["price"] > bound:
            told += f", which is more than {limit}"
        else:
            sure = pd.notna(high) and high <= bound
            told += f", {'within' if sure else 'not surely within'} {limit}"
    if not row["follows"]:
        return f"Inside the window ({race.window:,} tokens) {told}."
    return (
        f"It changes with the length of the input: computed anew for each length, inside the window"
        f" ({race.window:,} tokens) {told}. A server keeps one form for all lengths, as an export "
        f"has it, that of {race.target:,} tokens; the price of that was not measured."
    )


def _doubt(race: Race, standing: Standing) -> str:
    """Say what the race does not tell, and how often it errs."""
    told, count = [], standing.documents
    others = [name for name in standing.left if name != standing.leader]
    worse = [one for one in standing.dropped if one.why == WORSE]
    early = [one.name for one in worse if one.documents < ENOUGH]
    if others and standing.ended != MARGIN:
        told.append(f"Not distinguished from it: {listed(others)}.")
    if standing.open:
        told.append(f"Set aside for the budget, and not distinguished: {listed(standing.open)}.")
    if count < LEAST:
        return " ".join([*told, f"From fewer than {LEAST} documents nothing can be concluded."])
    if count < ENOUGH:
        told.append(f"{count} documents are too few to name a winner; it needs {ENOUGH}.")
    if early:
        told.append(
            f"Dropped on fewer than {ENOUGH} documents: {listed(early)}, so far behind the leader "
            f"then that one more, on which it loses {UNSEEN:g} nat a token, would not change it."
        )
    if not worse:
        return " ".join(told)
    fewest = min([count, *(one.documents for one in worse if one.documents >= ENOUGH)])
    told.append(
        f"Whichever candidate is the best, a race drops it in at most {100 * race.rules.error:.2g} "
        "% of cases, also where methods fail badly on rare documents, as long as the documents show"
        f" it on one candidate: a failure on one document in {max(2, round(fewest / LEAST))} or "
        f"fewer may be on none of {fewest}."
    )
    return " ".join(told)


def _ended(race: Race, standing: Standing) -> str:
    if standing.ended in (ONE, MARGIN):
        return ""
    if standing.ended == BUDGET or standing.open:
        only = standing.documents <= race.rules.rounds[0]
        first = " after the first round, which is always measured" if only else ""
        return f"The budget of {race.budget} ended the race{first}; --budget all goes on from here."
    return "All documents are measured: more of them would tell more."


def _spent(race: Race) -> str:
    asked, grid = len(race.asked), race.grid
    share = f"{100 * asked / grid:.0f} %"
    return (
        f"Spent: {asked:,} of the {grid:,} forwards ({share}) that measuring everything takes, in "
        f"{duration(race.seconds)}."
    )


def _spans(made: pd.DataFrame, kind: str) -> pd.Series[str]:
    """Return differences as texts; what is 0 by construction has no interval."""
    ends = made[[kind, f"{kind}_low", f"{kind}_high"]].itertuples(index=False, name=None)
    return pd.Series(
        [signed(value, low or None, high or None) for value, low, high in ends], made.index
    )
