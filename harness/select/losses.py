"""The score of a trial: the loss of its targets, of the key ones alone, or of the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.reports.stats.key_tokens import DROP, MOST, Rule
from harness.stats.paired import Difference, of_means, share
from harness.stats.selection import select_means
from harness.sweep.cells import Cell, Item, Key
from harness.sweep.plan import Plan

EVALUATOR = "none"  # whose losses say which tokens are key
Kind = Literal["targets", "key tokens", "answers"]
Samples = Mapping[Key, Mapping[str, Any]]
Losses = dict[str, tuple[float, int]]  # nats and targets, by document or trial
Masks = dict[tuple[str, Any], NDArray[np.bool_]]  # which targets are key, by document and window


@dataclass(frozen=True)
class Split:
    """The documents, or trials of a task, that the search sees, and those held out."""

    search: frozenset[str]
    held: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, seed: int) -> Split:
        """Draw one of every two neighbours for the search; raise UserError where there is one."""
        units = list(dict.fromkeys(q.unit for cell in plan.cells for q in cell.questions))
        if len(units) < 2:
            raise UserError(
                f"tune needs two documents or more, to hold some out; {len(units)} has room for"
                f" {max(plan.lengths)} tokens."
            )
        draw = Random(seed)
        pairs = [units[at : at + 2] for at in range(0, len(units) - 1, 2)]
        search = frozenset(draw.choice(pair) for pair in pairs)
        return cls(search, frozenset(units) - search)


def kind_of(plan: Plan, *, key_tokens: bool) -> Kind:
    """Return what is minimised; raise UserError for a task that gives no loss."""
    (task,) = plan.tasks
    questions = [q for cell in plan.cells for q in cell.questions]
    losses = task.module.METRIC == "perplexity"
    if key_tokens and not (losses and all(q.facts.get("protocol") == "tail" for q in questions)):
        raise UserError(
            f"--key-tokens needs perplexity by the protocol tail, the task is {task.label}."
        )
    if any(q.facts.get("protocol") == "overlap" for q in questions):
        raise UserError(
            f"{task.label} reads across the ends of documents: what is held out would be searched "
            "too. Give another protocol."
        )
    if losses:
        return "key tokens" if key_tokens else "targets"
    told = "logprob" in getattr(task.module, "FACTS", {})
    if told and not any(q.new for q in questions):
        return "answers"
    form = "; write form=argmax" if told else ", as perplexity and passkey do"
    raise UserError(f"{task.label} gives no log-probability to search by{form}.")


def wanted(cell: Cell, length: int, kind: Kind) -> bool:
    """Return whether a cell is measured: at the length, and for key tokens the evaluator's."""
    return cell.length == length or (kind == "key tokens" and cell.scaling == EVALUATOR)


def losses(
    cell: Cell, samples: Samples, units: Set[str], kind: Kind, masks: Masks
) -> Losses | None:
    """Return the losses of some documents; None where a sample, or its mask, has no number."""
    found: Losses = {}
    for question in cell.questions:
        if question.unit not in units:
            continue
        record = samples.get(Item(cell, question).key)
        if record is None or record["status"] != "ok":
            return None
        if kind == "key tokens":
            mask = masks.get((question.unit, question.facts.get("window")))
            if mask is None:  # the evaluator has no losses there
                return None
            each = np.array(record["facts"]["losses"])
            nats, count = float(each[mask].sum()), int(mask.sum())
        elif kind == "answers":
            parts = question.parts or (question,)
            nats = -record["facts"]["logprob"]
            count = sum(part.length - part.start for part in parts)
        else:
            nats, count = record["value"], record["weight"]
        before = found.get(question.unit, (0.0, 0))
        found[question.unit] = before[0] + nats, before[1] + count
    return found


def key_masks(plan: Plan, samples: Samples, split: Split) -> Masks:
    """Return which targets are key: those that the evaluator's longer context makes clear.

    Raises UserError where one of the halves has none: a search of it would end without a number.
    """
    inside = [n for n in plan.lengths if n <= plan.checkpoint.rope.trained_length]
    of = Rule(EVALUATOR, min(inside), max(inside), DROP, MOST)
    each: dict[int, dict[tuple[str, Any], NDArray[np.float64]]] = {
        cell.length: {
            (q.unit, q.facts.get("window")): np.array(record["facts"]["losses"])
            for q in cell.questions
            if (record := samples.get(Item(cell, q).key)) and record["status"] == "ok"
        }
        for cell in plan.cells
        if cell.scaling == EVALUATOR
    }
    short, long = each[of.short], each[of.long]
    masks = {at: of.keys(short[at], long[at]) for at in short if at in long}
    for half, units in (("of the search", split.search), ("held out", split.held)):
        if not any(mask.any() for (unit, _), mask in masks.items() if unit in units):
            raise UserError(
                f"no target is a key token on the documents {half}; give more documents, or a "
                "larger tail."
            )
    return masks


def score(found: Losses | None) -> float:
    """Return the mean loss in nats a target; infinite where it has no number."""
    if found is None:
        return math.inf
    counts = sum(count for _, count in found.values())
    return math.fsum(nats for nats, _ in found.values()) / counts if counts else math.inf


def regrets(every: Sequence[Losses]) -> list[float] | None:
    """Return how much worse each method is at most than the best of all, as a share (95 %).

    None for fewer than 3 documents with targets.
    """
    names = [name for name, (_, count) in every[0].items() if count]
    costs = np.array([[one[name][0] for one in every] for name in names])
    weights = np.array([float(every[0][name][1]) for name in names])
    found = select_means(costs, weights) if names else None
    return None if found is None else [share(nats) for nats in found.regret.tolist()]


def difference(one: Losses, other: Losses) -> Difference:
    """Return one less the other, document by document, as a share of the other's perplexity."""
    names = [name for name in one if one[name][1]]
    apart = np.array([[one[name][0] - other[name][0]] for name in names])
    weights = np.array([[float(one[name][1])] for name in names])
    return of_means(apart, weights, relative=True)[0]
