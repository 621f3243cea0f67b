"""RULER for a model that reads only the end of a prompt, so much that its text fits the window."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ropewalk.tasks import ruler
from ropewalk.tasks.ruler import METRIC, VERSION, grade, score
from ropewalk.tasks.types import Generate, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Generate]:
    """Yield the prompts of ``ruler``: the begin token, and as many of the last tokens as fit."""
    for whole in ruler.ask(context, lengths, seed=seed, trials=trials, chat=chat):
        cut = max(0, whole.length - context.trained_length)
        prompt = (*context.opening, *whole.prompt[cut + len(context.opening) :])
        yield replace(whole, prompt=prompt, cell=whole.length)
