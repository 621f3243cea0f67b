"""The answer of a race: one table with a row per candidate, and one text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tabulate import tabulate

from ropewalk.harness.files import make_folder
from ropewalk.harness.plugins import FUNCTION
from ropewalk.harness.recommend.measuring import CUT, FAR, OWN
from ropewalk.harness.recommend.race import BUDGET, WINNER, Race, Standing, difference
from ropewalk.harness.reports._write import save_table
from ropewalk.harness.reports.writing.sentences import at_most, counted, listed, signed, text
from ropewalk.harness.runs.store import REPORTS
from ropewalk.harness.serve._export import express
from ropewalk.harness.stats.paired import Array, Difference, share
from ropewalk.harness.sweep.operations import duration
from ropewalk.tasks._intervals import MIN_DOCUMENTS, ratios

USE, BEST, ALIKE, OPEN, WORSE = "use", "best scaling", "as good", "may be best", "worse"
CODED, COSTLY, UNREACHED, FAILED = "needs code", "too costly", "not measured", "failed"
RETRIEVAL = "Retrieval tasks (niah, ruler, passkey) show whether it uses the longer input."


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
        table: one row per candidate and one for truncation; ``shown`` is the same for people.
        next: what to type to write the method for an engine, or why nothing serves it, and
            ``export`` the command in it; both are empty for a model or a function of this process.
        failures: the candidates without a number, and why.
    """

    JSON = (
        "scaling", "winner", "truncate", "regret", "text", "table", "next", "export", "failures",
        "folder", "files",
    )  # fmt: skip

    scaling: str
    winner: bool
    truncate: bool
    regret: float | None
    text: str
    table: pd.DataFrame
    shown: pd.DataFrame
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
        align = ["left", *["right"] * (len(self.shown.columns) - 2), "left"]
        rows = self.shown.astype(object).where(self.shown.notna(), "").to_numpy().tolist()
        heads = [str(column).replace(" ", "\n", 1) for column in self.shown]
        table = tabulate(rows, heads, "simple", colalign=align, disable_numparse=True)
        lines = [self.text, "", str(table), ""]
        lines += [f"No number of {name}: {reason}" for name, reason in self.failures.items()]
        lines += [f"Table: {self.files[0].with_suffix('')}.*"]
        return "\n".join([*lines, *([f"Next:  {self.next}"] if self.next else [])])


