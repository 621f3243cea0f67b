"""The answer of a race: a table with one row per candidate, and a paragraph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from harness.reports.writing.sentences import counted, listed, signed
from harness.runs.folders import reports_of
from harness.select.candidates import CODE, OWN
from harness.select.measuring import Measured
from harness.select.race import BUDGET, CUT, DOCUMENTS, FAR, WINNER, Array, Race, Standing
from harness.serve._export import serving_command
from harness.stats.paired import Difference, of_means, share
from harness.sweep.eta import duration
from scaling import native
from tasks._intervals import MIN_DOCUMENTS

RECOMMENDED, ALIKE, OPEN = "recommended", "as good as the best", "may be the best"
WORSE, COSTLY, FAILED = "worse than another", "too costly", "failed"
UNREACHED, CODED = "not reached: budget", f"only {CODE}"
PLACES = (RECOMMENDED, ALIKE, OPEN, CODED, WORSE, COSTLY, UNREACHED, FAILED)
KINDS = ("difference", "cost")  # the table has value, low and high of each
RETRIEVAL = "niah, ruler or passkey"


@dataclass(frozen=True)
class Ended:
    """A race that is over, and what it was about.

    ``families`` are the candidates that are the same method, by the name under which it raced;
    ``to`` is the engine that will serve the answer, None for any.
    """

    race: Race
    measured: Measured
    standing: Standing
    families: dict[str, list[str]]
    to: str | None

    @property
    def served(self) -> tuple[str, ...]:
        """The candidates that were compared to find the best."""
        names, servable = self.standing.names, self.race.rules.servable
        return tuple(name for name in names if name in servable) or names

    def above(self, name: str, other: str) -> Difference:
        """Return by which share a candidate's perplexity is above another's at the target."""
        count = min(self.standing.seen[one] for one in (name, other))
        found = [self.measured.losses(FAR, one, count) for one in (name, other)]
        return difference(found[0] - found[1])

    def cost(self, name: str) -> Difference | None:
        """Return a candidate's in-window cost; None where it was not measured."""
        free = self.measured.free(name)
        count = self.standing.documents if free else self.race.priced.get(name)
        return None if count is None else difference(self.race.price(name, count))

    def gain(self) -> Difference | None:
        """Return the recommended method's perplexity relative to truncation."""
        if not self.standing.truncated:
            return None
        count = self.standing.documents
        far = self.measured.losses(FAR, self.standing.recommended, count)
        return difference(far - self.measured.losses(CUT, OWN, count))


def difference(losses: Array) -> Difference:
    """Return by which share perplexities differ, from differences of losses by document."""
    return of_means(losses[:, None], np.ones((len(losses), 1)), relative=True)[0]


def table(ended: Ended) -> pd.DataFrame:
    """Return one row per candidate, the recommended one first.

    ``regret`` is the share by which its perplexity at the target is at most above that of the best
    (95 %, all rows together); ``difference`` its share above the recommended one's, and ``cost``
    that inside the window above the plain model's, each with its own 95 % interval.
    """
    rows: list[dict[str, Any]] = []
    standing, race, measured = ended.standing, ended.race, ended.measured
    reasons = measured.failed | race.failed
    for name, same in ended.families.items():
        row: dict[str, Any] = {"scaling": name, "same": ", ".join(same[1:]) or None}
        row |= {"verdict": _verdict(ended, name), "follows": measured.depends_on_length(name)}
        if standing.seen.get(name):
            row["documents"] = standing.seen[name]
            if name in standing.regret:
                row["regret"] = share(standing.regret[name])
            row |= _spread("difference", ended.above(name, standing.recommended))
        if name not in reasons:
            row |= _spread("cost", ended.cost(name))
        rows.append(row | {"reason": reasons.get(name)})
    rows += [
        {"scaling": name, "verdict": FAILED, "reason": reason}
        for name, reason in measured.failed.items()
    ]
    columns = ["scaling", "same", "verdict", "regret"]
    columns += [f"{kind}{end}" for kind in KINDS for end in ("", "_low", "_high")]
    made = pd.DataFrame(rows).reindex(columns=[*columns, "documents", "follows", "reason"])
    made["documents"] = made["documents"].fillna(0).astype(int)
    order = made["verdict"].map({verdict: place for place, verdict in enumerate(PLACES)})
    by = made.assign(order=order).sort_values(["order", "difference"], kind="stable")
    return by.drop(columns="order").reset_index(drop=True)


