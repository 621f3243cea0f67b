"""Answer the requests of a plan in this process, which holds the weights."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Literal

import torch

from ropewalk.harness.engine import Answered, OutOfMemory, Sizes, out_of_memory, shareable
from ropewalk.harness.engine.memory import Shape
from ropewalk.harness.engine.sdpa import kernel_name
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.patch import answering, comparing, patched
from ropewalk.harness.sweep.memory import fitted
from ropewalk.harness.sweep.plan import Batch, Failed, Item, Key, Plan, Reply, open_model
from ropewalk.harness.sweep.record import machine
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import native
from ropewalk.scaling.types import Rotation
from ropewalk.tasks.types import Divergence, ModelRequest, ModelResponse

# What torch and a model raise over one input: a shape, a kernel, too little memory, a refusal.
OF_AN_INPUT = (RuntimeError, MemoryError, UserError)


class ThisProcess:
    """The backend that holds the weights in this process, those of one model at a time."""

    workers = 1

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        self.model: Any = None
        self.machines: dict[str, Any] = {}

    def open(self, spec: Spec) -> Checkpoint:
        """Return the model of a spec."""
        return open_model(spec)

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Load the weights unless they are, and yield the replies to all requests."""
        sizes = fitted(plan, work)
        if self.checkpoint is not plan.checkpoint:
            self.model = None  # before the next one is loaded
            self.model, self.checkpoint = ready(plan.checkpoint), plan.checkpoint
            self.machines = here(self.model, plan.checkpoint)
        for batch in work:
            items = {item.key: item for item in batch.items}
            given = batch.rotation, batch.questions, sizes
            for key, reply in replies(self.model, plan.checkpoint, *given):
                yield items[key], reply


def ready(checkpoint: Checkpoint) -> Any:
    """Load the weights and try the patch on them; raise UserError if that fails."""
    model = load_weights(checkpoint)
    with patched(model, native.frequencies(checkpoint.rope, checkpoint.rope.trained_length)):
        pass
    return model


def here(model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a session records: the machine, and on a GPU the kernel of attention."""
    channels = Shape.of(checkpoint.config.get_text_config(), model.dtype.itemsize).head_dim
    kernel = kernel_name(model.device, model.dtype, channels)
    return machine(checkpoint.device) | ({"kernel": kernel} if kernel else {})


def replies(
    model: Any,
    checkpoint: Checkpoint,
    rotation: Rotation,
    requests: Mapping[Key, ModelRequest],
    sizes: Sizes,
) -> Iterator[tuple[Key, Reply]]:
    """Yield a reply to every request, each once; the failure of one costs no other.

    Raises UserError after an error that leaves the GPU unusable, which all others would meet too.
    """
    device, decode = checkpoint.device, checkpoint.decode
    other = {key: one for key, one in requests.items() if isinstance(one, Divergence)}
    plain = {key: one for key, one in requests.items() if key not in other}
    kinds = ((plain, answering(model, rotation, sizes, decode)),
             (other, comparing(model, rotation, sizes)))  # fmt: skip
    _start_peak(device)
    began = time.perf_counter()
    for some, opened in kinds:
        shares = some is plain and not rotation.stateful and partial(shareable, model)
        for key, outcome, shared in _outcomes(opened, some, shares) if some else ():
            if isinstance(outcome, Failed):
                _check_gpu(device, outcome)
            yield key, Reply(outcome, time.perf_counter() - began, _peak_mib(device), shared)
            _start_peak(device)
            began = time.perf_counter()


def _outcomes(
    opened: AbstractContextManager[Callable[[Sequence[ModelRequest]], Answered]],
    requests: Mapping[Key, ModelRequest],
    shares: Callable[[], bool] | Literal[False],
) -> Iterator[tuple[Key, ModelResponse | Failed | OutOfMemory, bool]]:
    """Yield (key, outcome, shared) of requests of one kind.

    What an input can raise (``OF_AN_INPUT``) is raised over one request: those that are left are
    asked one by one. Any other error is a defect and fails all that are left.
    """
    keys, left = list(requests), dict(requests)
    try:
        with opened as answer:
            shared = shares and shares()
            with suppress(*OF_AN_INPUT):
                for index, outcome in answer(list(requests.values())):
                    del left[keys[index]]
                    yield keys[index], outcome, shared
            for key in list(left):
                alone: ModelResponse | Failed | OutOfMemory
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
    """Return what an error makes of a request."""
    lack = out_of_memory(error)
    if lack is not None:
        return lack
    why = reason(error)
    return Failed(why if isinstance(error, UserError) else f"{type(error).__name__}: {why}")


def _check_gpu(device: str, failed: Failed) -> None:
    """Raise UserError if a failure has left the GPU unusable, as a bad access of a kernel does."""
    if torch.device(device).type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise UserError(
                f"This process can no longer use the GPU: {failed.reason}. Everything measured is "
                "kept; the same command continues."
            ) from error


def _start_peak(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_mib(device: str) -> float:
    """Return the peak memory: of this sample on a GPU, of the process so far on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10  # of the system's number, in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