class Answer:
    """A race that is over: ``candidates`` each with the names that it coincides with.

    ``to`` is the engine that will serve the method, None for any.
    """

    def __init__(
        self, race: Race, standing: Standing, candidates: dict[str, list[str]], to: str | None
    ) -> None:
        self.race, self.standing, self.candidates, self.to = race, standing, candidates, to
        self.data, self.use = race.data, standing.recommended
        self.served = race.served([*standing.seen])
        costly = {name: race.measured.get(name, 0) for name in race.costly}
        self.documents = {name: min(n, standing.documents) for name, n in costly.items()}
        self.documents |= standing.seen
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

    def cost(self, name: str) -> Difference:
        """Return what a candidate costs inside the window."""
        return difference(self.race.in_window_cost(name, self.race.cost_documents[name]))

    def verdict(self, name: str) -> str:
        """Return what a candidate is, in a word or two."""
        standing, race = self.standing, self.race
        if name in race.failed:
            return FAILED
        if name in race.costly:
            return COSTLY
        if name not in standing.seen:
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
        standing, reasons = self.standing, self.race.failed
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys([*self.candidates, *reasons]):
            row: dict[str, Any] = {"scaling": name, "verdict": self.verdict(name)}
            row["same"] = ", ".join(self.candidates.get(name, [])[1:])
            row["reason"] = reasons.get(name)
            if count := self.documents.get(name, 0):
                regret = standing.regret.get(name)
                row |= _perplexity(self.data.losses(FAR, name, count))
                row |= {"regret": None if regret is None else share(regret)}
                row |= _columns("difference", self.above(name, self.use))
                row |= _columns("truncation", self.against_truncation(name))
            measured = name in self.race.cost_documents and name not in reasons
            if measured and not self.data.depends_on_length(name):  # a server keeps one form
                cost = self.cost(name)
                row |= {**_columns("cost", cost), "cost_documents": cost.n}
            rows.append(row)
        above = self.gain.swapped(relative=True)
        worse = above.low is not None and above.low > 0
        verdict = USE if self.truncate else WORSE if worse else OPEN
        row = {"scaling": "truncation", "verdict": verdict}
        row |= _perplexity(self.data.losses(CUT, OWN, standing.documents))
        rows.append({**row, **_columns("difference", above), "truncation": 0.0, "cost": 0.0})
        order = {USE: -2, BEST: -1}
        rows.sort(key=lambda row: (order.get(row["verdict"], 0), row.get("difference", math.inf)))
        table = pd.DataFrame(rows)
        counts = ["documents", "cost_documents"]
        return table.astype(dict.fromkeys(counts, "Int64")).fillna({"documents": 0, "same": ""})

    def shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the table for people."""
        rows = table.to_dict("records")
        perplexity = {"metric": "perplexity", "status": "ok"}
        return pd.DataFrame(
            {
                "method": [" = ".join(filter(None, (row["scaling"], row["same"]))) for row in rows],
                "perplexity [95 %]": [
                    text({**row, **perplexity}) if row["documents"] else "" for row in rows
                ],
                "against truncation": table["truncation"].map(signed),
                f"cost inside {self.data.window}": table["cost"].map(signed),
                "n": table["documents"].astype(str),
                "verdict": table["verdict"],
            }
        )

    def text(self) -> list[str]:
        """Return the recommendation: what to use, what it gains and costs, what was spent."""
        standing, data, use = self.standing, self.data, self.use
        target, window = f"at {data.target:,} tokens", f"{data.window:,} tokens"
        unreached = [name for name in self.candidates if self.verdict(name) == UNREACHED]
        documents = counted(standing.documents, "documents")
        known = f"({'95 %, ' * (use in standing.regret)}{documents})"
        if unreached:
            known = f"{known}; the budget did not reach {listed(unreached)}"
        bound = f"its perplexity {target} is {self._bound()}"
        against = f"Against truncation to {window}, its perplexity is {_signed(self.gain)}"
        if self.truncate:
            first = (
                f"On this text, truncate to {window}: the best scaling, `{use}`, is "
                f"{_size(self.gain)} worse {known}."
            )
            lines = [first, f"Of the scalings, use `{use}`: {bound}. {RETRIEVAL}"]
        elif self.gain.high is not None and self.gain.high < 0:
            lines = [f"Use `{use}`: {bound} {known}.", f"{against}."]
        else:
            not_better = f"not significantly better on this text. {RETRIEVAL}"
            lines = [f"Use `{use}`: {bound} {known}.", f"{against}: {not_better}"]
        inside = self._inside()
        if self.race.costly:
            most = f"{100 * self.race.tolerance:g} %"
            inside += (
                f" Significantly above {most}, so left out: {listed(sorted(self.race.costly))}."
            )
        return [*lines, inside, self._spent()]

    def _bound(self) -> str:
        """Say how good the recommended method is at least."""
        standing, served, name = self.standing, self.served, self.use
        methods = counted(len(served), "methods")
        if self.to or len(served) < len(standing.seen):
            methods += f" that {self.to or 'an engine'} can serve"
        if self.race.costly:
            methods += " and that are not too costly inside"
        rest = [one for one in served if one != name]
        if not rest:
            return f"the only one left of those that {self.to or 'an engine'} can serve"
        if name not in standing.regret:
            return f"the lowest of {methods}; a bound takes {MIN_DOCUMENTS} documents"
        if standing.ended != WINNER:
            bound = at_most(share(standing.regret[name]))
            return f"at most {bound} above that of the best of {methods}"
        most = max(standing.seen[one] for one in rest)
        rivals = {one: self.above(one, name) for one in rest if standing.seen[one] == most}
        second = min(rivals, key=lambda one: (rivals[one].value, one))
        return (
            f"the lowest of {methods}; the next, of `{second}`, is {_size(rivals[second])} higher"
        )

    def _inside(self) -> str:
        """Say what the recommended method costs inside the window, and which one costs least."""
        data, tolerance = self.data, self.race.tolerance
        inside, cost = f"Inside {data.window:,} tokens", self.cost(self.use)
        if data.depends_on_length(self.use):
            return (
                f"{inside} its cost on a server was not measured: a server keeps the form of "
                f"{data.target:,} tokens, and this method changes its form with the length."
            )
        if not cost.lower + cost.higher:
            return f"{inside} it is the unscaled model and costs nothing."
        line = f"{inside} its perplexity changes by {_signed(cost)}"
        if cost.value > tolerance:
            line += f", above the tolerance of {100 * tolerance:g} %"
            line += ", but not significantly" * (cost.low is None or cost.low <= tolerance)
        near = {self.use, *self.standing.possible}
        fixed = [n for n in self.served if n in near and n != OWN]
        values = {name: self.cost(name) for name in fixed if not data.depends_on_length(name)}
        least = min(values, key=lambda name: (values[name].value, name))
        if least == self.use:
            return f"{line}: no other method that may be best costs less."
        return (
            f"{line}. Cheapest of those that may be best is `{least}`: {_signed(values[least])} "
            "there, and "
            f"{_signed(self.above(least, self.use))} against `{self.use}` at the target."
        )

    def _spent(self) -> str:
        """Say what was spent, and what would lower the bound."""
        standing, data, margin = self.standing, self.data, self.race.margin
        seconds = sum(data.samples.get(key, {}).get("seconds") or 0 for key in data.requested)
        line = (
            f"Spent {data.forwards():,.0f} of the {self.race.grid():,.0f} forwards that measuring "
            f"everything takes, in {duration(seconds)}."
        )
        if standing.ended == BUDGET:
            line += f" The budget of {data.budget.text(data.budget.most)} ended the race."
        regret = standing.regret.get(self.use, math.inf)
        if standing.needed and regret > math.log1p(margin) and standing.ended != WINNER:
            line += f" A bound of {100 * margin:g} % takes about {standing.needed:,} documents"
            line += "; a larger --budget goes on from here." if standing.ended == BUDGET else "."
        return line


def _perplexity(losses: Array) -> dict[str, Any]:
    (mean,) = ratios(losses[:, None], np.ones((len(losses), 1)))
    return dict(zip(("score", "low", "high"), mean.exp(), strict=True)) | {"documents": len(losses)}


def _columns(kind: str, one: Difference) -> dict[str, float | None]:
    return {kind: one.value, f"{kind}_low": one.low, f"{kind}_high": one.high}


def _signed(one: Difference) -> str:
    """Return a difference with its interval: "+1.2 % [+0.3, +2.0]"."""
    return signed(one.value, one.low, one.high)


def _size(one: Difference) -> str:
    """Return how much worse something is: "1.2 % [−0.3, 2.0]"."""
    return _signed(one).replace("+", "")


def so_far(standing: Standing) -> str:
    """Return the answer of a race that goes on."""
    regret = standing.regret.get(standing.leader)
    bound = "" if regret is None else f", at most {at_most(share(regret))} above the best"
    return (
        f"After {counted(standing.documents, 'documents')}: `{standing.leader}`{bound}; "
        f"{len(standing.possible)} of {counted(len(standing.seen), 'candidates')} may be the best."
    )


def write(answer: Answer) -> Recommendation:
    """Return the recommendation, and write it into the reports of the run folder."""
    data, standing, table = answer.data, answer.standing, answer.table()
    lines, shown = answer.text(), answer.shown(table)
    plan, export, following = data.plan, "", ""
    method = next(method for method in plan.methods if method.label == answer.use)
    rotation = data.cells[FAR, answer.use].rotation
    if rotation and method.digest != FUNCTION and plan.checkpoint.loaded is None:
        export, following, _ = express(plan.spec, method.given, data.target, answer.to)
    sentences = [*lines, *([f"Next: {following}"] if following else [])]
    folder = data.folder / REPORTS
    make_folder(folder)
    part = ({plan.checkpoint.label: shown}, sentences)
    regret = standing.regret.get(answer.use)
    return Recommendation(
        scaling=answer.use,
        winner=standing.ended == WINNER and len(answer.served) > 1,
        truncate=answer.truncate,
        regret=None if regret is None else share(regret),
        text="\n".join(lines),
        table=table,
        shown=shown,
        next=following,
        export=export,
        failures=answer.race.failed,
        folder=data.folder,
        files=tuple(save_table(table, [part], folder / "recommend")),
    )
