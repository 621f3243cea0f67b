"""Elementwise functions with the bits of one thread, however many there are.

A CPU computes exponentials by whole vectors and what is left over one by one, with other bits. Each
thread has a left-over of its own, so that the number of threads would change an activation. Here
the work is cut where no thread but the last is left with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from harness.engine.kernel import blocked

ROUNDED: set[Any] = {
    functional.gelu, functional.sigmoid, functional.silu, functional.softplus, functional.tanh,
    torch.exp, torch.sigmoid, torch.tanh,
    torch.Tensor.exp, torch.Tensor.sigmoid, torch.Tensor.tanh,
}  # fmt: skip
VECTORS = 64  # elements; a multiple of what a CPU takes at a time, in every dtype
ALONE = 16_384  # elements that one thread computes, however many there are
EACH = 32_768  # elements for which one more thread is taken


def as_one_thread(device: torch.device) -> AbstractContextManager[Any]:
    """Compute, until the end of the block, elementwise functions as one thread does."""
    many = blocked(device) and torch.get_num_threads() > 1
    return _AsOneThread() if many else nullcontext()


def plainly(device: torch.device) -> AbstractContextManager[Any]:
    """Look at no function until the end of the block, which calls many and none that rounds.

    On a GPU nothing looks, and the mask of forks is a class that functions must look at.
    """
    return torch._C.DisableTorchFunction() if blocked(device) else nullcontext()


class _AsOneThread(TorchFunctionMode):
    """Stands before every function of torch and cuts the arguments of those that round."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in ROUNDED and args and args[0].numel() > ALONE and "out" not in named:
            return _cut(func, args, named)
        return func(*args, **named)


def _cut(func: Any, args: Sequence[Any], named: dict[str, Any]) -> torch.Tensor:
    """Return a function of all elements of its first argument, a few or a share a thread.

    Elements of one piece are cut anywhere; rows that lie apart, each with a left-over of its own,
    stay whole.
    """
    first, more = args[0], args[1:]
    apart = not first.is_contiguous()
    given = first.flatten(0, -2) if apart else first.view(-1)
    width, threads = given.shape[-1] if apart else 1, torch.get_num_threads()
    found = [func(given[a:b], *more, **named) for a, b in _parts(len(given), width, threads)]
    return (found[0] if len(found) == 1 else torch.cat(found)).view(first.shape)


def _parts(count: int, width: int, threads: int) -> Iterator[tuple[int, int]]:
    """Cut ``count`` entries of ``width`` elements: what all share evenly, and what one computes.

    Rows come two by two: a single one is in one piece, which torch computes another way.
    """
    step = VECTORS if width == 1 else 2
    even, few = count // (step * threads) * step * threads, max(step, ALONE // width // step * step)
    if even * width <= (threads - 1) * EACH:  # fewer threads would be taken, and share it otherwise
        even = 0
    if even:
        yield 0, even
    yield from ((low, min(low + few, count)) for low in range(even, count, few))
