"""The engine against transformers' own loss, its greedy decoding, and models of a known answer."""

import math
from random import Random
from typing import Any

import pytest
import torch

from ropewalk.harness.engine import OutOfMemory, Sizes, answers, language_model, memory
from ropewalk.harness.errors import UserError
from ropewalk.tasks.types import Loglikelihood, Request
from tests import families
from tests.asking import own_losses
from tests.tiny import FAMILIES, tiny_config


def build(family: str, **changes: Any) -> Any:
    return families.build(tiny_config(family, **changes))


def question(length: int, start: int = 1, seed: int = 0) -> Request:
    draw = Random(seed)
    return Loglikelihood(tuple(draw.randrange(1, 257) for _ in range(length)), start, doc_id="q")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_loss_and_argmax_is_that_of_the_full_logits(family, monkeypatch):
    monkeypatch.setattr(memory, "LEAST_HEAD_ROWS", 17)
    model, asked = build(family), question(90, start=40)
    ((_, answer),) = answers(model, [asked], Sizes(logits=1))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([asked.tokens])).logits[0, 39:].float()
    log_likelihood = torch.log_softmax(logits.double(), -1)
    wanted = [-log_likelihood[i, token].item() for i, token in enumerate(asked.tokens[40:])]
    assert answer.nll == pytest.approx(wanted, abs=1e-5)
    assert list(answer.argmax) == logits.argmax(-1).tolist()
    assert len(answer.argmax) == len(answer.nll) + 1 == 51


@pytest.mark.slow
def test_a_large_vocabulary_leaves_no_bias():
    """Over 49k tokens the mean loss is that of float64 to 3e-7; log_softmax is 1.4e-6 low."""
    model, asked = build("llama", vocab_size=49_152), question(129)
    ((_, answer),) = answers(model, [asked])
    wanted = float(own_losses(model, asked.tokens).mean())
    assert math.fsum(answer.nll) / len(answer.nll) == pytest.approx(wanted, abs=3e-7)


OWN = "this machine"


@pytest.mark.parametrize(("lack", "place"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 3 has a total"),
     "GPU 3"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), OWN),
    (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB, other allocations: 1 GB)"),
     "the GPU"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
     "the GPU"),
    (MemoryError(), OWN),
])  # fmt: skip
def test_too_little_memory_is_no_answer_and_the_rest_goes_on(lack, place, caplog):
    """What does not fit is OutOfMemory, never a wrong answer; the others are measured."""
    model, asked = build("llama"), [question(20), question(200, seed=1), question(30, seed=2)]
    wanted = dict(answers(model, asked))
    assert not caplog.messages

    def fail(_: Any, inputs: Any) -> None:
        if inputs[0].shape[1] >= 200:
            raise lack

    model.model.layers[0].register_forward_pre_hook(fail)
    assert dict(answers(model, asked)) == {**wanted, 1: OutOfMemory(place)}
    (message,) = caplog.messages
    assert message.startswith(f"The memory of {place} was too small for 3 of 3 requests;")


def test_a_model_without_one_trunk_is_refused():
    with pytest.raises(UserError, match="^Linear is not a causal language model of one trunk"):
        language_model(torch.nn.Linear(2, 2))
