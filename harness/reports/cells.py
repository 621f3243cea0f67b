"""One row per model, task, length and method, with its score, difference, regret and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ropewalk.harness.reports._text import across, change, text
from ropewalk.harness.stats.cells import CELL, cell_scores, in_option, records, separated
from ropewalk.harness.stats.decision import (
    FAILED,
    MARGIN,
    NOT_COMPARED,
    SAME,
    Family,
    against,
    decide,
    needed_of,
    overall,
)
from ropewalk.harness.stats.decision import KEPT as KEPT_UNITS
from ropewalk.harness.stats.measure import Measure, Units, difference, measure, units
from ropewalk.harness.stats.paired import NO_DIFFERENCE
from ropewalk.tasks._intervals import ratio

MARKS = (
    "Differences: on the documents or trials that a method and the baseline share, with the 95 % "
    "interval of each difference alone. Percent of perplexity, percentage points (pp) of a share. "
    "“=”: the same measurement. “?”: no significant difference (5 %, corrected for all comparisons "
    "at a length). †: the method failed on documents or trials, which are left out for both."
)
KEPT = 0.85  # of the model's own score inside the window (NoLiMa, arXiv:2502.05167)
ROUNDING = 1e-12  # 119 of 250 are 85 % of 140, and in floats less
Key = tuple[Any, ...]  # model, task, scaling, length
PLAIN = ("none", "native")  # the model as it was trained: without scaling, else with what it ships
LENIENT = ("exact", "format")  # kinds of answers with the number right
BASELINE = ("baseline", "difference", "difference_low", "difference_high", "paired", "p", "p_all",
            "verdict")  # fmt: skip
COMPARED = ("compared", "compared_score", "compared_low", "compared_high", "above", "above_low",
            "above_high", "regret", "best", "winner", "possible", "as_good", "use",
            "needed", "margin", "overall_regret")  # fmt: skip
WINDOW = ("cost", "cost_low", "cost_high", "truncation", "truncation_low", "truncation_high",
          "change", "change_low", "change_high")  # fmt: skip
BITS = ("bits_per_byte", "bits_low", "bits_high", "tokens", "bytes")
REACH = ("effective_length", "effective_low", "effective_high")
COLUMNS = ("model", "task", "metric", "scaling", "length", "relative_length", "trained_length",
           "score", "low", "high", "n", "unit", "asked", "status", "lenient", *COMPARED, *WINDOW,
           *BASELINE, *BITS, *REACH, "same_as", "failed", "needs_code", "protocol", "lower",
           "relative", "frequencies")  # fmt: skip
KINDS = {
    **dict.fromkeys(("n", "asked", "compared", "paired", "needed", "failed", "tokens", "bytes"),
                    "Int64"),
    **dict.fromkeys(REACH, "Int64"),
    **dict.fromkeys(("winner", "best", "possible", "as_good", "use", "needs_code", "lower",
                     "relative"), "boolean"),
}  # fmt: skip
TEXTS = {"model", "task", "metric", "scaling", "status", "unit", "baseline", "verdict", "same_as",
         "protocol", "frequencies", "length", "trained_length"}  # fmt: skip


@dataclass(frozen=True)
class Shared:
    """A frame, and its table by the usual options, which is made once."""

    frame: pd.DataFrame

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table of cells."""
        return make(self.frame)


_shared: ContextVar[Shared | None] = ContextVar("_shared", default=None)


