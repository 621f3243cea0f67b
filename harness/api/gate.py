"""Conditions under which a run counts as failed, as ``effective_length(yarn) < 16k``.

A condition compares one number with a bound:

``effective_length(METHOD)``: the longest length to which a method keeps the model's own score.
``score(METHOD, TASK, LENGTH)``: the score of a cell.
``regret(METHOD, LENGTH)``: how much worse than the best of all methods it is at most (95 %).
``change(METHOD, LENGTH)``: its perplexity relative to truncation to the trained window.

All but the score take a task after the method; without one the condition is that of every task.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from harness.errors import UserError
from harness.names import nearest
from harness.reports import effective_length
from harness.reports.writing import sentences
from harness.stats.cells import cells, records
from harness.stats.checkpoints import separated
from harness.stats.decision import FAILED, decisions, needed_of, truncations
from harness.stats.measure import SHARES, difference, measure, units
from harness.sweep.spec import tokens
from tasks._intervals import MIN_DOCUMENTS

if TYPE_CHECKING:
    from harness.sweep.plan import Plan

CONDITION = re.compile(r"\s*(\w+)\s*\((.*)\)\s*(<=|>=|<|>)\s*(\S+)\s*", re.DOTALL)
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)(%?)")
COMPLETE = {"ok", "too_long"}  # statuses; what is too long is so under every method


@dataclass(frozen=True)
class Condition:
    """A condition as it was written; ``task`` and ``length`` are None if it does not name them."""

    text: str
    metric: str
    scaling: str
    task: str | None
    length: str | None
    operator: str
    bound: str

    def wrong(self, reason: str) -> UserError:
        """Return the error of a condition that no result can answer."""
        return _wrong(self.text, reason)


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds for a model and a task; None where it cannot be evaluated.

    ``low`` and ``high`` are the 95 % interval of ``value``; a regret is itself a bound.
    """

    condition: str
    model: str
    task: str
    holds: bool | None
    value: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Names:
    """What a condition may name: the methods, tasks (with their metric) and lengths of a model."""

    scalings: tuple[str, ...]
    tasks: Mapping[str, str]
    lengths: tuple[int, ...]
    trained_length: int


@dataclass(frozen=True)
class _Cells:
    """A condition in the names of a run: its method, one task, its length and its bound."""

    condition: Condition
    scaling: str
    task: str
    length: int
    bound: float


def parse(text: str) -> Condition:
    """Return a condition; raise UserError for what is none."""
    match = CONDITION.fullmatch(text)
    if match is None or match[1] not in NUMBERS:
        known = ", ".join(f"{name}({takes})" for name, (takes, _) in NUMBERS.items())
        raise _wrong(text, f"write NUMBER < BOUND (or <=, >, >=), where NUMBER is one of {known}")
    metric, inside, sign, bound = match.groups()
    parts: list[str] = []
    for part in map(str.strip, inside.split(",")):
        if parts and re.match(r"\w+=", part):  # the next option of a method or a task
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    has_length = "LENGTH" in NUMBERS[metric][0]
    length = parts.pop() if has_length and len(parts) > 1 else None
    least = 2 if metric == "score" else 1
    if not least <= len(parts) <= 2 or not all(parts) or has_length != (length is not None):
        raise _wrong(text, f"{metric} takes ({NUMBERS[metric][0]})")
    return Condition(text, metric, parts[0], (*parts, None)[1], length, sign, bound)


def check(conditions: Sequence[Condition], names: Names) -> None:
    """Raise UserError for a condition that no result of such a run can answer."""
    for condition in conditions:
        list(_resolved(condition, names))


def names_of_plan(plan: Plan) -> Names:
    """Return what a condition may name of a plan."""
    metrics = {task.label: str(task.module.METRIC) for task in plan.tasks}
    return Names(
        tuple(dict.fromkeys(cell.scaling for cell in plan.cells)),
        {cell.task: metrics.get(cell.task, "") for cell in plan.cells},
        tuple(sorted({cell.length for cell in plan.cells})),
        plan.checkpoint.rope.trained_length,
    )


def names_of(frame: pd.DataFrame) -> Names:
    """Return what a condition may name of the frame of one model."""
    return Names(
        tuple(frame["scaling"].unique()),
        dict(frame[["task", "metric"]].drop_duplicates("task").itertuples(index=False)),
        tuple(sorted(frame["length"].unique().tolist())),
        int(frame["trained_length"].iloc[0]),
    )


