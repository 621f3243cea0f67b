"""The result of a race: a table with one row per candidate, a paragraph, and a figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

from harness.files import make_folder
from harness.plugins import FUNCTION
from harness.reports._write import save_figure, save_table
from harness.reports.plots.style import (
    COLOURS,
    GREY,
    SIZE,
    drawing,
    folded,
    foot,
    length_label,
    sheet,
    tidy,
)
from harness.reports.writing.sentences import at_most, counted, listed, signed
from harness.runs.store import reports_of
from harness.select.measuring import CODE, OWN, RaceField
from harness.select.race import BUDGET, CUT, DOCUMENTS, FAR, WINNER, Array, Race, Standing
from harness.serve._export import serving_command
from harness.stats.paired import Difference, of_means, share
from harness.sweep.eta import duration
from scaling import native
from tasks._intervals import MIN_DOCUMENTS

RECOMMENDED, ALIKE, OPEN = "recommended", "as good as the best", "may be the best"
WORSE, COSTLY, FAILED = "worse than another", "too costly", "failed"
UNREACHED, CODED = "not reached: budget", f"only {CODE}"
VERDICTS = (RECOMMENDED, ALIKE, OPEN, CODED, WORSE, COSTLY, UNREACHED, FAILED)
ENDS = ("", "_low", "_high")  # of the columns difference and cost
ROW = 0.19  # inches
MOST = 30  # candidates
LINEAR = 10  # percent: the scale is linear up to it
NOTE = (
    "Left: perplexity above that of the recommended method, on the documents that both were "
    "measured on; at the right, the bound of how much it is at most above that of the best (95 %, "
    "all rows together), and the number of documents. Right: perplexity inside the window above "
    "that of the plain model; the line is the tolerance of {tolerance}. Bars: 95 % intervals of "
    "each difference alone. Scales are logarithmic beyond {linear} %."
)
TRUNCATION = " The dashed line is truncation to the window."
FOLLOWS = " †: its form changes with the length of the input; a server keeps that of the target."
OTHER = f"{WORSE}, or {COSTLY}"
LOOKS = {
    RECOMMENDED: (COLOURS[0], COLOURS[0]), ALIKE: (COLOURS[2], COLOURS[2]),
    OPEN: (COLOURS[1], "white"), CODED: ("0.5", "white"), OTHER: ("0.6", "0.6"),
}  # fmt: skip


@dataclass(frozen=True)
class FinishedRace:
    """A race that is over.

    ``candidates`` are by name, each with the names that it coincides with; ``to`` is the engine
    that will serve the method, None for any.
    """

    race: Race
    field: RaceField
    standing: Standing
    candidates: dict[str, list[str]]
    to: str | None

    @property
    def served(self) -> tuple[str, ...]:
        """The candidates that were compared to find the best."""
        names, servable = self.standing.names, self.race.rules.servable
        return tuple(name for name in names if name in servable) or names

    def above(self, name: str) -> Difference:
        """Return the share by which a perplexity is above the recommended one at the target."""
        first, seen = self.standing.recommended, self.standing.seen
        return self._less(name, first, min(seen[name], seen[first]))

    def _less(self, name: str, other: str, count: int) -> Difference:
        losses = [self.field.losses(FAR, one, count) for one in (name, other)]
        return difference(losses[0] - losses[1])

    def cost(self, name: str) -> Difference | None:
        """Return a candidate's in-window cost; None where it was not measured."""
        unchanged = self.field.unchanged(name)
        count = self.standing.documents if unchanged else self.race.cost_documents.get(name)
        return None if count is None else difference(self.race.in_window_cost(name, count))

    def gain(self) -> Difference | None:
        """Return the recommended method's perplexity relative to truncation."""
        if not self.standing.truncated:
            return None
        count = self.standing.documents
        far = self.field.losses(FAR, self.standing.recommended, count)
        return difference(far - self.field.losses(CUT, OWN, count))

    def verdict(self, name: str) -> str:
        """Return one of ``VERDICTS``."""
        standing, race = self.standing, self.race
        if name in race.failed:
            return FAILED
        if name in race.costly:
            return COSTLY
        if name not in standing.names:
            return UNREACHED
        if name == standing.recommended:
            return RECOMMENDED
        if name not in self.served:
            return CODED
        if standing.regret.get(name, math.inf) <= math.log1p(race.rules.margin):
            return ALIKE
        return OPEN if name in standing.possible else WORSE

    def table(self) -> pd.DataFrame:
        """Return one row per candidate, the recommended one first.

        ``regret`` is the share by which its perplexity at the target is at most above that of the
        best (95 %, all rows together). ``difference`` is the share by which it is above the
        recommended one's. ``cost`` is the share inside the window by which it is above the
        unscaled model's. Each of the last two has its own 95 % interval.
        """
        rows = []
        reasons = self.field.failed | self.race.failed
        for name, same in self.candidates.items():
            count, regret = self.standing.seen.get(name, 0), self.standing.regret.get(name)
            rows.append(
                {
                    "scaling": name,
                    "same": ", ".join(same[1:]) or None,
                    "verdict": self.verdict(name),
                    "regret": None if regret is None or not count else share(regret),
                    **_columns("difference", self.above(name) if count else None),
                    **_columns("cost", None if name in reasons else self.cost(name)),
                    "documents": count,
                    "follows": self.field.depends_on_length(name),
                    "reason": reasons.get(name),
                }
            )
        for name, reason in self.field.failed.items():
            rows.append({"scaling": name, "verdict": FAILED, "documents": 0, "reason": reason})
        table = pd.DataFrame(rows)
        order = table["verdict"].map(VERDICTS.index)
        table = table.assign(order=order).sort_values(["order", "difference"], kind="stable")
        return table.drop(columns="order").reset_index(drop=True)

    def display(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the table for people."""
        same = table["same"].map(lambda names: f" = {names}" if isinstance(names, str) else "")
        mark = table["follows"].map({True: " †"}).fillna("")
        return pd.DataFrame(
            {
                "scaling": table["scaling"] + same,
                "verdict": table["verdict"],
                "above the best at most": table["regret"]
                .map(at_most, na_action="ignore")
                .fillna(""),
                f"above the first at {self.field.target}": _texts(table, "difference"),
                f"cost inside {self.field.window}": _texts(table, "cost") + mark,
                "documents": table["documents"].astype(str),
            }
        )

    def note(self, table: pd.DataFrame) -> str:
        """Say on which documents costs are measured, and whose cost is not that of a server."""
        text = (
            "In-window costs are measured on all documents for finalists, for other methods on the "
            f"first {self.race.rules.rounds[0]}."
        )
        if table["follows"].eq(True).any():
            text += (
                " †: its form changes with the length of the input. The cost is that of its form "
                f"at {self.field.window:,} tokens; a server keeps the form of "
                f"{self.field.target:,} tokens."
            )
        return text

    def lines(self) -> list[str]:
        """Return the recommendation with its bound, cost and gain, and how the race ended."""
        use = f"Use `{self.standing.recommended}`. {self._bound()}"
        return [use, self._inside(), self._gain(), *self._others(), *self._end()]

    def _bound(self) -> str:
        """Say how good the recommended method is at least."""
        standing, served = self.standing, self.served
        name, target = standing.recommended, f"{self.field.target:,} tokens"
        methods = counted(len(served), "methods")
        if self.to or len(served) < len(standing.names):
            methods += f" that {self.to or 'an engine'} can serve"
        documents = counted(standing.documents, "documents")
        rest = [one for one in served if one != name]
        bound = standing.regret.get(name)
        if bound is None:
            return (
                f"Its perplexity at {target} is the lowest of {methods} on {documents}; fewer than "
                f"{MIN_DOCUMENTS} documents give no bound."
            )
        if not rest:
            return f"It is the only method left of those that {self.to or 'an engine'} can serve."
        if standing.ended != WINNER:
            return (
                f"Its perplexity at {target} is at most {at_most(share(bound))} above that of the "
                f"best of {methods} (95 %, {documents})."
            )
        count = max(standing.seen[one] for one in rest)
        rivals = [one for one in rest if standing.seen[one] == count]
        second = min(rivals, key=lambda one: (self.above(one).value, one))
        return (
            f"Its perplexity at {target} is the lowest of {methods}, "
            f"{spread(self._less(name, second, count))} below that of the next best, `{second}` "
            f"(95 %, {documents})."
        )

    def _inside(self) -> str:
        """Say what the recommended method costs inside the window."""
        name, tolerance = self.standing.recommended, self.race.rules.tolerance
        inside, cost = f"Inside {self.field.window:,} tokens it", self.cost(name)
        changing = self.field.depends_on_length(name)
        form = ", computed anew for each length," * changing
        server = (
            f" That is not the cost on a server, which keeps the form of {self.field.target:,} "
            "tokens for all inputs."
        ) * changing
        if self.field.unchanged(name):
            ships = native.ships(self.field.plan.checkpoint.rope)
            model = "model without the scaling that it ships" if ships else "plain model"
            return f"{inside}{form} is the {model} and costs nothing.{server}"
        assert cost is not None  # it is measured of the recommended method
        text = f"{inside}{form} {'costs' if cost.value > 0 else 'gains'} {spread(cost)}"
        if cost.value > tolerance:
            text += f", above the tolerance of {percent(tolerance)}"
            if cost.low is None or cost.low <= tolerance:
                text += ", but not significantly"
        return f"{text}.{server}"

    def _gain(self) -> str:
        """Say what the recommended method gains over cutting the input to the window."""
        gain, window = self.gain(), f"{self.field.window:,} tokens"
        if gain is None:
            return (
                f"Truncation to {window} was not measured: the budget ended, or the plain model "
                "has no number there."
            )
        side = "below" if gain.value < 0 else "above"
        text = f"Its perplexity is {spread(gain)} {side} that of truncation to {window}"
        if gain.high is not None and gain.high < 0:
            return f"{text}."
        worse = gain.low is not None and gain.low > 0
        return (
            f"{text}: {'worse' if worse else 'not significantly better'} on this text. Retrieval "
            "tasks (niah, ruler or passkey) show whether it uses the longer input."
        )

    def _others(self) -> list[str]:
        """Say which method that no engine serves is better, and which were not reached."""
        text = []
        coded = {name: self.above(name) for name in self.standing.names if name not in self.served}
        better = [name for name, one in coded.items() if one.high is not None and one.high < 0]
        if better:
            best = min(better, key=lambda name: (coded[name].value, name))
            text.append(
                f"`{best}` is {spread(coded[best])} better, but only --to {CODE} serves it: a "
                "modelling file in transformers."
            )
        unreached = [name for name in self.candidates if self.verdict(name) == UNREACHED]
        if unreached:
            text.append(f"The budget did not reach {listed(unreached)}.")
        return text

    def _end(self) -> list[str]:
        """Say what no document shows, and in one line what was spent and would lower the bound."""
        standing, field = self.standing, self.field
        count, margin = standing.documents, self.race.rules.margin
        rare, text = list[str](), list[str]()
        if count >= MIN_DOCUMENTS:
            rare.append(
                f"{counted(count, 'documents')} without a failure of a method leave failures on up "
                f"to {at_most(min(1, 3 / count))} of documents possible (95 %)."
            )
        if standing.ended in (BUDGET, DOCUMENTS) and len(self.served) > 1:
            if standing.ended == BUDGET:
                text.append(f"The budget of {field.budget} ended the race.")
            regret = standing.regret.get(standing.recommended, math.inf)
            if standing.needed and regret > math.log1p(margin):
                more = "; a larger --budget goes on from here" * (standing.ended == BUDGET)
                text.append(
                    f"A bound of {percent(margin)} would take about {standing.needed:,} such "
                    f"documents{more}."
                )
        time, grid = duration(field.seconds(field.requested)), field.grid(self.candidates)
        text.append(f"Spent: {field.forwards:,.0f} of {grid:,.0f} forwards, in {time}.")
        return [*rare, " ".join(text)]

    def next_command(self) -> tuple[str, str]:
        """Return the command that writes the method for an engine, and what to say of it.

        Both are empty where the model or the method is an object of this process.
        """
        plan, name = self.field.plan, self.standing.recommended
        method = next(method for method in plan.methods if method.label == name)
        if method.digest == FUNCTION or plan.checkpoint.loaded is not None:
            return "", ""
        rotation = self.field.cells[FAR, name].rotation
        assert rotation is not None  # it has numbers
        return serving_command(plan.spec, method.given, rotation, self.field.target, self.to)


def difference(losses: Array) -> Difference:
    """Return by which share perplexities differ, from differences of losses by document."""
    return of_means(losses[:, None], np.ones((len(losses), 1)), relative=True)[0]


def so_far(standing: Standing) -> str:
    """Return the answer of a race that goes on."""
    regret = standing.regret.get(standing.leader)
    bound = "" if regret is None else f", at most {at_most(share(regret))} above the best"
    return (
        f"After {counted(standing.documents, 'documents')}: `{standing.leader}`{bound}; "
        f"{len(standing.possible)} of {counted(len(standing.names), 'candidates')} may be the best."
    )


def percent(value: float) -> str:
    """Return a share without its sign: "2.1 %"."""
    number = abs(100 * value)
    return f"{number:.1f}".removesuffix(".0") + " %" if number < 10 else f"{number:,.0f} %"


def spread(one: Difference) -> str:
    """Return a difference with its interval, without the sign of the value: "1.2 % [0.3, 2.0]"."""
    if one.low is None or one.high is None:
        return percent(one.value)
    sign = -100 if one.value < 0 else 100
    low, high = sorted((sign * one.low, sign * one.high))
    around = ", ".join(f"{end:.1f}" if abs(end) < 10 else f"{end:,.0f}" for end in (low, high))
    return f"{percent(one.value)} [{around}]".replace("-0.0", "0.0").replace("-", "−")


def _columns(kind: str, one: Difference | None) -> dict[str, float | None]:
    values = (one.value, one.low, one.high) if one else (None, None, None)
    return {f"{kind}{end}": value for end, value in zip(ENDS, values, strict=True)}


def _texts(table: pd.DataFrame, kind: str) -> pd.Series[str]:
    """Return differences as texts; what is 0 by construction has no interval."""
    rows = table[[f"{kind}{end}" for end in ENDS]].itertuples(index=False, name=None)
    return pd.Series(
        [signed(value, low or None, high or None) for value, low, high in rows], table.index
    )


def draw(finished: FinishedRace, table: pd.DataFrame) -> Figure:
    """Draw the table of a race: how much worse every candidate is, and its in-window cost."""
    field, gain, tolerance = finished.field, finished.gain(), finished.race.rules.tolerance
    rows = table[table["difference"].notna()].head(MOST).iloc[::-1].reset_index(drop=True)
    figure, (far, near) = sheet(2, 2, panel_height=ROW * len(rows) + 0.8)
    _panel(far, rows, "difference")
    _panel(near, rows, "cost")
    near.axvline(100 * tolerance, color="black", linewidth=0.8)
    if gain is not None:
        cut = 100 * (1 / (1 + gain.value) - 1)
        far.axvline(cut, color="black", linewidth=0.8, linestyle="--")
    marks = rows["follows"].map({True: " †"}).fillna("")
    names = [folded(name, 2.2, SIZE - 1) for name in rows["scaling"] + marks]
    far.set_yticks(range(len(rows)), names)
    near.set_yticks(range(len(rows)), [""] * len(rows))
    for place, (bound, count) in enumerate(zip(rows["regret"], rows["documents"], strict=True)):
        text = f"{count}" if pd.isna(bound) else f"≤ {at_most(bound)} · {count}"
        at = far.get_yaxis_transform()
        far.text(1.01, place, text, transform=at, fontsize=SIZE - 2, color=GREY, va="center")
    model = field.plan.checkpoint.label
    tidy(far, f"{model} at {length_label(field.target)} tokens", room=3)
    tidy(near, f"Cost inside the window ({length_label(field.window)})", room=3)
    keys = [
        Line2D([], [], marker="o", linestyle="", color=colour, markerfacecolor=face, markersize=5)
        for colour, face in LOOKS.values()
    ]
    note = NOTE.format(tolerance=percent(tolerance), linear=LINEAR)
    note += TRUNCATION * (gain is not None) + FOLLOWS * bool(marks.any())
    foot(figure, keys, list(LOOKS), note)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, kind: str) -> None:
    """Draw one difference of every candidate, in percent."""
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    for place, row in enumerate(rows.to_dict("records")):
        colour, face = LOOKS.get(row["verdict"], LOOKS[OTHER])
        if pd.notna(row[f"{kind}_low"]):
            ends = 100 * row[f"{kind}_low"], 100 * row[f"{kind}_high"]
            axes.hlines(place, *ends, color=colour, linewidth=1.1)
        if pd.notna(row[kind]):
            axes.plot(
                100 * row[kind], place, "o", color=colour, markerfacecolor=face, markersize=4.5
            )
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=LINEAR))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+,.0f}" if x else "0"))
    axes.set_xlabel("Perplexity (%), lower is better", fontsize=SIZE - 1)


@dataclass(frozen=True)
class Recommendation:
    """The answer of a race.

    Attributes:
        scaling: the method to use.
        winner: whether it is significantly the best.
        regret: the share by which its perplexity is at most above that of the best (95 %); None
            where there are too few documents for a bound.
        text: the recommendation, one line per subject.
        table: one row per candidate; ``shown`` is the same for people, with a ``note``.
        next: what to type to write the method for an engine, or why nothing serves it, and
            ``export`` the command in it; both are empty for a model or a function of this process.
        failures: the candidates without a number, and why.
    """

    JSON = (
        "scaling", "winner", "regret", "text", "table", "note", "next", "export", "failures",
        "folder", "files",
    )  # fmt: skip

    scaling: str
    winner: bool
    regret: float | None
    text: str
    table: pd.DataFrame
    shown: pd.DataFrame
    note: str
    figure: Figure
    next: str
    export: str
    failures: dict[str, str]
    folder: Path
    files: tuple[Path, ...]


def write(finished: FinishedRace) -> Recommendation:
    """Return the recommendation, and write it into the reports of the run folder."""
    field, standing, table = finished.field, finished.standing, finished.table()
    lines, display, note = finished.lines(), finished.display(table), finished.note(table)
    label, folder = field.plan.checkpoint.label, reports_of(field.folder)
    export, following = finished.next_command()
    sentences = [*lines, note, *([f"Next: {following}"] if following else [])]
    make_folder(folder)
    with drawing():
        figure = draw(finished, table)
        files = save_table(table, [({label: display}, sentences)], folder / "recommend")
        files += save_figure(figure, folder, "recommend")
    regret = standing.regret.get(standing.recommended)
    return Recommendation(
        scaling=standing.recommended,
        winner=standing.ended == WINNER and len(finished.served) > 1,
        regret=None if regret is None else share(regret),
        text="\n".join(lines),
        table=table,
        shown=display,
        note=note,
        figure=figure,
        next=following,
        export=export,
        failures=field.failed | finished.race.failed,
        folder=field.folder,
        files=tuple(files),
    )