def make(
    frame: pd.DataFrame,
    *,
    margin: float = MARGIN,
    baseline: str | None = None,
    kept: float = KEPT,
) -> pd.DataFrame:
    """Return one row per model, task, length and method; shares are from 0 to 1.

    - ``score``, ``low``, ``high``: the score and its 95 % interval over ``n`` documents or trials,
      of which ``asked`` were requested. ``lenient`` is the share of answers whose number is right
      in any format.
    - ``compared_score``: the score on the ``compared`` units that all methods of a length have.
      ``above`` is its difference from the ``best`` mean. ``regret`` is how much worse than the best
      the method is at most (95 %, all methods together); ``possible`` methods are not significantly
      worse, ``as_good`` ones have a regret within the ``margin`` (percent). ``use`` is the method
      to use, and ``winner`` one that is significantly the best. ``needed`` units would bound its
      regret by the margin. ``overall_regret`` is known of the one method for all tasks of a length.
    - ``cost``: what the method costs inside the trained window in the form it has at this length.
      ``truncation`` is the score of the plain model that reads the trained window alone, and
      ``change`` the method's difference from it.
    - ``difference``: the difference from the ``baseline``'s score, ``paired`` on the units that
      both have. ``p`` is of this comparison alone; ``p_all`` is corrected for all methods of the
      length, and so is the ``verdict``. The baseline is ``none``, else ``native``; commas in its
      name are written as plus signs.
    - ``effective_length``: the longest length to which the method keeps the model's own score, of
      retrieval its share ``kept``.
    - ``same_as``: the method of which this one is the same measurement.

    Differences, regrets and costs are relative for perplexity (0.05 is 5 % higher).
    """
    rows = {_key(row): row for row in records(cell_scores(frame))}
    lengths: dict[tuple[str, int], list[Family]] = {}
    for (model, task, length), (of, known) in decide(frame, margin).items():
        lengths.setdefault((model, length), []).append(of)
        names = list(frame.loc[frame["model"] == model, "scaling"].unique())
        base = _baseline(names, baseline, models="of_model" in frame)
        differences = against(of, base) if base in of.first else {}
        for name, first in of.first.items():
            rows[model, task, name, length] |= {
                "protocol": of.how.protocol, "lower": of.how.lower, "relative": of.how.relative,
                "unit": of.how.units, "asked": of.requested, "failed": len(of.lost[first]),
                "same_as": None if name == first else first, "needs_code": name in of.code,
                **known.get(first, {}), **differences.get(name, {}),
            }  # fmt: skip
    for (model, length), tasks in lengths.items():
        if len(tasks) > 1 and (chosen := overall(tasks)):
            for key, row in rows.items():
                if (key[0], key[2], key[3]) == (model, chosen[0], length):
                    row["overall_regret"] = chosen[1]
    bits, lenient = _bits(frame), _lenient(frame)
    own = ["of_model", "of_scaling"] if "of_model" in frame else ["model", "scaling"]
    pairs = frame.drop_duplicates(["model", "scaling"])
    named = zip(*(pairs[name] for name in ("model", "scaling", *own)), strict=True)
    before = {(model, scaling): names for model, scaling, *names in named}
    reach = effective_lengths(separated(frame), kept)  # each model has a score of its own to keep
    for key, row in rows.items():
        model, scaling = before[key[0], key[2]]
        row |= reach.get((model, key[1], scaling), {})
        row |= bits.get(key, {}) | lenient.get(key, {})
    table = pd.DataFrame(list(rows.values())).reindex(columns=[*COLUMNS])
    if baseline and table["baseline"].isna().all():
        given = ", ".join(table["scaling"].unique())
        raise ValueError(f"nothing to compare with {baseline!r}: the scores are of {given}")
    numbers = {name: float for name in COLUMNS if name not in KINDS and name not in TEXTS}
    return table.astype({**numbers, **KINDS})


@contextmanager
def shared(frame: pd.DataFrame) -> Iterator[Shared]:
    """Make the table of a frame once for all its reports, none of which changes the frame."""
    known = _shared.get()
    known = known if known and known.frame is frame else Shared(frame)
    token = _shared.set(known)
    try:
        yield known
    finally:
        _shared.reset(token)


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table by its usual options."""
    known = _shared.get()
    return known.table.copy() if known and known.frame is frame else make(frame)


def scores(
    table: pd.DataFrame, written: Callable[[dict[str, Any]], str] = text
) -> dict[str, pd.DataFrame]:
    """Return one table per model and task: methods down, with truncation, and lengths across."""
    cut = table[table["truncation"].notna()].drop_duplicates(["model", "task", "length"])
    own: dict[str, Any] = {"scaling": "truncation", "status": "ok", "above": None}
    own |= {"score": cut["truncation"]} | {end: cut[f"truncation_{end}"] for end in ("low", "high")}
    rows = pd.concat([table, cut.assign(**own).astype(table.dtypes)])
    return across(rows, written)


def differences(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return one table of differences from the baseline per model and task, lengths across."""
    known = table[table["baseline"].notna()]
    return {
        f"{title}, less {baseline}": shown
        for baseline, rows in known.groupby("baseline", sort=False)
        for title, shown in across(rows, _difference).items()
    }


def _difference(row: dict[str, Any]) -> str:
    """Return "−26.8 % [−33, −20]", with marks and, if some are missing, how many were compared."""
    if row["verdict"] == SAME:
        return "="
    failed = " †" * bool(row["failed"])
    if row["verdict"] == NOT_COMPARED:
        return f"{NOT_COMPARED}{failed}"
    shown = change(row, "difference")
    lacking = f" ({row['paired']} of {row['asked']})" * bool(row["paired"] < row["asked"])
    return f"{shown}{lacking}{' ?' if row['verdict'] == NO_DIFFERENCE else ''}{failed}"