def evaluate(conditions: Sequence[Condition], frame: pd.DataFrame) -> tuple[Verdict, ...]:
    """Return what the samples of one or more models say of every condition."""
    verdicts = []
    for model, own in separated(frame).groupby("model", sort=False):
        names = names_of(own)
        for condition in conditions:
            verdicts += [
                _verdict(one, str(model), own[own["task"] == one.task])
                for one in _resolved(condition, names)
            ]
    return tuple(verdicts)


def _resolved(condition: Condition, names: Names) -> Iterator[_Cells]:
    """Yield a condition for each of its tasks, in the names of a run."""
    scaling = condition.scaling
    if scaling not in names.scalings:
        known = nearest(scaling, names.scalings)
        raise condition.wrong(f"no method of this sweep is {scaling!r}; {known}")
    tasks = [_task(condition, names)] if condition.task else list(names.tasks)
    if condition.metric == "change":
        tasks = [task for task in tasks if names.tasks[task] == "perplexity"]
        if not tasks:
            raise condition.wrong("only perplexity is compared with truncation")
    length = _length(condition, condition.length, names) if condition.length else 0
    if condition.length and length not in names.lengths:
        raise condition.wrong(
            f"{condition.length} ({length:,} tokens) is no length of this sweep; its lengths: "
            f"{', '.join(map(str, names.lengths))}",
        )
    _check_reference(condition, names)
    for task in tasks:
        yield _Cells(condition, scaling, task, length, _bound(condition, names.tasks[task], names))


def _task(condition: Condition, names: Names) -> str:
    given = str(condition.task)
    found = [task for task in names.tasks if given in (task, task.partition(":")[0])]
    if given in names.tasks or len(found) == 1:
        return given if given in names.tasks else found[0]
    several = f"several tasks of this sweep are {given}: " + ", ".join(found)
    none = f"no task of this sweep is {given!r}; {nearest(given, names.tasks)}"
    raise condition.wrong(several if found else none)


def _length(condition: Condition, text: str, names: Names) -> int:
    try:
        return tokens(text, names.trained_length)
    except ValueError as error:
        raise condition.wrong(str(error)) from None


def _bound(condition: Condition, metric: str, names: Names) -> float:
    """Return the number after the sign; raise UserError where no result lies on both sides."""
    text, longest = condition.bound, max(names.lengths)
    if condition.metric == "effective_length":
        length = _length(condition, text, names)
        if length > longest or (length == longest and condition.operator in (">", "<=")):
            raise condition.wrong(
                f"the longest length of this sweep is {longest:,} tokens, and how far a method "
                "reaches beyond it is not known",
            )
        return length
    match = NUMBER.fullmatch(text)
    value = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not math.isfinite(value):
        raise condition.wrong(f"{text!r} is not a number such as 12.5 or 5%")
    share = metric in SHARES or (condition.metric != "score" and metric == "perplexity")
    if match and match[2] and not share:
        raise condition.wrong(f"{condition.metric} of {metric} is not a share: leave out %")
    if share and not (match and match[2]) and abs(value) > 1:
        raise condition.wrong(
            f"{condition.metric} of {metric} is a share: write {text}% or {value / 100:g}",
        )
    return value


def _check_reference(condition: Condition, names: Names) -> None:
    """Raise UserError where what a number is relative to is not measured."""
    own = [name for name in ("none", "native") if name in names.scalings]
    inside = [length for length in names.lengths if length <= names.trained_length]
    if condition.metric == "effective_length" and not (own and inside):
        raise condition.wrong("add --scaling none, and --length 1x, whose score is kept")
    whole = names.trained_length in names.lengths
    if condition.metric == "change" and not ("none" in names.scalings and whole):
        raise condition.wrong("add --scaling none and --length 1x, which is truncation")
    if condition.metric == "regret" and len(names.scalings) < 2:
        raise condition.wrong("a regret needs a second method to compare with")


def _wrong(text: str, reason: str) -> UserError:
    return UserError(f"--fail-if {text!r}: {reason}.")


def _verdict(one: _Cells, model: str, samples: pd.DataFrame) -> Verdict:
    condition = one.condition
    try:
        _check_complete(one, samples)
        value, low, high, text = NUMBERS[condition.metric][1](one, samples)
    except ValueError as error:
        return Verdict(condition.text, model, one.task, None, None, None, None, str(error))
    holds = COMPARE[condition.operator](value, one.bound)
    return Verdict(condition.text, model, one.task, holds, value, low, high, text)


