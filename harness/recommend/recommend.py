"""Recommend a method for one length: plan a race, run it, and say what came of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.plugins import FUNCTION
from ropewalk.harness.recommend.candidates import OWN, candidates_of, plan_race
from ropewalk.harness.recommend.decision import (
    MARKS,
    PERPLEXITY,
    columns,
    decision,
    score,
)
from ropewalk.harness.recommend.losses import CUT, FAR, NEAR, Losses, read_budget
from ropewalk.harness.recommend.race import BUDGET, WINNER, Race, Standing
from ropewalk.harness.reports._text import (
    at_most,
    bound,
    counted,
    csv,
    folded,
    listed,
    page,
    signed,
    text,
    unit,
)
from ropewalk.harness.reports.verdict import for_all
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.serve._export import how_to_serve
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.measure import SHARES
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
TRUNCATION, UNREACHED = "truncation", "not measured"
USE, BEST, OPEN, WORSE = "use", "best scaling", "possible", "worse"
RETRIEVAL = (
    "Retrieval tasks (niah, ruler, passkey) show whether a method uses the longer text: "
    "--task perplexity niah decides by both."
)


@dataclass(frozen=True)
class Recommendation:
    """The answer of a race.

    Attributes:
        scaling: the method to use.
        winner: whether it is significantly the best on every task.
        truncate: whether truncation to the window is significantly better on these texts.
        regret: how much worse than the best it is at most on any task (95 %), as a share of the
            perplexity or of the trials; None where there are too few for a bound.
        text: the recommendation, one line per subject.
        table: one row per task and candidate, and one for truncation.
        next: what to type to write the method for an engine, or why nothing serves it; empty for a
            model or a function of this process.
        failures: the candidates without a number, and why.
    """

    scaling: str
    winner: bool
    truncate: bool
    regret: float | None
    text: str
    table: pd.DataFrame
    next: str
    failures: dict[str, str]
    folder: Path
    files: tuple[Path, ...]

    @property
    def status(self) -> int:
        """The exit status of the command: 1 where a candidate has no number."""
        return int(bool(self.failures))

    def __str__(self) -> str:
        lines = [f"No number of {name}: {reason}" for name, reason in self.failures.items()]
        lines += [f"Table: {self.files[0]}", *([f"Next:  {self.next}"] if self.next else [])]
        tables = display(self.table)
        shown = [
            f"{task}\n" * (len(tables) > 1)
            + f"{table.set_index('method').rename_axis(None).to_string()}\n"
            for task, table in tables.items()
        ]
        return "\n".join([*map(folded, self.text.splitlines()), "", *shown, *lines])


def recommend(
    spec: Spec,
    backend: Backend,
    *,
    to: str | None = None,
    tolerance: float = 1.0,
    margin: float = 1.0,
    budget: str | None = None,
    checkpoint: Checkpoint | None = None,
    dry_run: bool = False,
) -> Recommendation | None:
    """Race the candidates for one length, or continue the race; None for a dry run.

    Without ``scaling`` in the settings, all training-free methods are candidates. ``checkpoint`` is
    that of a loaded model. The command ``recommend`` says what the others are.
    """
    for flag, value, least in (
        ("tolerance", tolerance, "0 or more"),
        ("margin", margin, "above 0"),
    ):
        if not 0 <= value < math.inf or (flag == "margin" and not value):
            raise UserError(f"--{flag} {value:g} is invalid: it is a percentage, {least}.")
    plan = plan_race(spec, to, checkpoint=checkpoint, opening=backend.open)
    folder = spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
    note_plan(plan)
    records(plan, folder)  # another run's folder is an error, in a dry run too
    data = Losses(plan, folder, backend)
    candidates, servable = candidates_of(plan, to)
    race = Race(data, candidates, servable, tolerance / 100, margin / 100)
    data.budget = read_budget(budget, race.default_budget())
    reached = len(race.covered(race.rounds[0]))
    log.info(
        f"{counted(len(candidates), 'candidates')} at {data.target:,} tokens, in rounds of "
        f"{', '.join(map(str, race.rounds))} {data.units}. Measuring everything takes "
        f"{race.grid():,.0f} forwards; the budget is {data.budget.text(data.budget.most)}."
    )
    if reached < len(candidates):
        log.info(f"The first round has room for the first {reached} candidates.")
    if dry_run:
        return None
    for standing in race.run():
        if not standing.recommended:
            worse = _worse(race, standing, standing.leader)
            log.info(
                f"After {counted(standing.documents, data.units)}: `{standing.leader}`"
                f"{f', {worse}' if worse else ''}; "
                f"{len(standing.possible)} of {counted(len(race.entered), 'candidates')} may be "
                "the best."
            )
    table = make_table(race, standing, candidates)
    lines, following = answer(race, standing, table), ""
    (method,) = (method for method in plan.methods if method.label == standing.recommended)
    if method.digest != FUNCTION and checkpoint is None:
        following = how_to_serve(plan.spec, method.given, data.target, to)
    files = folder / REPORTS / "recommend.csv", folder / REPORTS / "recommend.md"
    words = [*lines, *([f"Next: {following}"] if following else [])]
    shown = display(table)
    titles = [plan.checkpoint.label, *(f"{plan.checkpoint.label}, {task}" for task in shown)]
    named = dict(zip(titles[len(shown) > 1 :], shown.values(), strict=False))
    contents = csv(table), page([(named, words)])
    make_folder(folder / REPORTS)
    for file, content in zip(files, contents, strict=True):
        with replacing(file) as new:
            new.write(content.encode())
    regret = standing.regret(method.label)
    return Recommendation(
        scaling=method.label,
        winner={*standing.winners} == {method.label} and len(race.choices()) > 1,
        truncate=BEST in table["verdict"].tolist(),
        regret=None if math.isinf(regret) else regret,
        text="\n".join(lines),
        table=table,
        next=following,
        failures=race.failed,
        folder=folder,
        files=files,
    )


def make_table(race: Race, standing: Standing, candidates: Mapping[str, list[str]]) -> pd.DataFrame:
    """Return one row per task and candidate, and one for truncation: what to use, then by mean.

    ``score`` is on the first ``n`` documents or trials, at the target. The next columns are shares
    of the perplexity, or of the trials: ``regret``, by which it is at most worse than the best
    (95 %, all rows together); ``difference``, by which it is above the recommended one's, and
    ``truncation``, above that of truncation, on what both were measured on; ``cost``, by which it
    is above the unscaled model's inside the window, on the first ``cost_n``. ``same`` are the other
    names of a candidate.
    """
    places = range(len(race.tasks))
    rows = [row for place in places for row in _rows(race, standing, candidates, place)]
    counts = dict.fromkeys(("n", "cost_n"), "Int64")
    return pd.DataFrame(rows).astype(counts).fillna({"n": 0, "same": ""})


def _rows(
    race: Race, standing: Standing, candidates: Mapping[str, list[str]], place: int
) -> list[dict[str, Any]]:
    data, use, end = race.data, standing.recommended, standing.documents
    (task, how), truncate = [*data.tasks.items()][place], _truncates(race, standing)
    unknown = dict.fromkeys(("cost", "cost_low", "cost_high", "cost_n"))
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*candidates, *race.failed]):
        row: dict[str, Any] = {"task": task, "metric": how.metric, "scaling": name, **unknown}
        row |= {"verdict": BEST if truncate and name == use else _verdict(race, standing, name)}
        row |= {"same": ", ".join(candidates.get(name, [])[1:]), "reason": race.failed.get(name)}
        count = min(race.seen.get(name, 0), end)
        if name not in race.failed and count:
            far, regrets = (FAR, name), standing.regrets.get(name)
            row |= score(data.losses(place, *far, count), how=how)
            row |= {"regret": regrets and regrets[place]}
            row |= columns("difference", data.difference(place, far, (FAR, use), count))
            if not how.share:
                row |= columns("truncation", data.difference(place, far, (CUT, OWN), count))
        count = race.cost_documents.get(name, 0)
        # A server keeps one form for all lengths: that of the target.
        if count and name not in race.failed and not data.depends_on_length(name):
            cost = data.difference(place, (NEAR, name), (NEAR, OWN), count)
            row |= columns("cost", cost) | {"cost_n": cost.n}
        rows.append(row)
    if not how.share:
        above = data.difference(place, (FAR, use), (CUT, OWN), end).swapped(relative=True)
        worse = above.low is not None and above.low > 0
        verdict = USE if truncate else WORSE if worse else OPEN
        row = {"task": task, "metric": how.metric, "scaling": TRUNCATION, "verdict": verdict}
        row |= {"truncation": 0.0, "cost": 0.0}
        rows.append(row | score(data.losses(place, CUT, OWN, end)) | columns("difference", above))
    order, sign = {USE: -2, BEST: -1}, 1 if how.lower else -1

    def place_of(row: Mapping[str, Any]) -> tuple[int, float]:
        return order.get(row["verdict"], 0), sign * row.get("difference", sign * math.inf)

    return sorted(rows, key=place_of)


def _truncates(race: Race, standing: Standing) -> bool:
    """Return whether truncation is significantly better on the text, and no retrieval gains."""
    both, end = ((FAR, standing.recommended), (CUT, OWN)), standing.documents
    texts = [place for place, how in enumerate(race.tasks) if not how.share]
    lows = [race.data.difference(place, *both, end).low or 0 for place in texts]
    return any(low > 0 for low in lows) and not _gains(race, standing)


def _gains(race: Race, standing: Standing) -> list[str]:
    """Return the retrieval tasks that find more than the share of the text one window holds."""
    data, use, end = race.data, standing.recommended, standing.documents
    return [
        task
        for place, (task, how) in enumerate(data.tasks.items())
        if how.share
        and score(data.losses(place, FAR, use, end), how=how)["low"] > data.window / data.target
    ]


def _verdict(race: Race, standing: Standing, name: str) -> str:
    """Return what a candidate is, in a word or two."""
    if name in race.failed or name in race.costly:
        return "failed" if name in race.failed else "too costly"
    if name not in race.entered:
        return UNREACHED
    if name == standing.recommended:
        return USE
    if name not in race.choices():
        return "needs code"
    if standing.regret(name) <= race.margin:
        return "as good"
    return OPEN if name in standing.possible else WORSE


def _worse(race: Race, standing: Standing, name: str) -> str:
    """Return how much worse than the best a candidate is at most, "" where that is unknown."""
    regret, how = standing.regret(name), race.tasks[0]
    if math.isinf(regret):
        return ""
    if len(race.tasks) > 1:
        return f"at most {at_most(regret)} worse than the best on each task"
    return f"at most {bound(regret, relative=how.relative, metric=how.metric)} worse than the best"


def answer(race: Race, standing: Standing, table: pd.DataFrame) -> list[str]:
    """Return the decision, what it costs inside the window, and what the race took."""
    data, use, several = race.data, standing.recommended, len(race.tasks) > 1
    tables = [
        {row["scaling"]: row for row in rows_of(rows)}
        for _, rows in table.groupby("task", sort=False)
    ]
    signs = [1 if how.lower else -1 for how in race.tasks]
    units = [unit(relative=how.relative, metric=how.metric) for how in race.tasks]

    def change(name: str, kind: str) -> str:
        texts = []
        for rows, shown in zip(tables, units, strict=True):
            value, low, high = (rows[name][f"{kind}{mark}"] for mark in MARKS)
            texts.append(signed(value, low, high, shown))
        named = [f"{text} ({task})" for text, task in zip(texts, data.tasks, strict=True)]
        return ", ".join(named) if several else texts[0]

    def inside_cost(name: str) -> tuple[float, str]:
        return max(s * rows[name]["cost"] for s, rows in zip(signs, tables, strict=True)), name

    lines = [f"At {data.target:,} tokens: {_decided(race, standing, tables[0], 0)}."]
    if several:
        lines = [
            f"{task}: {_decided(race, standing, rows, place)}."
            for place, (task, rows) in enumerate(zip(data.tasks, tables, strict=True))
        ]
        if not _truncates(race, standing):
            together = for_all(use, max(standing.regrets[use]) if use in standing.regrets else None)
            lines.insert(0, f"At {data.target:,} tokens: {together}.")
    if tables[0][use]["cost"] is None:
        lines.append(
            f"Inside {data.window:,} tokens its cost on a server was not measured: a server keeps "
            f"the form of {data.target:,} tokens, and this method changes its form with the length."
        )
    else:
        known = {name for name in standing.possible if tables[0][name]["cost"] is not None}
        least = min((known - {OWN}) | {use}, key=inside_cost)
        what = "scores" if several else race.tasks[0].metric
        line = f"Inside {data.window:,} tokens the {what} of `{use}` "
        line += f"{'change' if several else 'changes'} by {change(use, 'cost')}"
        if least != use:
            line += (
                f"; the cheapest of those that may be best is `{least}`, {change(least, 'cost')} "
                f"there and {change(least, 'difference')} against `{use}` at the target"
            )
        lines.append(f"{line}.")
    costly = f"Left out, significantly above {100 * race.tolerance:g}{units[0]} there"
    unreached = [name for name in tables[0] if tables[0][name]["verdict"] == UNREACHED]
    for names, why in ((sorted(race.costly), costly), (unreached, "Not reached")):
        lines[-1] += f" {why}: {listed(names)}." if names else ""
    seconds = sum(data.samples.get(key, {}).get("seconds") or 0 for key in data.requested)
    lines.append(
        f"Spent {data.forwards():,.0f} of the {race.grid():,.0f} forwards that measuring "
        f"everything takes, in {timedelta(seconds=round(seconds))}."
    )
    if over := standing.ended == BUDGET:
        lines[-1] += f" The budget of {data.budget.text(data.budget.most)} ended the race."
    wide = [of > race.margin for of in standing.regrets.get(use, ())]
    takes = [
        f"{needed:,} {how.units}" + f" ({task})" * several
        for (task, how), needed, is_ in zip(data.tasks.items(), standing.needed, wide, strict=False)
        if needed and is_
    ]
    if takes and len(takes) == sum(wide) and standing.ended != WINNER:
        more = "; a larger --budget goes on from here" * over
        lines[-1] += f" A bound of {100 * race.margin:g}{units[0]} takes about "
        lines[-1] += f"{' and '.join(takes)}{more}."
    high = tables[0][use].get("truncation_high")
    alone = all(how == PERPLEXITY for how in race.tasks)
    return [*lines, *([RETRIEVAL] if alone and (high is None or high >= 0) else [])]


def _decided(race: Race, standing: Standing, rows: Mapping[str, Any], place: int) -> str:
    """Return the sentence of the reports on one task."""
    how, names = race.tasks[place], race.choices()
    sign, full = (1 if how.lower else -1), rows[standing.leader]["n"]
    best = min(
        (name for name in names if rows[name]["n"] == full),
        key=lambda name: (sign * rows[name]["score"], name != standing.leader),
    )
    return decision(
        [rows[name] for name in names], standing.recommended, best,
        winner=standing.winners[place] == best, how=how, window=race.data.window,
        truncation=rows[TRUNCATION]["score"] if TRUNCATION in rows else None,
        gains=_gains(race, standing),
    )  # fmt: skip


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table per task of a race, for people."""
    result = {}
    for task, part in table.groupby("task", sort=False):
        metric, cut = str(part["metric"].iloc[0]), part["scaling"].eq(TRUNCATION).any()
        written = partial(signed, unit=unit(relative=metric not in SHARES, metric=metric))
        rows = [{**row, "status": "ok"} for row in rows_of(part)]
        columns = {
            "method": part["scaling"],
            f"{metric} [95 %]": [text(row) if row["n"] else "" for row in rows],
            **({"truncation": part["truncation"].map(written)} if cut else {}),
            "inside": part["cost"].map(written),
            "n": part["n"].astype(str),
            "verdict": part["verdict"],
        }
        result[str(task)] = pd.DataFrame(columns)
    return result
