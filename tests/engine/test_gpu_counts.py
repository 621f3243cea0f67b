"""What a pass holds on a GPU and how often it waits, counted on tensors without data."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ropewalk.harness.engine import DEFAULT, answers, forward, memory, sdpa
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.sweep.this_process import here
from ropewalk.tasks.types import Loglikelihood
from tests.cuda_operators import Counted, Operators


@pytest.mark.slow
@pytest.mark.parametrize("length", [512, 4000])  # one chunk of rows, and several
def test_a_pass_stays_within_its_estimate_and_does_not_wait_on_its_way(length, monkeypatch):
    monkeypatch.setattr(sdpa, "on_gpu", lambda _: True)
    monkeypatch.setattr(sdpa, "flash_takes", lambda *_: True)
    shaped = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=4096,
    )  # fmt: skip
    gpu = Counted()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shaped, dtype=torch.bfloat16).eval()
    gpu.ignore(model)
    forward._known[model] = {"sdpa": True}  # it needs numbers to be verified
    with gpu:
        list(answers(model, [Loglikelihood(tuple(range(length)), 1, doc_id="text")]))
    shape = memory.Shape.of(shaped, 2).on(torch.device("cuda"))
    estimate = memory.shared(shape, build_tree([tuple(range(length))]), length, DEFAULT)
    assert 0 < gpu.peak <= estimate
    assert gpu.waits == 3  # for packed sequences (transformers), losses, most likely tokens


@pytest.mark.parametrize(("flash", "kernel"), [(True, "flash"), (False, "memory-efficient")])
def test_a_session_names_the_kernel_of_a_gpu(flash, kernel, reference, monkeypatch):
    checkpoint, model = reference
    assert "kernel" not in here(model, checkpoint)
    Operators.installed(monkeypatch, flash=flash)
    assert here(model, checkpoint)["kernel"] == kernel