def readable(made: pd.DataFrame, ended: Ended) -> pd.DataFrame:
    """Return the table for people."""
    same = made["same"].map(lambda names: f" = {names}" if isinstance(names, str) else "")
    bound = made["regret"].map(lambda one: "" if pd.isna(one) else percent(one))
    return pd.DataFrame({
        "scaling": made["scaling"] + same,
        "verdict": made["verdict"],
        "above the best at most": bound,
        f"above the first at {ended.measured.target}": _texts(made, "difference"),
        f"cost inside {ended.measured.window}": _texts(made, "cost")
        + made["follows"].map({True: " †"}).fillna(""),
        "documents": made["documents"].astype(str),
    })  # fmt: skip


def paragraph(ended: Ended) -> str:
    """Return the recommendation with its bound, cost and gain, and how the race ended."""
    parts = (_choice(ended), _gain(ended), _others(ended), _failures(ended), _ended(ended))
    return " ".join(part for part in parts if part)


def footnote(made: pd.DataFrame, ended: Ended) -> str:
    """Say on which documents costs are measured, and whose cost is not that of a server."""
    measured, first = ended.measured, ended.race.rules.rounds[0]
    told = (
        f"In-window costs are measured on all documents for finalists, for other methods on the "
        f"first {first}."
    )
    if not made["follows"].eq(True).any():
        return told
    return (
        f"{told} †: its form changes with the length of the input. The cost is that of its form at "
        f"{measured.window:,} tokens; a server keeps the form of {measured.target:,} tokens."
    )


def so_far(standing: Standing) -> str:
    """Return the answer of a race that goes on."""
    bound = standing.regret.get(standing.leader)
    told = "" if bound is None else f", at most {percent(share(bound))} above the best"
    return (
        f"After {counted(standing.documents, 'documents')}: `{standing.leader}`{told}; "
        f"{len(standing.possible)} of {counted(len(standing.names), 'candidates')} may be the best."
    )


def percent(value: float) -> str:
    """Return a share without its sign: "2.1 %"."""
    number = abs(100 * value)
    return f"{number:.1f}".removesuffix(".0") + " %" if number < 10 else f"{number:,.0f} %"


def spread(found: Difference) -> str:
    """Return a difference with its interval; what is below 0 loses its sign: "1.2 % [0.3, 2.0]"."""
    if found.low is None or found.high is None:
        return percent(found.value)
    sign = -1 if found.value < 0 else 1
    low, high = sorted((100 * sign * found.low, 100 * sign * found.high))
    around = ", ".join(f"{end:.1f}" if abs(end) < 10 else f"{end:,.0f}" for end in (low, high))
    return f"{percent(found.value)} [{around}]".replace("-0.0", "0.0").replace("-", "−")


def _spread(kind: str, found: Difference | None) -> dict[str, float | None]:
    if found is None:
        return {}
    return {kind: found.value, f"{kind}_low": found.low, f"{kind}_high": found.high}


def _texts(made: pd.DataFrame, kind: str) -> pd.Series[str]:
    """Return differences as texts; what is 0 by construction has no interval."""
    ends = made[[kind, f"{kind}_low", f"{kind}_high"]].itertuples(index=False, name=None)
    return pd.Series(
        [signed(value, low or None, high or None) for value, low, high in ends], made.index
    )


def _verdict(ended: Ended, name: str) -> str:
    standing, race = ended.standing, ended.race
    if name in race.failed:
        return FAILED
    if name in race.costly:
        return COSTLY
    if name not in standing.names:
        return UNREACHED
    if name == standing.recommended:
        return RECOMMENDED
    if name not in ended.served:
        return CODED
    if standing.regret.get(name, math.inf) <= math.log1p(race.rules.margin):
        return ALIKE
    return OPEN if name in standing.possible else WORSE


def _choice(ended: Ended) -> str:
    """Say which method to use, how good it is at least, and what it costs inside the window."""
    standing, measured, served = ended.standing, ended.measured, ended.served
    name, target = standing.recommended, f"{measured.target:,} tokens"
    who = counted(len(served), "methods")
    if ended.to or len(served) < len(standing.names):
        who += f" that {ended.to or 'an engine'} can serve"
    documents = counted(standing.documents, "documents")
    rest = [one for one in served if one != name]
    bound = standing.regret.get(name)
    if bound is None:
        told = (
            f"Its perplexity at {target} is the lowest of {who} on {documents}; fewer than "
            f"{MIN_DOCUMENTS} documents give no bound."
        )
    elif standing.ended == WINNER and rest:
        known = max(standing.seen[one] for one in rest)
        rivals = [one for one in rest if standing.seen[one] == known]
        following = min(rivals, key=lambda one: (ended.above(one, name).value, one))
        lead = spread(ended.above(name, following))
        told = (
            f"Its perplexity at {target} is the lowest of {who}, {lead} below that of the next, "
            f"`{following}` (95 %, {documents})."
        )
    elif rest:
        told = (
            f"Its perplexity at {target} is at most {percent(share(bound))} above that of the best "
            f"of {who} (95 %, {documents})."
        )
    else:
        told = f"It is the only method left of those that {ended.to or 'an engine'} can serve."
    return f"Use `{name}`. {told} {_inside(ended)}"


