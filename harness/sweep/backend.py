"""What answers the requests of a plan: this process, or anything else that holds the weights."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from ropewalk.harness.engine import Answered, Decode, OutOfMemory, Sizes, out_of_memory, shareable
from ropewalk.harness.engine.accelerated import flash3
from ropewalk.harness.engine.memory import ROWS
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.patch import answering, comparing, patched
from ropewalk.harness.sweep.plan import Batch, Item, Key, Plan
from ropewalk.harness.sweep.record import machine
from ropewalk.scaling import native
from ropewalk.scaling.types import Rotation
from ropewalk.tasks.types import Divergence, ModelRequest, Response

# What torch and a model raise over one input: a shape, a kernel, too little memory, a refusal.
OF_AN_INPUT = (RuntimeError, MemoryError, UserError)


@dataclass(frozen=True)
class Failed:
    """A question that has no answer, and why in one sentence."""

    reason: str


Outcome = Response | Failed | OutOfMemory


@dataclass(frozen=True)
class Reply:
    """The outcome of one question of a batch.

    ``seconds`` is wall time; ``shared`` says whether the engine computed it together with others.
    """

    outcome: Outcome
    seconds: float
    peak_mib: float
    shared: bool = False


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
        items = {item.key: item for batch in work for item in batch.items}
        known = self.model, plan.checkpoint
        each = (replies(*known, batch.rotation, batch.questions, sizes) for batch in work)
        return ((items[key], reply) for batch in each for key, reply in batch)


def _follow(model: Any, passing: Passing) -> None:
    """Let every decoder layer report the tokens it took, as a part of those of all layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # with the model's code

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    count = len(layers)  # a hook that holds the layers would keep their weights when the model goes

    def report(_: Any, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.shape[-2] > ROWS:  # else it is a token of a text, which is seen by its answer
            passing(hidden.shape[-2] / count)

    for layer in layers:
        layer.register_forward_hook(report)


def ready(checkpoint: Checkpoint) -> Any:
    """Load the weights and try the patch on them; raise UserError if that fails."""
    model = load_weights(checkpoint)
    with patched(model, native.frequencies(checkpoint.rope, checkpoint.rope.trained_length)):
        pass
    return model


def replies(
    model: Any,
    checkpoint: Checkpoint,
    rotation: Rotation,
    questions: Mapping[Key, ModelRequest],
    sizes: Sizes,
) -> Iterator[tuple[Key, Reply]]:
    """Yield a reply to every question, each once; the failure of one costs no other."""
    device = checkpoint.device
    decode = partial(
        checkpoint.tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    _start_peak(device)
    began = time.perf_counter()
    with flash3() if checkpoint.attention == "flash3" else nullcontext():
        for key, outcome, shared in _outcomes(model, rotation, questions, sizes, decode):
            yield key, Reply(outcome, time.perf_counter() - began, _peak_mib(device), shared)
            _start_peak(device)
            began = time.perf_counter()


def _outcomes(
    model: Any,
    rotation: Rotation,
    questions: Mapping[Key, ModelRequest],
    sizes: Sizes,
    decode: Decode,
) -> Iterator[tuple[Key, Outcome, bool]]:
    """Yield (key, outcome, shared) of every question, those for a divergence last."""
    other = {key: one for key, one in questions.items() if isinstance(one, Divergence)}
    plain = {key: one for key, one in questions.items() if key not in other}
    if plain:
        opened = answering(model, rotation, sizes, decode)
        shares = partial(shareable, model) if not rotation.stateful else lambda: False
        yield from _asked(opened, plain, shares)
    if other:
        yield from _asked(comparing(model, rotation, sizes), other, lambda: False)


def _asked(
    opened: AbstractContextManager[Callable[[Sequence[ModelRequest]], Answered]],
    questions: Mapping[Key, ModelRequest],
    shares: Callable[[], bool],
) -> Iterator[tuple[Key, Outcome, bool]]:
    """Yield (key, outcome, shared) of questions of one kind.

    What an input can raise (``OF_AN_INPUT``) is raised over one question: those that are left are
    asked one by one. Any other error is a defect and fails all that are left.
    """
    keys, left = list(questions), dict(questions)
    try:
        with opened as answer:
            shared = shares()
            with suppress(*OF_AN_INPUT):
                for index, outcome in answer(list(questions.values())):
                    del left[keys[index]]
                    yield keys[index], outcome, shared
            for key in list(left):
                alone: Outcome
                try:
                    ((_, alone),) = answer([left[key]])
                except OF_AN_INPUT as error:
                    alone = _outcome(error)
                del left[key]
                yield key, alone, False
    except Exception as error:  # noqa: BLE001  # what is left has failed, and the sweep goes on
        for key in left:
            yield key, _outcome(error), False


def _outcome(error: Exception) -> Failed | OutOfMemory:
    """Return what an error makes of a question."""
    lack = out_of_memory(error)
    if lack is not None:
        return lack
    why = reason(error)
    return Failed(why if isinstance(error, UserError) else f"{type(error).__name__}: {why}")


def _start_peak(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_mib(device: str) -> float:
    """Return the peak memory: of this sample on a GPU, of the process so far on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10  # of the system's number, in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
