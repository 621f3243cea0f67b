"""How large a plan may be: a larger one is rejected with its number, before it is made."""

from __future__ import annotations

from harness.errors import UserError
from tasks._tokens import kept
from tasks.types import Request

LENGTH = 2**24  # tokens of one input
CELLS = 10_000  # methods x tasks x lengths
QUESTIONS = 300_000
HELD = 2**29  # tokens that the questions keep in memory, four bytes each


def check_cells(methods: int, tasks: int, lengths: int) -> None:
    """Raise UserError for a sweep of too many cells."""
    cells = methods * tasks * lengths
    if cells > CELLS:
        raise UserError(
            f"{methods:,} methods x {tasks:,} tasks x {lengths:,} lengths are {cells:,} cells;"
            f" at most {CELLS:,} are planned; give fewer."
        )


def check_length(given: str, tokens: int) -> None:
    """Raise UserError for a length that holds no token, or too many."""
    if not 1 <= tokens <= LENGTH:
        raise UserError(
            f"length {given} is {tokens:,} tokens here; write one of 1 to {LENGTH:,} tokens."
        )


class Tally:
    """Counts the questions of a plan and the tokens they keep."""

    def __init__(self) -> None:
        self.questions = 0
        self.held = 0
        self.runs: set[int] = set()  # windows on one text share its tokens

    def add(self, question: Request) -> None:
        """Count a question; raise UserError where the plan comes to too much."""
        run = kept(question.tokens).body.obj
        self.questions += 1
        if id(run) not in self.runs:
            self.runs.add(id(run))
            self.held += len(run)  # type: ignore[arg-type]
        if self.questions > QUESTIONS:
            self._refuse(f"more than {QUESTIONS:,} questions")
        if self.held > HELD:
            self._refuse(f"questions of more than {HELD:,} tokens")

    def _refuse(self, much: str) -> None:
        raise UserError(
            f"the plan has {much}, more than one sweep may have; give fewer lengths,"
            " documents or trials, or for windows further apart."
        )