def _inside(ended: Ended) -> str:
    measured, name = ended.measured, ended.standing.recommended
    inside, cost = f"Inside {measured.window:,} tokens it", ended.cost(name)
    if measured.free(name):
        model = "the plain model"
        if native.ships(measured.plan.checkpoint.rope):
            model = "the model without the scaling that it ships"
        form = ", computed anew for each length," * measured.depends_on_length(name)
        return f"{inside}{form} is {model} and costs nothing."
    assert cost is not None  # of the recommended method it is measured
    word = "costs" if cost.value > 0 else "gains"
    told = f"{inside} {word} {spread(cost)}"
    if cost.value > ended.race.rules.tolerance:
        told += f", above the tolerance of {percent(ended.race.rules.tolerance)}"
        sure = cost.low is not None and cost.low > ended.race.rules.tolerance
        told += ", but not significantly" * (not sure)
    return f"{told}."


def _gain(ended: Ended) -> str:
    """Say what the recommended method gains over cutting the input to the window."""
    found, window = ended.gain(), f"{ended.measured.window:,} tokens"
    if found is None:
        return (
            f"Truncation to {window} was not measured: the budget ended, or the plain model has no "
            "number there."
        )
    side = "below" if found.value < 0 else "above"
    told = f"It is {spread(found)} {side} truncation to {window}"
    if found.high is not None and found.high < 0:
        return f"{told}."
    return (
        f"{told}: on this text it is not shown to be better than truncation. Retrieval tasks "
        f"({RETRIEVAL}) show whether it uses the longer input."
    )


def _others(ended: Ended) -> str:
    """Say which method without an engine is better, and which were not reached."""
    standing, told = ended.standing, []
    coded = {n: ended.above(n, standing.recommended) for n in standing.names
             if n not in ended.served}  # fmt: skip
    better = [n for n, one in coded.items() if one.high is not None and one.high < 0]
    if better:
        best = min(better, key=lambda name: (coded[name].value, name))
        told.append(
            f"`{best}` is {spread(coded[best])} below it, but only --to {CODE} serves it: a "
            "modelling file in transformers."
        )
    unreached = [n for n in ended.families if _verdict(ended, n) == UNREACHED]
    if unreached:
        told.append(f"The budget did not reach {listed(unreached)}.")
    return " ".join(told)


def _failures(ended: Ended) -> str:
    count = ended.standing.documents
    if count < MIN_DOCUMENTS:
        return ""
    return (
        f"{counted(count, 'documents')} without a failure of a method leave failures on up to "
        f"{100 * min(1, 3 / count):.0f} % of documents possible (95 %)."
    )


def _ended(ended: Ended) -> str:
    """Say what would bring the bound down to the margin, and what was spent."""
    standing, measured = ended.standing, ended.measured
    margin, told = percent(ended.race.rules.margin), []
    if standing.ended in (BUDGET, DOCUMENTS) and len(ended.served) > 1:
        if standing.ended == BUDGET:
            told.append(f"The budget of {measured.budget} ended the race.")
        reached = standing.regret.get(standing.recommended, math.inf)
        if standing.needed and reached > math.log1p(ended.race.rules.margin):
            more = "; a larger --budget goes on from here" * (standing.ended == BUDGET)
            told.append(
                f"A bound of {margin} would take about {standing.needed:,} such documents{more}."
            )
    took = duration(measured.seconds(measured.asked))
    grid = measured.grid(ended.families)
    told.append(f"Spent: {measured.forwards:,.0f} of {grid:,.0f} forwards, in {took}.")
    return " ".join(told)


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
FREE = " The dashed line is truncation to the window."
FOLLOWS = " †: its form changes with the length of the input; a server keeps that of the target."
OTHER = f"{WORSE}, or {COSTLY}"
LOOKS = {
    RECOMMENDED: (COLOURS[0], COLOURS[0]), ALIKE: (COLOURS[2], COLOURS[2]),
    OPEN: (COLOURS[1], "white"), CODED: ("0.5", "white"), OTHER: ("0.6", "0.6"),
}  # fmt: skip


