"""Recommend a method for one length: plan a race, run it, and say what came of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.plugins import FUNCTION
from ropewalk.harness.recommend.candidates import OWN, candidates_of, plan_race
from ropewalk.harness.recommend.decision import columns, decision, difference, perplexity
from ropewalk.harness.recommend.losses import CUT, FAR, Losses, read_budget
from ropewalk.harness.recommend.race import BUDGET, WINNER, Race, Standing
from ropewalk.harness.reports.writing.sentences import at_most, counted, listed, signed, text
from ropewalk.harness.reports.writing.tables import csv, page
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.serve._export import express
from ropewalk.harness.stats.cells import records as rows_of
from ropewalk.harness.stats.paired import Difference, share
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.notes import note_plan
from ropewalk.harness.sweep.operations import duration
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec

log = logging.getLogger("ropewalk")
USE, BEST, ALIKE, OPEN, WORSE = "use", "best scaling", "as good", "may be best", "worse"
TRUNCATION = "truncation"
CODED, COSTLY, UNREACHED, FAILED = "needs code", "too costly", "not measured", "failed"
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
        next: what to type to write the method for an engine, or why nothing serves it, and
            ``export`` the command in it; both are empty for a model or a function of this process.
        failures: the candidates without a number, and why.
    """

    scaling: str
    winner: bool
    truncate: bool
    regret: float | None
    text: str
    table: pd.DataFrame
    next: str
    export: str
    failures: dict[str, str]
    folder: Path
    files: tuple[Path, ...]

    @property
    def status(self) -> int:
        """The exit status of the command: 1 where a candidate has no number."""
        return int(bool(self.failures))

    def __str__(self) -> str:
        shown = display(self.table)
        heads = [str(name).replace(" ", "\n", 1) for name in shown]
        table = tabulate(
            shown.to_numpy().tolist(), heads, disable_numparse=True, maxcolwidths=[29],
            colalign=("left", "right", "right", "right", "right", "left"),
        )  # fmt: skip
        lines = [f"No number of {name}: {reason}" for name, reason in self.failures.items()]
        lines += [f"Table: {self.files[0]}", *([f"Next:  {self.next}"] if self.next else [])]
        return "\n".join([self.text, "", table, "", *lines])


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
    plan = plan_race(spec, to, checkpoint=checkpoint, elsewhere=backend.device)
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
    return Answer(race, standing, candidates).written(to)


