"""Recommend a method for one length: plan a race, run it, and say what came of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.plugins import FUNCTION
from ropewalk.harness.recommend.answer import ENDS, MARKS, Answer, columns_of, decision
from ropewalk.harness.recommend.candidates import OWN, PERPLEXITY, candidates_of, plan_race
from ropewalk.harness.recommend.losses import CUT, FAR, NEAR, Losses, read_budget
from ropewalk.harness.recommend.race import BUDGET, WINNER, Race, Standing
from ropewalk.harness.reports._text import bound, change, counted, listed, signed, text, unit
from ropewalk.harness.reports._write import save
from ropewalk.harness.reports.verdict import for_all
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.serve._export import how_to_serve
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.measure import SHARES, difference
from ropewalk.harness.stats.paired import difference_columns
from ropewalk.harness.sweep.plan import Backend
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
TRUNCATION, UNREACHED = "truncation", "not measured"
USE, BEST, OPEN, WORSE = "use", "best scaling", "possible", "worse"
FIRST = {USE: 0, BEST: 1}  # rows of a table, before the others
DIFFERENCES = ("difference", "truncation", "cost")
NUMBERS = (*ENDS, "regret", "cost_n", *(f"{of}{mark}" for of in DIFFERENCES for mark in MARKS))
RETRIEVAL = (
    "Retrieval tasks (niah, ruler, passkey) show whether a method uses the longer text: "
    "--task perplexity niah decides by both."
)


@dataclass(frozen=True)
class Recommendation(Answer):
    """The answer of a race.

    Attributes:
        winner: whether it is significantly the best on every task.
        truncate: whether truncation to the window is significantly better on these texts.
        regret: how much worse than the best it is at most on any task (95 %), as a share of the
            perplexity or of the trials; None where there are too few for a bound.
        failures: the candidates without a number, and why.
    """

    winner: bool
    truncate: bool
    regret: float | None
    failures: dict[str, str]

    @property
    def status(self) -> int:
        """The exit status of the command: 1 where a candidate has no number."""
        return int(bool(self.failures))

    def display(self) -> dict[str, pd.DataFrame]:
        """Return the table for people, in one part per task."""
        parts = {}
        for task, part in self.table.groupby("task", sort=False):
            metric, cut = str(part["metric"].iloc[0]), part["truncation"].notna().any()
            shown = partial(signed, unit=unit(relative=metric not in SHARES, metric=metric))
            rows = [{**row, "status": "ok" if row["n"] else ""} for row in rows_of(part)]
            columns = {
                "method": part["scaling"], f"{metric} [95 %]": [text(row) for row in rows],
                **({"truncation": part["truncation"].map(shown)} if cut else {}),
                "inside": part["cost"].map(shown), "n": part["n"], "verdict": part["verdict"],
            }  # fmt: skip
            parts[str(task)] = pd.DataFrame(columns)
        return parts


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
    data = Losses(plan, backend)
    candidates = candidates_of(plan, to)
    race = Race(data, candidates, tolerance / 100, margin / 100)
    data.budget = read_budget(budget, race.default_budget())
    reached = len(race.covered())
    log.info(
        f"{counted(len(candidates), 'candidates')} at {data.target:,} tokens, in rounds of "
        f"{', '.join(map(str, race.rounds))} {data.nouns}. Measuring everything takes "
        f"{race.grid():,.0f} forwards; the budget is {data.budget.text(data.budget.most)}."
    )
    if reached < len(candidates):
        log.info(f"The first round has room for the first {reached} candidates.")
    if dry_run:
        return None
    for standing in race.run():
        if not standing.recommended:
            log.info(
                f"After {counted(standing.documents, data.nouns)}: `{standing.leader}`"
                f" leads; {len(standing.possible)} of {counted(len(race.entered), 'candidates')} "
                "may be the best."
            )
    table = make_table(race, standing, candidates)
    lines, following = answer(race, standing, table), ""
    lines += [f"No number of `{name}`: {why}" for name, why in data.failed.items()]
    (method,) = (method for method in plan.methods if method.label == standing.recommended)
    if method.digest != FUNCTION and checkpoint is None:
        following = how_to_serve(plan.spec, method.given, data.target, to)
    csv = {"recommend.csv": table.to_csv(index=False).encode()}
    regret = standing.regret(method.label)
    return Recommendation(
        scaling=method.label,
        text="\n".join(lines),
        table=table,
        next=following,
        folder=data.folder,
        files=tuple(save(csv, data.folder / REPORTS)),
        winner={*standing.winners.values()} == {method.label} and len(race.left(race.entered)) > 1,
        truncate=BEST in table["verdict"].tolist(),
        regret=None if math.isinf(regret) else regret,
        failures=data.failed,
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
    rows = list[dict[str, Any]]()
    for task, how in race.tasks.items():
        usual = {
            "task": task, "metric": how.metric, "scaling": "", "verdict": "", "same": "", "n": 0,
            **dict.fromkeys(NUMBERS),
        }  # fmt: skip
        of = partial(data.units, task)
        used, cut = of((FAR, use, end)), None
        if not how.share:
            cut = of((CUT, OWN, end))
            row = usual | columns_of(cut, used, how)
            rows.append(row | {"scaling": TRUNCATION, "truncation": 0.0, "cost": 0.0})
        for name in dict.fromkeys([*candidates, *data.failed]):
            row = usual | {"scaling": name, "same": ", ".join(candidates.get(name, [])[1:])}
            rows.append(row)
            if name in data.failed:
                continue
            if seen := min(race.seen.get(name, 0), end):
                far = of((FAR, name, seen))
                row |= columns_of(far, used, how)
                row |= {"regret": standing.regrets.get(name, {}).get(task)}
                gain = difference(far, cut, how) if cut else None
                row |= difference_columns("truncation", gain)
            inside = race.cost_documents.get(name, 0)
            # A server keeps one form for all lengths: that of the target.
            if inside and not data.depends_on_length(name):
                cost = difference(of((NEAR, name, inside)), of((NEAR, OWN, inside)), how)
                row |= difference_columns("cost", cost) | {"cost_n": cost and cost.n}
    truncate, _ = _against_truncation(race, standing, rows)
    tasks = [*race.tasks]

    def place(row: Mapping[str, Any]) -> tuple[int, int, float]:
        sign = 1 if race.tasks[row["task"]].lower else -1
        above = math.inf if row["difference"] is None else sign * row["difference"]
        return tasks.index(row["task"]), FIRST.get(row["verdict"], len(FIRST)), above

    for row in rows:
        row["verdict"] = _verdict(race, standing, row, truncate=truncate)
    rows.sort(key=place)
    return pd.DataFrame(rows).astype({"cost_n": "Int64"})


def _against_truncation(
    race: Race, standing: Standing, rows: Sequence[Mapping[str, Any]]
) -> tuple[bool, list[str]]:
    """Return whether truncation is the better one, and the tasks that the longer text helps.

    Retrieval gains where it finds more than the share of the text that one window holds. Truncation
    is the better one where it is significantly better on the text, and no retrieval gains.
    """
    share = race.data.window / race.data.target
    used = [row for row in rows if row["scaling"] == standing.recommended]
    gains = [row["task"] for row in used if race.tasks[row["task"]].share and row["low"] > share]
    return not gains and any((row["truncation_low"] or 0) > 0 for row in used), gains


def _verdict(race: Race, standing: Standing, row: Mapping[str, Any], *, truncate: bool) -> str:
    """Return what a row of the table is, in a word or two."""
    name = row["scaling"]
    if name == TRUNCATION:
        worse = row["difference_low"] is not None and row["difference_low"] > 0
        return USE if truncate else WORSE if worse else OPEN
    if name in race.data.failed or name in race.costly:
        return "failed" if name in race.data.failed else "too costly"
    if name not in race.entered:
        return UNREACHED
    if name == standing.recommended:
        return BEST if truncate else USE
    if standing.regret(name) <= race.margin:
        return "as good"
    return OPEN if name in standing.possible else WORSE


def answer(race: Race, standing: Standing, table: pd.DataFrame) -> list[str]:
    """Return the decision, what it costs inside the window, and what the race took."""
    data, use, several = race.data, standing.recommended, len(race.tasks) > 1
    rows, names = rows_of(table), race.left(race.entered)
    truncate, gains = _against_truncation(race, standing, rows)
    used = {row["task"]: row for row in rows if row["scaling"] == use}
    lines, costs = list[str](), list[str]()
    for task, how in race.tasks.items():
        of = {row["scaling"]: row for row in rows if row["task"] == task}
        cut = None if how.share else of[TRUNCATION]["score"]
        text = decision(
            [of[name] for name in names], use, standing.winners[task], how,
            unit=how.units, window=data.window, truncation=cut, gains=gains,
        )  # fmt: skip
        lines.append(f"{task}: {text}." if several else f"At {data.target:,} tokens: {text}.")
        cost = change({**used[task], "relative": how.relative}, "cost")
        costs.append(cost + f" ({task})" * several)
    if several and not truncate:
        regret = standing.regret(use) if use in standing.regrets else None
        lines.insert(0, f"At {data.target:,} tokens: {for_all(use, regret)}.")
    if data.depends_on_length(use):
        lines.append(
            f"Inside {data.window:,} tokens its cost on a server was not measured: a server keeps "
            f"the form of {data.target:,} tokens, and this method changes its form with the length."
        )
    else:
        changes = f"scores of `{use}` change" if several else f"{how.metric} of `{use}` changes"
        lines.append(f"Inside {data.window:,} tokens the {changes} by {', '.join(costs)}.")
    if unreached := table.loc[table["verdict"] == UNREACHED, "scaling"].unique().tolist():
        lines[-1] += f" Not reached: {listed(unreached)}."
    seconds = sum(data.samples.get(key, {}).get("seconds") or 0 for key in data.requested)
    lines.append(
        f"Spent {data.forwards():,.0f} of the {race.grid():,.0f} forwards that measuring "
        f"everything takes, in {timedelta(seconds=round(seconds))}."
    )
    if over := standing.ended == BUDGET:
        lines[-1] += f" The budget of {data.budget.text(data.budget.most)} ended the race."
    wide = [task for task, of in standing.regrets.get(use, {}).items() if of > race.margin]
    if wide and all(standing.needed[task] for task in wide) and standing.ended != WINNER:
        takes = [
            f"{standing.needed[task]:,} {race.tasks[task].units}" + f" ({task})" * several
            for task in wide
        ]
        how = next(iter(race.tasks.values()))
        margin = bound(race.margin, relative=how.relative, metric=how.metric)
        lines[-1] += f" A bound of {margin} takes about {' and '.join(takes)}"
        lines[-1] += "; a larger --budget goes on from here." if over else "."
    not_below = all((row["truncation_high"] or 0) >= 0 for row in used.values())
    if [*race.tasks.values()] == [PERPLEXITY] and not_below:
        lines.append(RETRIEVAL)
    return lines
