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
from ropewalk.harness.recommend.decision import MARKS, PERPLEXITY, decision, score
from ropewalk.harness.recommend.losses import CUT, FAR, NEAR, Losses, read_budget
from ropewalk.harness.recommend.race import BUDGET, WINNER, Race, Standing
from ropewalk.harness.reports._text import (
    counted,
    folded,
    listed,
    signed,
    text,
    unit,
)
from ropewalk.harness.reports.verdict import for_all
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.serve._export import how_to_serve
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.measure import SHARES
from ropewalk.harness.stats.paired import difference_columns
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.plan import Backend
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
TRUNCATION, UNREACHED = "truncation", "not measured"
USE, BEST, OPEN, WORSE = "use", "best scaling", "possible", "worse"
FIRST = {USE: 0, BEST: 1}  # rows of a table, before the others
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
    file: Path

    @property
    def status(self) -> int:
        """The exit status of the command: 1 where a candidate has no number."""
        return int(bool(self.failures))

    def __str__(self) -> str:
        lines = [f"No number of {name}: {reason}" for name, reason in self.failures.items()]
        lines += [f"Table: {self.file}", *([f"Next:  {self.next}"] if self.next else [])]
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
    if not 0 <= tolerance < math.inf:
        raise UserError(f"--tolerance {tolerance:g} is invalid: it is a percentage, 0 or more.")
    if not 0 < margin < math.inf:
        raise UserError(f"--margin {margin:g} is invalid: it is a percentage, above 0.")
    plan = plan_race(spec, to, checkpoint=checkpoint, opening=backend.open)
    folder = spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
    note_plan(plan)
    records(plan, folder)  # another run's folder is an error, in a dry run too
    data = Losses(plan, folder, backend)
    candidates = candidates_of(plan, to)
    race = Race(data, candidates, tolerance / 100, margin / 100)
    data.budget = read_budget(budget, race.default_budget())
    reached = len(race.covered())
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
            log.info(
                f"After {counted(standing.documents, data.units)}: `{standing.leader}`"
                f" leads; {len(standing.possible)} of {counted(len(race.entered), 'candidates')} "
                "may be the best."
            )
    table = make_table(race, standing, candidates)
    lines, following = answer(race, standing, table), ""
    (method,) = (method for method in plan.methods if method.label == standing.recommended)
    if method.digest != FUNCTION and checkpoint is None:
        following = how_to_serve(plan.spec, method.given, data.target, to)
    file = folder / REPORTS / "recommend.csv"
    make_folder(file.parent)
    with replacing(file) as new:
        new.write(table.to_csv(index=False).encode())
    regret = standing.regret(method.label)
    return Recommendation(
        scaling=method.label,
        winner={*standing.winners.values()} == {method.label} and len(race.left(race.entered)) > 1,
        truncate=BEST in table["verdict"].tolist(),
        regret=None if math.isinf(regret) else regret,
        text="\n".join(lines),
        table=table,
        next=following,
        failures=race.failed,
        folder=folder,
        file=file,
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
    data, use, end = race.data, standing.recommended, standing.documents
    truncate, table = _truncates(race, standing), []
    for task, how in race.tasks.items():
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys([*candidates, *race.failed]):
            row: dict[str, Any] = {"task": task, "metric": how.metric, "scaling": name}
            row |= dict.fromkeys(("cost", "cost_low", "cost_high", "cost_n"))
            row |= {"verdict": BEST if truncate and name == use else _verdict(race, standing, name)}
            row |= {"same": ", ".join(candidates.get(name, [])[1:])}
            count = 0 if name in race.failed else min(race.seen.get(name, 0), end)
            if count:
                far = FAR, name
                row |= score(data.losses(task, *far, count), how=how)
                row |= {"regret": standing.regrets.get(name, {}).get(task)}
                above = data.difference(task, far, (FAR, use), count)
                row |= difference_columns("difference", above)
                if not how.share:
                    gain = data.difference(task, far, (CUT, OWN), count)
                    row |= difference_columns("truncation", gain)
            count = 0 if name in race.failed else race.cost_documents.get(name, 0)
            # A server keeps one form for all lengths: that of the target.
            if count and not data.depends_on_length(name):
                cost = data.difference(task, (NEAR, name), (NEAR, OWN), count)
                row |= difference_columns("cost", cost) | {"cost_n": cost.n}
            rows.append(row)
        if not how.share:
            above = data.difference(task, (FAR, use), (CUT, OWN), end).swapped(relative=True)
            worse = above.low is not None and above.low > 0
            verdict = USE if truncate else WORSE if worse else OPEN
            row = {"task": task, "metric": how.metric, "scaling": TRUNCATION, "verdict": verdict}
            row |= {"truncation": 0.0, "cost": 0.0} | difference_columns("difference", above)
            rows.append(row | score(data.losses(task, CUT, OWN, end)))
        sign = 1 if how.lower else -1
        rows.sort(key=lambda row: sign * row.get("difference", sign * math.inf))
        table += sorted(rows, key=lambda row: FIRST.get(row["verdict"], len(FIRST)))
    counts = dict.fromkeys(("n", "cost_n"), "Int64")
    return pd.DataFrame(table).astype(counts).fillna({"n": 0, "same": ""})


def _truncates(race: Race, standing: Standing) -> bool:
    """Return whether truncation is significantly better on the text, and no retrieval gains."""
    both = (FAR, standing.recommended), (CUT, OWN)
    return not _gains(race, standing) and any(
        (race.data.difference(task, *both, standing.documents).low or 0) > 0
        for task, how in race.tasks.items()
        if not how.share
    )


def _gains(race: Race, standing: Standing) -> list[str]:
    """Return the retrieval tasks that find more than the share of the text one window holds."""
    data, found = race.data, (FAR, standing.recommended, standing.documents)
    return [
        task
        for task, how in race.tasks.items()
        if how.share
        and score(data.losses(task, *found), how=how)["low"] > data.window / data.target
    ]


def _verdict(race: Race, standing: Standing, name: str) -> str:
    """Return what a candidate is, in a word or two."""
    if name in race.failed or name in race.costly:
        return "failed" if name in race.failed else "too costly"
    if name not in race.entered:
        return UNREACHED
    if name == standing.recommended:
        return USE
    if standing.regret(name) <= race.margin:
        return "as good"
    return OPEN if name in standing.possible else WORSE


def answer(race: Race, standing: Standing, table: pd.DataFrame) -> list[str]:
    """Return the decision, what it costs inside the window, and what the race took."""
    data, use, several = race.data, standing.recommended, len(race.tasks) > 1
    tables = {
        task: {row["scaling"]: row for row in rows_of(table[table["task"] == task])}
        for task in race.tasks
    }
    units = {t: unit(relative=how.relative, metric=how.metric) for t, how in race.tasks.items()}
    first, percent = next(iter(race.tasks)), next(iter(units.values()))
    rows = tables[first]

    def change(name: str, kind: str) -> str:
        texts = []
        for task, of in tables.items():
            value, low, high = (of[name][f"{kind}{mark}"] for mark in MARKS)
            texts.append(signed(value, low, high, units[task]) + f" ({task})" * several)
        return ", ".join(texts)

    decided = [_decided(race, standing, of, task) for task, of in tables.items()]
    lines = [f"At {data.target:,} tokens: {decided[0]}."]
    if several:
        lines = [f"{task}: {text}." for task, text in zip(tables, decided, strict=True)]
        if not _truncates(race, standing):
            regret = standing.regret(use) if use in standing.regrets else None
            lines.insert(0, f"At {data.target:,} tokens: {for_all(use, regret)}.")
    if rows[use]["cost"] is None:
        lines.append(
            f"Inside {data.window:,} tokens its cost on a server was not measured: a server keeps "
            f"the form of {data.target:,} tokens, and this method changes its form with the length."
        )
    else:
        what = "scores" if several else race.tasks[first].metric
        verb = "change" if several else "changes"
        inside = change(use, "cost")
        lines.append(f"Inside {data.window:,} tokens the {what} of `{use}` {verb} by {inside}.")
    if unreached := [name for name in rows if rows[name]["verdict"] == UNREACHED]:
        lines[-1] += f" Not reached: {listed(unreached)}."
    seconds = sum(data.samples.get(key, {}).get("seconds") or 0 for key in data.requested)
    lines.append(
        f"Spent {data.forwards():,.0f} of the {race.grid():,.0f} forwards that measuring "
        f"everything takes, in {timedelta(seconds=round(seconds))}."
    )
    if over := standing.ended == BUDGET:
        lines[-1] += f" The budget of {data.budget.text(data.budget.most)} ended the race."
    wide = [task for task, of in standing.regrets.get(use, {}).items() if of > race.margin]
    takes = [
        f"{standing.needed[task]:,} {race.tasks[task].units}" + f" ({task})" * several
        for task in wide
        if standing.needed[task]
    ]
    if takes and len(takes) == len(wide) and standing.ended != WINNER:
        more = "; a larger --budget goes on from here" * over
        lines[-1] += f" A bound of {100 * race.margin:g}{percent} takes about "
        lines[-1] += f"{' and '.join(takes)}{more}."
    high = rows[use].get("truncation_high")
    alone = all(how == PERPLEXITY for how in race.tasks.values())
    return [*lines, *([RETRIEVAL] if alone and (high is None or high >= 0) else [])]


def _decided(race: Race, standing: Standing, rows: Mapping[str, Any], task: str) -> str:
    """Return the sentence of the reports on one task."""
    how, names = race.tasks[task], race.left(race.entered)
    sign, full = (1 if how.lower else -1), rows[standing.leader]["n"]
    best = min(
        (name for name in names if rows[name]["n"] == full),
        key=lambda name: (sign * rows[name]["score"], name != standing.leader),
    )
    return decision(
        [rows[name] for name in names], standing.recommended, best,
        winner=standing.winners[task] == best, how=how, window=race.data.window,
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
