"""Recommend a method for one length: plan a race, run it, and say what came of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.plugins import FUNCTION
from ropewalk.harness.recommend.candidates import OWN, candidates_of, plan_race
from ropewalk.harness.recommend.decision import MARKS, columns, decision, difference, perplexity
from ropewalk.harness.recommend.losses import CUT, FAR, Losses, read_budget
from ropewalk.harness.recommend.race import BUDGET, WINNER, Race, Standing
from ropewalk.harness.reports._sentences import at_most, counted, listed, signed, text
from ropewalk.harness.reports._tables import csv, folded, page
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.serve._export import express
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.paired import share
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
TRUNCATION, UNREACHED = "truncation", "not measured"
USE, BEST, OPEN, WORSE = "use", "best scaling", "possible", "worse"
RETRIEVAL = "Retrieval tasks (niah, ruler, passkey) show whether a method uses the longer text."


@dataclass(frozen=True)
class Recommendation:
    """The answer of a race.

    Attributes:
        scaling: the method to use.
        winner: whether it is significantly the best.
        truncate: whether truncation to the window is significantly better on these texts.
        regret: the share by which its perplexity is at most above that of the best (95 %); None
            where there are too few documents for a bound.
        text: the recommendation, one line per subject.
        table: one row per candidate and one for truncation.
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
        table = display(self.table).set_index("method").rename_axis(None).to_string()
        lines = [f"No number of {name}: {reason}" for name, reason in self.failures.items()]
        lines += [f"Table: {self.files[0]}", *([f"Next:  {self.next}"] if self.next else [])]
        return "\n".join([*map(folded, self.text.splitlines()), "", table, "", *lines])


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
        f"{', '.join(map(str, race.rounds))} documents. Measuring everything takes "
        f"{race.grid():,.0f} forwards; the budget is {data.budget.text(data.budget.most)}."
    )
    if reached < len(candidates):
        log.info(f"The first round has room for the first {reached} candidates.")
    if dry_run:
        return None
    for standing in race.run():
        if not standing.recommended:
            regret = standing.regret.get(standing.leader)
            bound = "" if regret is None else f", at most {at_most(share(regret))} above the best"
            log.info(
                f"After {counted(standing.documents, 'documents')}: `{standing.leader}`{bound}; "
                f"{len(standing.possible)} of {counted(len(race.entered), 'candidates')} may be "
                "the best."
            )
    table = make_table(race, standing, candidates)
    lines, following = answer(race, standing, table), ""
    (method,) = (method for method in plan.methods if method.label == standing.recommended)
    if method.digest != FUNCTION and checkpoint is None:
        following = express(plan.spec, method.given, data.target, to).text
    files = folder / REPORTS / "recommend.csv", folder / REPORTS / "recommend.md"
    words = [*lines, *([f"Next: {following}"] if following else [])]
    contents = csv(table), page([({plan.checkpoint.label: display(table)}, words)])
    make_folder(folder / REPORTS)
    for file, content in zip(files, contents, strict=True):
        with replacing(file) as new:
            new.write(content.encode())
    regret = standing.regret.get(method.label)
    return Recommendation(
        scaling=method.label,
        winner=standing.ended == WINNER and len(race.choices()) > 1,
        truncate=BEST in table["verdict"].tolist(),
        regret=None if regret is None else share(regret),
        text="\n".join(lines),
        table=table,
        next=following,
        failures=race.failed,
        folder=folder,
        files=files,
    )


