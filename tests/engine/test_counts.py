"""What a pass costs, counted as it runs: tensors of attention, keys, chunks of the head, reads."""

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig

from harness.engine import Sizes, answers, sdpa, shareable, trunk
from harness.patching.patch import patched
from tasks.types import Loglikelihood, Request
from tests.asking import asked, together
from tests.banded import bands_of, model_of
from tests.families import build, tiny

LENGTH, CHUNK = 2048, 512


class Counter(TorchDispatchMode):
    """Notes the most numbers in one tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [prod(t.shape) for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return out


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    shaped = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, tie_word_embeddings=False,
    )  # fmt: skip
    built = AutoModelForCausalLM.from_config(shaped).eval()
    with torch.inference_mode():
        assert shareable(built)
    return built


def text(length: int = LENGTH, seed: int = 0) -> tuple[int, ...]:
    return tuple((31 * i * i + 7 * i + seed) % 256 for i in range(length))


def scored(*texts: tuple[int, ...]) -> list[Request]:
    return [Loglikelihood(tokens, 1, doc_id="q") for tokens in texts]


def test_no_tensor_has_a_number_for_every_row_and_key(model):
    """On a CPU a mask has a tile of rows; the weights of a chunk would be 512 by 2048."""
    with Counter() as counter:
        list(answers(model, scored(text()), Sizes(chunk=CHUNK)))
    masks = sdpa.TILE * (LENGTH + sdpa.TILE + sdpa.KEY_BLOCK)
    assert counter.largest == masks < CHUNK * LENGTH


@pytest.fixture
def over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layers of every model be on several GPUs."""
    monkeypatch.setattr(trunk, "over_gpus", lambda _: True)


@pytest.mark.usefixtures("over_gpus")
def test_gpus_that_share_a_model_get_the_next_chunk_before_the_others_are_done(model):
    """A GPU computes a chunk while the one after it computes the chunk before."""
    calls = list[tuple[int, int]]()
    rows = [0] * 3
    with ExitStack() as stack:
        for at, layer in enumerate(model.model.layers):

            def begins(_: Any, given: Any, at: int = at) -> None:
                calls.append((rows[at] // CHUNK, at))
                rows[at] += given[0].shape[1]

            stack.callback(layer.register_forward_pre_hook(begins).remove)
        list(answers(model, scored(text()), Sizes(chunk=CHUNK)))
    assert calls == [(chunk, layer) for chunk in range(LENGTH // CHUNK) for layer in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma", "gpt_neox", "cohere", "qwen3_moe"])
def test_overlapping_chunks_change_no_bit(family, monkeypatch):
    model, sizes = build(tiny(family)), Sizes(pack=300, chunk=64)
    wanted = together(model, asked(), sizes)
    monkeypatch.setattr(trunk, "over_gpus", lambda _: True)
    assert together(model, asked(), sizes) == wanted


@pytest.mark.parametrize("method", ["self_extend", "log_n on yarn", "ms_poe"])
def test_overlapping_chunks_change_no_bit_of_moved_positions(method, monkeypatch):
    model, questions = model_of("qwen3"), [one for one in asked() if one.length <= 411]
    with patched(model, bands_of("qwen3", method, 411)):
        wanted = together(model, questions, Sizes(chunk=96))
        monkeypatch.setattr(trunk, "over_gpus", lambda _: True)
        assert together(model, questions, Sizes(chunk=96)) == wanted
