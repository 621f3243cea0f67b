"""The passkey task for a model that reads only the end of a prompt, as long as its window."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ropewalk.tasks import passkey
from ropewalk.tasks.passkey import METRIC, VERSION, grade, score
from ropewalk.tasks.types import Loglikelihood, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    depths: int = 5,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Loglikelihood]:
    """Yield the prompts of ``passkey``: the begin token, and as many of the last tokens as fit."""
    options = {"seed": seed, "depths": depths, "trials": trials, "chat": chat}
    for whole in passkey.ask(context, lengths, **options):
        cut = max(0, whole.length - context.trained_length)
        tokens = (*context.opening, *whole.tokens[cut + len(context.opening) :])
        yield replace(whole, tokens=tokens, start=whole.start - cut, cell=whole.length)
