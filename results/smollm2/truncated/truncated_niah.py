"""RULER's needle tasks for a model that reads only the end of a prompt, as long as its window."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ropewalk.tasks import niah
from ropewalk.tasks.niah import METRIC, VERSION, grade, score
from ropewalk.tasks.types import Generate, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    preset: str = "single_1",
    trials: int = 20,
    chat: bool = True,
) -> Iterator[Generate]:
    """Yield the prompts of ``niah``: the begin token, and as many of the last tokens as fit."""
    options = {"seed": seed, "preset": preset, "trials": trials, "chat": chat, "depths": 0}
    for whole in niah.ask(context, lengths, **options):
        cut = max(0, whole.length - context.trained_length)
        prompt = (*context.opening, *whole.prompt[cut + len(context.opening) :])
        yield replace(whole, prompt=prompt, cell=whole.length)