def draw(
    made: pd.DataFrame, *, model: str, lengths: tuple[int, int], tolerance: float,
    gain: Difference | None,
) -> Figure:  # fmt: skip
    """Draw the table of a race; ``lengths`` are those of the window and the target.

    ``gain`` is the recommended method's perplexity relative to truncation.
    """
    rows = made[made["difference"].notna()].head(MOST).iloc[::-1].reset_index(drop=True)
    figure, (far, near) = sheet(2, 2, panel_height=ROW * len(rows) + 0.8)
    _panel(far, rows, "difference")
    _panel(near, rows, "cost")
    near.axvline(100 * tolerance, color="black", linewidth=0.8)
    if gain is not None:
        cut = 100 * (1 / (1 + gain.value) - 1)
        far.axvline(cut, color="black", linewidth=0.8, linestyle="--")
    follows = rows["follows"].eq(True)
    names = [
        folded(f"{name} †" if marked else name, 2.2, SIZE - 1)
        for name, marked in zip(rows["scaling"], follows, strict=True)
    ]
    far.set_yticks(range(len(rows)), names)
    near.set_yticks(range(len(rows)), [""] * len(rows))
    for place, (bound, count) in enumerate(zip(rows["regret"], rows["documents"], strict=True)):
        told = f"{count}" if pd.isna(bound) else f"≤ {percent(bound)} · {count}"
        at = far.get_yaxis_transform()
        far.text(1.01, place, told, transform=at, fontsize=SIZE - 2, color=GREY, va="center")
    tidy(far, f"{model} at {length_label(lengths[1])} tokens", room=3)
    tidy(near, f"Cost inside the window ({length_label(lengths[0])})", room=3)
    marks = [
        Line2D([], [], marker="o", linestyle="", color=colour, markerfacecolor=face, markersize=5)
        for colour, face in LOOKS.values()
    ]
    note = NOTE.format(tolerance=percent(tolerance), linear=LINEAR)
    note += FREE * (gain is not None) + FOLLOWS * bool(follows.any())
    foot(figure, marks, list(LOOKS), note)
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
        text: the paragraph.
        table: one row per candidate; ``shown`` is the same for people, with a ``note``.
        next: what to type to write the method for an engine, or why nothing serves it, and
            ``export`` the command in it; both are empty for a model or a function of this process.
        failures: the candidates without a number, and why.
    """

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


def written(ended: Ended) -> Recommendation:
    """Return the answer, and write it into the reports of the run folder."""
    made, measured, standing = table(ended), ended.measured, ended.standing
    text, shown, note = paragraph(ended), readable(made, ended), footnote(made, ended)
    label, folder = measured.plan.checkpoint.label, reports_of(measured.folder)
    export, following = next_line(ended)
    words = [one for one in (text, note, following and f"Next: {following}") if one]
    make_folder(folder)
    with drawing():
        lengths, tolerance = (measured.window, measured.target), ended.race.rules.tolerance
        figure = draw(made, model=label, lengths=lengths, tolerance=tolerance, gain=ended.gain())
        files = save_table(made, [({label: shown}, words)], folder / "recommend")
        files += save_figure(figure, folder, "recommend")
    bound = standing.regret.get(standing.recommended)
    return Recommendation(
        scaling=standing.recommended,
        winner=standing.ended == WINNER and len(ended.served) > 1,
        regret=None if bound is None else share(bound),
        text=text,
        table=made,
        shown=shown,
        note=note,
        figure=figure,
        next=following,
        export=export,
        failures=measured.failed | ended.race.failed,
        folder=measured.folder,
        files=tuple(files),
    )


def next_line(ended: Ended) -> tuple[str, str]:
    """Return the command that writes the recommended method for an engine, and what to say of it.

    Both are empty where the model or the method is an object of this process.
    """
    measured, name = ended.measured, ended.standing.recommended
    plan = measured.plan
    method = next(method for method in plan.methods if method.label == name)
    if method.digest == FUNCTION or plan.checkpoint.loaded is not None:
        return "", ""
    found = measured.cells[FAR, name].rotation
    assert found is not None  # of a candidate that has numbers
    return serving_command(plan.spec, method.given, found, measured.target, ended.to)
