"""Conditions under which a run counts as failed: pandas queries on the table of its cells."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ropewalk.harness.errors import UserError, nearest, reason
from ropewalk.harness.reports.cells import PLAIN, cells
from ropewalk.harness.stats.cells import CELL, separated
from ropewalk.harness.stats.decision import FAILED

NUMBERS = ("score", "low", "high", "regret", "change", "effective_length")
NAMES = ("model", "task", "scaling", "length", "metric")
COLUMNS = (*NAMES, "relative_length", *NUMBERS, "n", "status")
COMPLETE = ("ok", "too_long")  # statuses; what is too long is so under every method


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds for any cell; None where a cell that decides has no number."""

    condition: str
    holds: bool | None
    text: str


def check(conditions: Sequence[str], known: Mapping[str, Collection[Any]]) -> None:
    """Raise UserError for a condition that is no query, or that names what a run does not have.

    ``known`` has the values of columns by name, as far as they are known.
    """
    for condition in conditions:
        try:
            if "@" in condition:
                raise ValueError("@ would run code")
            pd.DataFrame(columns=[*COLUMNS], dtype=float).query(condition, engine="python")
            tree = ast.parse(condition, mode="eval")
        except Exception as error:  # noqa: BLE001  # pandas raises many kinds
            raise UserError(
                f"--fail-if {condition!r} is no query of pandas on the cells, such as "
                f"'scaling == \"yarn\" and length == 16384 and score > 20': {reason(error)}. "
                f"Columns: {', '.join(COLUMNS)}."
            ) from None
        equalities = (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In)
        )
        for node in equalities:
            values = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            for column in _names(node) & known.keys():
                for value in values:
                    if value not in known[column]:
                        near = nearest(str(value), map(str, known[column]))
                        raise UserError(
                            f"--fail-if {condition!r}: no {column} of this sweep is {value!r}; "
                            f"{near}."
                        )


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def evaluate(conditions: Sequence[str], frame: pd.DataFrame) -> tuple[Verdict, ...]:
    """Return what the samples of one or more models say of every condition.

    Raises UserError as ``check`` does.
    """
    if not conditions:
        return ()
    table = table_of(frame)
    check(conditions, {name: table[name].unique().tolist() for name in NAMES})
    return tuple(_verdict(condition, table) for condition in conditions)


def table_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table of cells, whose numbers are missing where a sample that decides them is.

    A regret needs every method of a length, because a missing one may be the best; one that failed
    by itself is not. What is relative to the model's own score in the window needs that too.
    """
    table = cells(separated(frame))
    lost = table[~table["status"].isin(COMPLETE)]
    plain = lost["scaling"].isin(PLAIN) & (lost["length"] <= lost["trained_length"])
    for columns, rows, key in (
        (["score", "low", "high", "change", "regret"], lost, CELL),
        (["regret"], lost[~lost["status"].isin(FAILED)], ["model", "task", "length"]),
        (["effective_length"], lost, CELL[:3]),
        (["effective_length", "change"], lost[plain], CELL[:2]),
    ):
        here, there = (pd.MultiIndex.from_frame(part[key]) for part in (table, rows))
        table.loc[here.isin(there), columns] = None
    return table


def _verdict(condition: str, table: pd.DataFrame) -> Verdict:
    """Evaluate a condition on the cells that have its numbers.

    One without them decides, unless a part of the condition that is joined by ``and`` and has no
    number excludes it. Only a tail perplexity has a change.
    """
    root = ast.parse(condition, mode="eval").body
    parts = root.values if isinstance(root, ast.BoolOp) and isinstance(root.op, ast.And) else [root]
    for part in parts:
        if not _names(part) & {*NUMBERS}:
            table = table.query(ast.unparse(part), engine="python")
    used = [name for name in NUMBERS if name in _names(root)]
    missing = table[used].isna()
    if "change" in used:
        missing["change"] &= table["protocol"].fillna("tail") == "tail"
    known = table[~missing.any(axis=1)].astype(dict.fromkeys(used, float))
    matches = known.query(condition, engine="python")
    rows = matches if len(matches) else table.drop(known.index)
    texts = [
        f"{row['scaling']} at {row['length']:,} tokens, {row['task']} ({row['model']}): "
        + (", ".join(f"{name} {row[name]:.4g}" for name in used) if len(matches) else row["status"])
        for row in rows.to_dict("records")
    ]
    holds = True if len(matches) else None if texts else False
    return Verdict(condition, holds, "; ".join(texts[:4]) or "no cell matches")
