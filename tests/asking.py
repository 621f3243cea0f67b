"""Questions that share beginnings, and their answers from the engine."""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ropewalk.harness.engine import Sizes, answers, shareable
from ropewalk.tasks.types import Loglikelihood, Request, Response


def asked(longest: int = 600) -> list[Request]:
    """Return questions that share: lengths of one text, forks, equal tokens, a few tokens alone."""
    draw = Random("exact")

    def drawn(count: int) -> list[int]:
        return [draw.randrange(1, 257) for _ in range(count)]

    text = drawn(longest)
    fork = text[:300] + drawn(77)
    given = [
        (text, 1), (text[:512], 1), (text[:301], 40), (fork, 330), (fork, 340),
        (text[:411] + drawn(150), 520), (drawn(20), 3), (drawn(5), 1), (drawn(129), 100),
    ]  # fmt: skip
    return [Loglikelihood(tuple(tokens), start, doc_id="q") for tokens, start in given]


def together(model: Any, questions: list[Request], sizes: Sizes) -> dict[int, Response | None]:
    return dict(answers(model, questions, sizes))


@torch.inference_mode()
def own_losses(model: Any, tokens: Sequence[int], start: int = 1) -> torch.Tensor:
    """Return the loss of every token from ``start`` on by a model's own logits, in float64."""
    given = torch.tensor([[*tokens]])
    logits = model(input_ids=given, use_cache=False).logits[0, start - 1 : -1].double()
    return torch.nn.functional.cross_entropy(logits, given[0, start:], reduction="none")


@torch.inference_mode()
def generated(model: Any, prompt: Sequence[int], new: int, **limits: float) -> list[int]:
    """Return the tokens that the library's own greedy generation adds to a prompt."""
    tokens = torch.tensor([[*prompt]])
    given = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": new, **limits}
    out = model.generate(tokens, **given, do_sample=False, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def forwarded(model: Any, questions: list[Request]) -> int:
    """Return the tokens that pass the trunk, the short check apart."""
    counts: list[int] = []
    with torch.inference_mode():
        shareable(model)  # checked once a model, on short prompts
    with model.model.embed_tokens.register_forward_hook(
        lambda _, given, __: counts.append(given[0].numel())
    ):
        list(answers(model, questions))
    return sum(counts)


def peaks(run: Callable[[], object]) -> tuple[int, int]:
    """Return the most bytes that tensors hold at once, and that Python and NumPy do.

    Whatever the system does with the pages.
    """
    gc.collect()  # what is freed inside would count as less
    tracemalloc.start()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
        _, beside = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events)), beside
