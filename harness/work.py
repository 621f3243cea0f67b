"""What a process that holds the weights does: answer a group of questions, whatever fails."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.checkpoint import Checkpoint
from harness.engine import Sizes, out_of_memory
from harness.errors import UserError, reason
from harness.patch import Answering, answering, scaled
from harness.weights import load_weights
from scaling import native
from scaling._rotation import Rotation
from tasks._types import Answer, Question


@dataclass(frozen=True)
class Reply:
    """The answer to one question of a group, or in one sentence why it failed.

    Neither stands for too little memory. ``seconds`` is wall time.
    """

    index: int
    answer: Answer | None
    failure: str | None
    seconds: float
    peak_mib: float


def ready(checkpoint: Checkpoint) -> Any:
    """Load the weights and try the patch on them; raise UserError for a model that refuses it."""
    model = load_weights(checkpoint)
    with scaled(model, native.frequencies(checkpoint.rope, checkpoint.rope.trained_length)):
        pass
    return model


def replies(
    model: Any, device: str, rotation: Rotation, questions: Sequence[Question], sizes: Sizes
) -> Iterator[Reply]:
    """Yield a reply to every question, each once, as they are had; no failure costs the others."""
    left = set(range(len(questions)))
    _start_peak(device)
    began = time.perf_counter()
    for index, answer, failure in _tried(model, answering(rotation, sizes), rotation, questions):
        left.remove(index)
        yield Reply(index, answer, failure, time.perf_counter() - began, _peak_mib(device))
        _start_peak(device)
        began = time.perf_counter()


def _tried(
    model: Any, answer_all: Answering, rotation: Rotation, questions: Sequence[Question]
) -> Iterator[tuple[int, Answer | None, str | None]]:
    """Yield (index, answer, failure); what fails together is tried again, each question alone."""
    left = dict(enumerate(questions))
    try:
        with scaled(model, rotation):
            for index, answer in _together(model, answer_all, questions):
                del left[index]
                yield index, answer, None
            for index in list(left):
                yield index, *_alone(model, answer_all, left.pop(index))
    except Exception as error:  # noqa: BLE001  # any failure is told, and the sweep goes on
        for index in left:
            yield index, None, _told(error)


def _together(
    model: Any, answer_all: Answering, questions: Sequence[Question]
) -> Iterator[tuple[int, Answer | None]]:
    """Yield the answers to all questions that the engine gets to."""
    try:
        yield from answer_all(model, questions)
    except Exception:  # noqa: BLE001  # the question that fails tells why when it is asked alone
        return


def _alone(
    model: Any, answer_all: Answering, question: Question
) -> tuple[Answer | None, str | None]:
    """Return the answer to one question, or why it failed."""
    try:
        ((_, answer),) = answer_all(model, [question])
    except Exception as error:  # noqa: BLE001  # any failure is told, and the sweep goes on
        return None, _told(error)
    return answer, None


def _told(error: Exception) -> str | None:
    """Return why in words; None for too little memory, which the caller tells by the estimate."""
    if out_of_memory(error):
        return None
    told = reason(error)
    return told if isinstance(error, UserError) else f"{type(error).__name__}: {told}"


def _start_peak(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_mib(device: str) -> float:
    """Return the peak memory: of this sample on a GPU, of the process so far on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