class Answer:
    """What a race that is over says; ``candidates`` have the names that they coincide with."""

    def __init__(self, race: Race, standing: Standing, candidates: Mapping[str, list[str]]) -> None:
        self.race, self.standing, self.candidates = race, standing, candidates
        self.data, self.use = race.data, standing.recommended
        self.served = race.served(race.left(race.entered))
        self.documents = {name: min(n, standing.documents) for name, n in race.seen.items()}
        self.gain = self.against_truncation(self.use)
        self.truncate = self.gain.low is not None and self.gain.low > 0

    def above(self, name: str, other: str) -> Difference:
        """Return by how much a perplexity at the target is above another's, where both have it."""
        count = min(self.documents[name], self.documents[other])
        losses = [self.data.losses(FAR, one, count) for one in (name, other)]
        return difference(losses[0] - losses[1])

    def against_truncation(self, name: str) -> Difference:
        """Return a perplexity at the target relative to that of truncation."""
        count = self.documents[name]
        return difference(self.data.losses(FAR, name, count) - self.data.losses(CUT, OWN, count))

    def cost(self, name: str) -> Difference | None:
        """Return what a candidate costs inside the window; None for a form that no server has."""
        count = self.race.cost_documents.get(name)
        if not count or name in self.race.failed or self.data.depends_on_length(name):
            return None
        return difference(self.race.in_window_cost(name, count))

    def verdict(self, name: str) -> str:
        """Return what a candidate is, in a word or two."""
        standing, race = self.standing, self.race
        if name in race.failed:
            return FAILED
        if name in race.costly:
            return COSTLY
        if name not in race.entered:
            return UNREACHED
        if name == self.use:
            return BEST if self.truncate else USE
        if name not in self.served:
            return CODED
        if standing.regret.get(name, math.inf) <= math.log1p(race.margin):
            return ALIKE
        return OPEN if name in standing.possible else WORSE

    def table(self) -> pd.DataFrame:
        """Return one row per candidate and one for truncation: what to use first, then by mean.

        ``score`` is the perplexity on the first ``documents``, at the target. The next columns are
        shares: ``regret``, by which it is at most above that of the best (95 %, all rows together);
        ``difference``, by which it is above the recommended one's, and ``truncation``, above that
        of truncation, on the documents that both were measured on; ``cost``, by which it is above
        the unscaled model's inside the window, on the first ``cost_documents``.
        """
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys([*self.candidates, *self.race.failed]):
            row: dict[str, Any] = {"scaling": name, "verdict": self.verdict(name)}
            row["same"] = ", ".join(self.candidates.get(name, [])[1:])
            row["reason"] = self.race.failed.get(name)
            if name not in self.race.failed and (count := self.documents.get(name, 0)):
                regret = self.standing.regret.get(name)
                row |= perplexity(self.data.losses(FAR, name, count))
                row |= {"regret": None if regret is None else share(regret)}
                row |= columns("difference", self.above(name, self.use))
                row |= columns("truncation", self.against_truncation(name))
            if cost := self.cost(name):
                row |= {**columns("cost", cost), "cost_documents": cost.n}
            rows.append(row)
        above = self.gain.swapped(relative=True)
        worse = above.low is not None and above.low > 0
        verdict = USE if self.truncate else WORSE if worse else OPEN
        row = {"scaling": TRUNCATION, "verdict": verdict, "truncation": 0.0, "cost": 0.0}
        row |= perplexity(self.data.losses(CUT, OWN, self.standing.documents))
        rows.append(row | columns("difference", above))
        order = {USE: -2, BEST: -1}
        rows.sort(key=lambda row: (order.get(row["verdict"], 0), row.get("difference", math.inf)))
        table = pd.DataFrame(rows)
        counts = ["documents", "cost_documents"]
        return table.astype(dict.fromkeys(counts, "Int64")).fillna({"documents": 0, "same": ""})

    def text(self, table: pd.DataFrame) -> list[str]:
        """Return the decision, what it costs inside the window, and what the race took."""
        standing, data, race, use = self.standing, self.data, self.race, self.use
        rows = {row["scaling"]: row for row in rows_of(table)}
        verdict = decision(
            [rows[name] for name in self.served], use, standing.leader,
            winner=standing.ended == WINNER, window=data.window,
            truncation=rows[TRUNCATION]["score"],
        )  # fmt: skip
        lines = [f"At {data.target:,} tokens: {verdict}."]
        cost, inside = self.cost(use), f"Inside {data.window:,} tokens"
        if cost is None:
            lines.append(
                f"{inside} its cost on a server was not measured: a server keeps the form of "
                f"{data.target:,} tokens, and this method changes its form with the length."
            )
        else:
            near = {n: c for n in self.served if n in standing.possible and (c := self.cost(n))}
            near = {n: c for n, c in near.items() if n != OWN} | {use: cost}
            least = min(near, key=lambda name: (near[name].value, name))
            lines.append(f"{inside}: `{use}` {_signed(cost)}")
            if least != use:
                lines[-1] += (
                    f"; cheapest of those that may be best is `{least}`, {_signed(near[least])} "
                    f"there and {_signed(self.above(least, use))} against `{use}` at the target"
                )
            lines[-1] += "."
        costly = f"Left out, significantly above {100 * race.tolerance:g} % there"
        unreached = [name for name in self.candidates if self.verdict(name) == UNREACHED]
        for names, why in ((sorted(race.costly), costly), (unreached, "Not reached")):
            lines[-1] += f" {why}: {listed(names)}." if names else ""
        seconds = sum(data.samples.get(key, {}).get("seconds") or 0 for key in data.requested)
        spent = (
            f"Spent {data.forwards():,.0f} of the {race.grid():,.0f} forwards that measuring "
            f"everything takes, in {duration(seconds)}."
        )
        if over := standing.ended == BUDGET:
            spent += f" The budget of {data.budget.text(data.budget.most)} ended the race."
        open_ = standing.regret.get(use, math.inf) > math.log1p(race.margin)
        if standing.needed and open_ and standing.ended != WINNER:
            spent += (
                f" A bound of {100 * race.margin:g} % takes about {standing.needed:,} documents"
            )
            spent += "; a larger --budget goes on from here." if over else "."
        unsure = self.gain.high is None or self.gain.high >= 0
        return [*lines, spent, *([RETRIEVAL] if unsure else [])]

    def written(self, to: str | None) -> Recommendation:
        """Write the answer into the reports of the run folder, and return it."""
        plan, table, export, following = self.data.plan, self.table(), "", ""
        lines, regret = self.text(table), self.standing.regret.get(self.use)
        method = next(method for method in plan.methods if method.label == self.use)
        if method.digest != FUNCTION and plan.checkpoint.loaded is None:
            export, following, _ = express(plan.spec, method.given, self.data.target, to)
        folder = self.data.folder / REPORTS
        make_folder(folder)
        files = folder / "recommend.csv", folder / "recommend.md"
        words = [*lines, *([f"Next: {following}"] if following else [])]
        parts = [({plan.checkpoint.label: display(table)}, words)]
        for file, content in zip(files, (csv(table), page(parts)), strict=True):
            with replacing(file) as new:
                new.write(content.encode())
        return Recommendation(
            scaling=self.use,
            winner=self.standing.ended == WINNER and len(self.served) > 1,
            truncate=self.truncate,
            regret=None if regret is None else share(regret),
            text="\n".join(lines),
            table=table,
            next=following,
            export=export,
            failures=self.race.failed,
            folder=self.data.folder,
            files=files,
        )


def display(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a race for people."""
    rows = rows_of(table)
    measure = {"metric": "perplexity", "status": "ok"}
    return pd.DataFrame(
        {
            "method": [" = ".join(filter(None, (row["scaling"], row["same"]))) for row in rows],
            "perplexity [95 %]": [
                text({**row, **measure}) if row["documents"] else "" for row in rows
            ],
            "against truncation": table["truncation"].map(signed),
            "cost inside": table["cost"].map(signed),
            "n": table["documents"].astype(str),
            "verdict": table["verdict"],
        }
    )


def _signed(one: Difference) -> str:
    return signed(one.value, one.low, one.high)
