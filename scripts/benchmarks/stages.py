"""The seconds of one pass by operator, as the operators of the model are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine import answers, lm_head
from tasks.types import Loglikelihood

PRODUCTS, ATTENTION = "products of the layers", "attention"
HEAD, REST = "head with its losses", "norms, rotation, SiLU and sums"
KERNELS = {"linear": PRODUCTS, "mm": PRODUCTS, "addmm": PRODUCTS} | {
    "scaled_dot_product_attention": ATTENTION,
    "_scaled_dot_product_flash_attention_for_cpu": ATTENTION,
}
Called = tuple[bool, str]  # whether the head or its losses called it, and the operator


def kind(called: Called) -> str:
    """Return the stage that an operator belongs to."""
    return HEAD if called[0] else KERNELS.get(called[1], REST)


def by_operator(
    model: Any, text: tuple[int, ...], clock: Callable[[], float]
) -> tuple[dict[Called, float], float]:
    """Return the seconds of each operator in the engine's pass over a text, and of the whole.

    A clock of CPU time leaves neighbours out, which torch.profiler's clock, of a wall, does not.
    """
    timed, read = _Timed(clock), lm_head.read

    def head(*given: Any, **named: Any) -> Any:
        timed.head = True
        try:
            return read(*given, **named)
        finally:
            timed.head = False

    began = clock()
    with timed, patch.object(lm_head, "read", head):
        list(answers(model, [Loglikelihood(text, 1, doc_id="pass")]))
    return timed.seconds, clock() - began


class _Timed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its own
    """Add up the seconds of every operator that is called, and know whether the head calls it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock, self.head = clock, False
        self.seconds: dict[Called, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = self.clock()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.seconds[self.head, func.overloadpacket.__name__] += self.clock() - began
