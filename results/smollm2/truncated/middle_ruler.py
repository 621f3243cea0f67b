"""RULER for a model that reads only the beginning and the end of a prompt, cut to its window."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tasks import ruler
from tasks.ruler import FACTS, METRIC, VERSION, grade, score
from tasks.types import Generate, TaskContext

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Generate]:
    """Yield the prompts of ``ruler`` without their middle: two halves, as LongBench cuts them."""
    for whole in ruler.ask(context, lengths, seed=seed, trials=trials, chat=chat):
        cut = max(0, whole.length - context.trained_length)
        half = (len(whole.prompt) - cut) // 2
        yield replace(
            whole,
            prompt=whole.prompt[:half] + whole.prompt[half + cut :],
            cell=whole.length,
        )
