"""What measures: this process, or anything else that answers the questions of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from harness.engine import Sizes
from harness.plan import Cell, Plan
from harness.record import machine
from harness.work import Reply, ready, replies
from tasks._types import Question

Item = tuple[Cell, Question]
Work = dict[str, list[Item]]


class Backend(Protocol):
    """Answers questions under the rotations of a plan, and says on which machines."""

    @property
    def machines(self) -> dict[str, Any]:
        """What a session records of the machines; it changes where a worker joins later."""

    def answers(self, plan: Plan, work: Work, sizes: Sizes) -> Iterator[tuple[Item, Reply]]:
        """Load the weights, then return the replies to all questions, each once, in any order."""


@dataclass
class ThisProcess:
    """The backend that holds the weights in this process."""

    device: str

    @cached_property
    def machines(self) -> dict[str, Any]:
        """What a session records of this machine."""
        return machine(self.device)

    def answers(self, plan: Plan, work: Work, sizes: Sizes) -> Iterator[tuple[Item, Reply]]:
        """Load the weights and return the replies to all questions."""
        model = ready(plan.checkpoint)
        return (
            (items[reply.index], reply)
            for fingerprint, items in work.items()
            for reply in replies(
                model,
                self.device,
                plan.rotations[fingerprint],
                [question for _, question in items],
                sizes,
            )
        )