def display(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the tables of scores and of differences."""
    return {**scores(table), **differences(table)}


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the numbers and marks of the differences mean."""
    return [MARKS] * bool(table["baseline"].notna().any())


def effective_lengths(
    frame: pd.DataFrame, kept: float
) -> dict[tuple[str, str, str], dict[str, int | None]]:
    """Return the effective length of every model, task and scaling, and both ends of its interval.

    A length counts if all measured lengths up to it hold. If a higher score is better, a length
    holds while ``kept`` of the model's own score is left. That score is the one of its unscaled
    embedding at the shortest length, which must be inside the window. ``effective_low`` is the
    length up to which the score's whole interval lies there, and ``effective_high`` the length up
    to which any of it does.

    Perplexity holds while it is no higher than at the longest length inside the window, document by
    document. ``effective_low`` is the length up to which that is significant, and
    ``effective_high`` the one up to which it is not refuted. 0 is neither inside the window nor at
    the first length beyond. What has no score inside the window, and what scores other targets at
    every length, is absent.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept:g} is invalid: it is a share above 0 and at most 1, as 0.85")
    result = {}
    table = cell_scores(frame)
    for (model, task), samples in needed_of(frame).groupby(["model", "task"], sort=False):
        how = measure(samples)
        here = table[(table["model"] == model) & (table["task"] == task)]
        baseline = own_score(here, -1 if how.lower else 0)
        judged = how.across and how.form != "unknown" and how.metric != "window_kl"
        if baseline is None or not judged or baseline["score"] <= 0:
            continue
        paired = samples.groupby(["scaling", "length"]) if how.lower else ()
        of = {key: units(rows) for key, rows in paired}
        beyond = here[here["length"] >= baseline["length"]]
        for scaling, lengths in beyond.groupby("scaling", sort=False):
            rows = [_holds(cell, of, baseline, how, kept) for cell in records(lengths)]
            holds = pd.DataFrame(rows, columns=[*REACH], index=lengths["length"])
            own = (holds.index == baseline["length"])[:, None]  # it ends nothing where it fails
            reached = holds & (holds | own).cummin()
            result[str(model), str(task), str(scaling)] = {
                end: max(holds.index[reached[end]], default=0) for end in REACH
            }
    return result


def own_score(cells: pd.DataFrame, place: int) -> pd.Series[Any] | None:
    """Return the cell of the unscaled model inside the window, at a place among its lengths."""
    inside = cells[(cells["length"] <= cells["trained_length"]) & cells["score"].notna()]
    plain = (inside[inside["scaling"] == name] for name in ("none", "native"))
    return next((rows.iloc[place] for rows in plain if len(rows)), None)


def _holds(
    cell: dict[str, Any],
    of: Mapping[Any, Units],
    baseline: pd.Series[Any],
    how: Measure,
    kept: float,
) -> tuple[bool, bool, bool]:
    """Return whether a length holds, by its score and by both ends of its interval.

    If the method failed on some units, the length does not hold by the lower end. With too few
    units, or with none, it holds by the upper end alone, unless the method failed. Units that ran
    out of memory or were not measured prove nothing.
    """
    failed = any(status in str(cell["status"]) for status in FAILED)
    if cell["score"] is None:
        return False, False, not failed
    if (cell["length"], cell["frequencies"]) == (baseline["length"], baseline["frequencies"]):
        return True, True, True
    value, low, high, n = cell["score"], cell["low"], cell["high"], int(cell["n"])
    least = kept * float(baseline["score"]) - ROUNDING
    if how.lower:
        there, inside = ((row["scaling"], row["length"]) for row in (cell, baseline))
        result = difference(of[there], of[inside], how)
        least, value, low, high, n = -ROUNDING, -1.0, None, None, 0
        if result is not None:
            low, high = (None if end is None else -end for end in (result.high, result.low))
            value, n = -result.value, result.n
    if n < KEPT_UNITS * int(baseline["n"]):
        return False, False, True
    return (
        value >= least,
        low is not None and low >= least and not failed,
        high is None or high >= least,  # no interval proves nothing
    )


def _key(row: Mapping[str, Any]) -> Key:
    return row["model"], row["task"], row["scaling"], row["length"]


def _baseline(names: Sequence[str], baseline: str | None, *, models: bool) -> str:
    if baseline:
        return in_option(baseline, names)
    return next((name for name in PLAIN if name in names), names[0] if models else PLAIN[0])


def _bits(frame: pd.DataFrame) -> dict[Key, dict[str, Any]]:
    """Return the bits per byte of every cell of perplexity that has the bytes of all its text.

    They are the loss of all targets over the bytes of their text in UTF-8, in units of ln 2. The
    interval is over documents, which also differ in how many bytes their tokens have.
    """
    measured = frame[(frame["metric"] == "perplexity") & (frame["status"] == "ok")]
    if measured.empty or "bytes" not in measured:
        return {}
    whole = measured.groupby(CELL)["bytes"].transform(lambda sizes: sizes.notna().all())
    by_unit = measured[whole].groupby([*CELL, "unit"], sort=False)[["value", "weight", "bytes"]]
    rows = {}
    for cell, documents in by_unit.sum().groupby(CELL, sort=False):
        nats, tokens, size = (documents[name] for name in ("value", "weight", "bytes"))
        mean = ratio((nats / math.log(2)).tolist(), size.tolist())
        values = mean.value, *mean.interval(), tokens.sum(), size.sum()
        rows[cell] = dict(zip(BITS, values, strict=True))
    return rows


def _lenient(frame: pd.DataFrame) -> dict[Key, dict[str, Any]]:
    """Return the share of answers with the right number, for tasks that say so of each."""
    if "found" not in frame:
        return {}
    known = frame.loc[frame["status"] == "ok", [*CELL, "found"]]
    right = known["found"].isin(LENIENT).astype(float).where(known["found"].notna())
    groups = known.assign(right=right).groupby(CELL)["right"]
    shares = groups.agg(lambda right: right.mean(skipna=False))
    keys = shares.index.to_frame().itertuples(index=False, name=None)
    return {key: {"lenient": share} for key, share in zip(keys, shares, strict=True)}
