"""What a backend is: it answers the requests of a plan, in this process or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.harness.engine import OutOfMemory
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.sweep.plan import Batch, Item, Plan
from ropewalk.harness.sweep.spec import Spec
from ropewalk.tasks.types import Response


@dataclass(frozen=True)
class Failed:
    """A request that has no response, and why in one sentence."""

    reason: str


@dataclass(frozen=True)
class Reply:
    """What came of one request of a batch.

    ``seconds`` is wall time; ``shared`` says whether it was computed together with others.
    """

    outcome: Response | Failed | OutOfMemory
    seconds: float
    peak_mib: float
    shared: bool = False


class Backend(Protocol):
    """Answers requests under the rotations of a plan.

    Attributes:
        workers: how many requests it answers at the same time.
        machines: what a session records of its machines, once weights are loaded; it changes where
            a worker joins later.
    """

    @property
    def workers(self) -> int: ...  # noqa: D102
    @property
    def machines(self) -> dict[str, Any]: ...  # noqa: D102

    def open(self, spec: Spec) -> Checkpoint:
        """Return the model of a spec, before its weights are read."""

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Load the weights, and yield the replies to all requests, each once, in any order.

        Weights stay loaded for plans of the same checkpoint that follow. No item is a group.
        Raises UserError where nothing can be answered; the failure of one request is its reply.
        """