def make_table(race: Race, standing: Standing, candidates: Mapping[str, list[str]]) -> pd.DataFrame:
    """Return one row per candidate and one for truncation: what to use first, then by mean.

    ``score`` is the perplexity on the first ``documents``, at the target. The next columns are
    shares: ``regret``, by which it is at most above that of the best (95 %, all rows together);
    ``difference``, by which it is above the recommended one's, and ``truncation``, above that
    of truncation, on the documents that both were measured on; ``cost``, by which it is above
    the unscaled model's inside the window, on the first ``cost_documents``. ``same`` are the other
    names of a candidate.
    """
    data, use, end = race.data, standing.recommended, standing.documents
    cut, rows = data.losses(CUT, OWN, end), list[dict[str, Any]]()
    gain = difference(data.losses(FAR, use, end) - cut)
    above = gain.swapped(relative=True)
    truncate = above.high is not None and above.high < 0
    for name in dict.fromkeys([*candidates, *race.failed]):
        row: dict[str, Any] = {"scaling": name, "verdict": _verdict(race, standing, name)}
        row |= {"same": ", ".join(candidates.get(name, [])[1:]), "reason": race.failed.get(name)}
        count = min(race.seen.get(name, 0), end)
        if name not in race.failed and count:
            losses, regret = data.losses(FAR, name, count), standing.regret.get(name)
            row |= perplexity(losses) | {"regret": None if regret is None else share(regret)}
            row |= columns("difference", difference(losses - data.losses(FAR, use, count)))
            row |= columns("truncation", difference(losses - cut[:count]))
        count = race.cost_documents.get(name, 0)
        # A server keeps one form for all lengths: that of the target.
        if count and name not in race.failed and not data.depends_on_length(name):
            row |= columns("cost", difference(race.in_window_cost(name, count)))
            row |= {"cost_documents": count}
        if truncate and row["verdict"] == USE:
            row["verdict"] = BEST
        rows.append(row)
    worse = above.low is not None and above.low > 0
    verdict = USE if truncate else WORSE if worse else OPEN
    row = {"scaling": TRUNCATION, "verdict": verdict, "truncation": 0.0, "cost": 0.0}
    rows.append(row | perplexity(cut) | columns("difference", above))
    order = {USE: -2, BEST: -1}
    rows.sort(key=lambda row: (order.get(row["verdict"], 0), row.get("difference", math.inf)))
    counts = dict.fromkeys(("documents", "cost_documents"), "Int64")
    return pd.DataFrame(rows).astype(counts).fillna({"documents": 0, "same": ""})


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
    if standing.regret.get(name, math.inf) <= math.log1p(race.margin):
        return "as good"
    return OPEN if name in standing.possible else WORSE


def answer(race: Race, standing: Standing, table: pd.DataFrame) -> list[str]:
    """Return the decision, what it costs inside the window, and what the race took."""
    data, rows = race.data, {row["scaling"]: row for row in rows_of(table)}
    use = rows[standing.recommended]
    verdict = decision(
        [rows[name] for name in race.choices()], use["scaling"], standing.leader,
        winner=standing.ended == WINNER, window=data.window, truncation=rows[TRUNCATION]["score"],
    )  # fmt: skip

    def change(row: Mapping[str, Any], kind: str) -> str:
        return signed(*(row[f"{kind}{mark}"] for mark in MARKS))

    lines = [f"At {data.target:,} tokens: {verdict}."]
    if use["cost"] is None:
        lines.append(
            f"Inside {data.window:,} tokens its cost on a server was not measured: a server keeps "
            f"the form of {data.target:,} tokens, and this method changes its form with the length."
        )
    else:
        near = [rows[name] for name in standing.possible if name != OWN]
        near = [row for row in near if row["cost"] is not None] + [use]
        least = min(near, key=lambda row: (row["cost"], row["scaling"]))
        name, inside = use["scaling"], f"Inside {data.window:,} tokens"
        line = f"{inside} the perplexity of `{name}` changes by {change(use, 'cost')}"
        if least is not use:
            line += (
                f"; the cheapest of those that may be best is `{least['scaling']}`, "
                f"{change(least, 'cost')} there and {change(least, 'difference')} against `{name}` "
                "at the target"
            )
        lines.append(f"{line}.")
    costly = f"Left out, significantly above {100 * race.tolerance:g} % there"
    unreached = [name for name in rows if rows[name]["verdict"] == UNREACHED]
    for names, why in ((sorted(race.costly), costly), (unreached, "Not reached")):
        lines[-1] += f" {why}: {listed(names)}." if names else ""
    seconds = sum(data.samples.get(key, {}).get("seconds") or 0 for key in data.requested)
    lines.append(
        f"Spent {data.forwards():,.0f} of the {race.grid():,.0f} forwards that measuring "
        f"everything takes, in {timedelta(seconds=round(seconds))}."
    )
    if over := standing.ended == BUDGET:
        lines[-1] += f" The budget of {data.budget.text(data.budget.most)} ended the race."
    regret = standing.regret.get(use["scaling"], math.inf)
    if standing.needed and regret > math.log1p(race.margin) and standing.ended != WINNER:
        more = "; a larger --budget goes on from here" * over
        takes = f"takes about {standing.needed:,} documents{more}"
        lines[-1] += f" A bound of {100 * race.margin:g} % {takes}."
    unsure = use["truncation_high"] is None or use["truncation_high"] >= 0
    return [*lines, *([RETRIEVAL] if unsure else [])]


def display(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a race for people."""
    rows = [{**row, "metric": "perplexity", "status": "ok"} for row in rows_of(table)]
    return pd.DataFrame(
        {
            "method": table["scaling"],
            "perplexity [95 %]": [text(row) if row["documents"] else "" for row in rows],
            "truncation": table["truncation"].map(signed),
            "inside": table["cost"].map(signed),
            "n": table["documents"].astype(str),
            "verdict": table["verdict"],
        }
    )
