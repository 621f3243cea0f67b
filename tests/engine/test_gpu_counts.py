"""What a pass launches and holds on a GPU, counted on tensors without data."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ropewalk.harness.engine import DEFAULT, answers, forward, memory, sdpa
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.tasks.types import Loglikelihood
from tests.cuda_operators import Counted


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "on_gpu", lambda _: True)
    monkeypatch.setattr(sdpa, "_flash_takes", lambda *_: True)


def counted(layers: int, length: int) -> tuple[Counted, LlamaConfig]:
    shaped = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=4096,
    )  # fmt: skip
    gpu = Counted()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shaped, dtype=torch.bfloat16).eval()
    gpu.ignore(model)
    forward._known[model] = {"sdpa": True}  # it needs numbers to be verified
    with gpu:
        list(answers(model, [Loglikelihood(tuple(range(length)), 1, doc_id="text")]))
    return gpu, shaped


@pytest.mark.slow
@pytest.mark.parametrize("length", [512, 4000])  # one chunk of rows, and several
def test_a_pass_stays_within_its_estimate_and_does_not_wait_on_its_way(length):
    gpu, shaped = counted(2, length)
    shape = memory.Shape.of(shaped, 2).on(torch.device("cuda"))
    estimate = memory.shared(shape, build_tree([tuple(range(length))]), length, DEFAULT)
    assert 0 < gpu.peak <= estimate
    assert gpu.waits == 3  # for packed sequences (transformers), losses, most likely tokens


@pytest.mark.slow
def test_every_layer_launches_the_same_kernels_and_attends_once():
    one, two, three = (counted(layers, 512)[0].kernels for layers in (1, 2, 3))
    assert two - one == three - two
    assert sum(n for name, n in (two - one).items() if "attention" in name) == 1