def _check_complete(one: _Cells, samples: pd.DataFrame) -> None:
    """Raise an error if samples are missing in a cell that decides the number.

    A regret needs those of every method, because a missing one may be the best. One that failed
    on its own is not.
    """
    needed = samples["scaling"] == one.scaling
    if one.condition.metric == "regret":
        needed |= ~samples["status"].isin(FAILED)
    if one.length:
        needed &= samples["length"] == one.length
    if one.condition.metric in ("effective_length", "change"):
        inside = samples["length"] <= samples["trained_length"]
        needed |= samples["scaling"].isin(["none", "native"]) & inside
    lacking = samples[needed & ~samples["status"].isin(COMPLETE)]
    if len(lacking):
        first = records(lacking.head(1))[0]
        status = str(first["status"]).replace("_", " ")
        reason = f": {first['reason'].removesuffix('.')}" if first.get("reason") else ""
        have = "has" if len(lacking) == 1 else "have"
        raise ValueError(
            f"{sentences.counted(len(lacking), 'samples')} of {int(needed.sum())} {have} no number "
            f"({first['scaling']} at {first['length']:,} tokens, {status}{reason})"
        )


Number = tuple[float, float | None, float | None, str]  # value, interval, in a sentence


def _score(one: _Cells, samples: pd.DataFrame) -> Number:
    table = cells(samples)
    row = records(table[(table["scaling"] == one.scaling) & (table["length"] == one.length)])[0]
    if row["score"] is None:
        raise ValueError(f"{one.scaling} at {one.length:,} tokens has no score")
    text = f"{measure(samples).name} of {one.scaling} at {one.length:,} tokens is"
    return row["score"], row["low"], row["high"], f"{text} {sentences.text(row)}"


def _effective_length(one: _Cells, samples: pd.DataFrame) -> Number:
    table = effective_length.make(samples)
    row = records(table[table["scaling"] == one.scaling])[0]
    value, low, high = (row[end] or 0 for end in ("effective_length", "low", "high"))
    reach = f"{value:,} tokens" if value else "no length"
    at_least = "or more " if value == row["longest"] else ""
    text = f"{one.scaling} keeps {row['measure']} up to {reach} {at_least}[{low:,}, {high:,}]"
    return float(value), float(low), float(high), text


def _regret(one: _Cells, samples: pd.DataFrame) -> Number:
    decision = decisions(samples).get((str(samples["model"].iloc[0]), one.task, one.length))
    name = decision and decision.family.compared(one.scaling)
    regret = decision.regret(name) if decision and name else None
    if decision is None or regret is None or len(decision.family.names) < 2:
        raise ValueError(
            f"{one.scaling} at {one.length:,} tokens has no bound: it needs another method on the "
            f"same trials, or on the same {MIN_DOCUMENTS} documents"
        )
    how = decision.family.how
    worse = sentences.bound(regret, relative=how.relative, metric=how.metric)
    text = f"{one.scaling} at {one.length:,} tokens is at most {worse} worse than the best (95 %)"
    return regret, None, None, text


def _change(one: _Cells, samples: pd.DataFrame) -> Number:
    window = int(samples["trained_length"].iloc[0])
    if not truncations(samples):
        raise ValueError(f"{one.task} has no score of truncation; perplexity of tail has one")
    known, how = needed_of(samples), measure(samples)
    cell = known[(known["scaling"] == one.scaling) & (known["length"] == one.length)]
    own = known[(known["scaling"] == "none") & (known["length"] == window)]
    result = difference(units(cell), units(own), how)
    if result is None:
        raise ValueError("no document was scored under both")
    change = sentences.signed(result.value, result.low, result.high)
    text = (
        f"perplexity of {one.scaling} at {one.length:,} tokens is {change} from truncation to "
        f"{window:,} tokens"
    )
    return result.value, result.low, result.high, text


# Each number, and what it takes; [TASK] may be left out.
NUMBERS: Mapping[str, tuple[str, Callable[[_Cells, pd.DataFrame], Number]]] = {
    "effective_length": ("METHOD[, TASK]", _effective_length),
    "score": ("METHOD, TASK, LENGTH", _score),
    "regret": ("METHOD[, TASK], LENGTH", _regret),
    "change": ("METHOD[, TASK], LENGTH", _change),
}
