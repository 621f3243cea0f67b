"""What measures: this process, or anything else that answers the questions of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from transformers.modeling_layers import GradientCheckpointingLayer

from harness.engine import Sizes
from harness.engine.sizes import ROWS
from harness.sweep.answer import Reply, ready, replies
from harness.sweep.cells import Batch, Item
from harness.sweep.plan import Plan
from harness.sweep.record import machine

Passing = Callable[[float], None]


class Backend(Protocol):
    """Answers questions under the rotations of a plan, and says on which machines."""

    @property
    def machines(self) -> dict[str, Any]:
        """What a session records of the machines; it changes where a worker joins later."""

    def answers(
        self, plan: Plan, work: Sequence[Batch], sizes: Sizes
    ) -> Iterator[tuple[Item, Reply]]:
        """Load the weights, then return the replies to all questions, each once, in any order."""


@dataclass
class ThisProcess:
    """The backend that holds the weights in this process."""

    device: str
    passing: Passing | None = None  # is given the tokens that went through the layers
    model: Any = None  # once it is loaded: plans that follow are of the same model

    @cached_property
    def machines(self) -> dict[str, Any]:
        """What a session records of this machine."""
        return machine(self.device)

    def answers(
        self, plan: Plan, work: Sequence[Batch], sizes: Sizes
    ) -> Iterator[tuple[Item, Reply]]:
        """Load the weights, the first time, and return the replies to all questions."""
        if self.model is None:
            self.model = ready(plan.checkpoint)
            if self.passing:
                _follow(self.model, self.passing)
        if self.passing:
            self.passing(0.0)  # the weights are loaded
        return (reply for batch in work for reply in _replies(self.model, plan, batch, sizes))


def _replies(model: Any, plan: Plan, batch: Batch, sizes: Sizes) -> Iterator[tuple[Item, Reply]]:
    items = {item.key: item for item in batch.items}
    for key, reply in replies(model, plan.checkpoint, batch.rotation, batch.questions, sizes):
        yield items[key], reply


def _follow(model: Any, passing: Passing) -> None:
    """Let every decoder layer report the tokens it took, as a part of those of all layers."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    count = len(layers)  # a hook that holds the layers would keep their weights when the model goes

    def report(_: Any, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.shape[-2] > ROWS:  # else it is a token of a text, which is seen by its answer
            passing(hidden.shape[-2] / count)

    for layer in layers:
        layer.register_forward_hook(report)
