"""What a pass costs, counted as it runs: tensors of attention, keys, chunks of the head, reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig

from harness.engine import Sizes, answers, forward, packed_attention, sdpa, shareable
from tasks.types import Generate, Loglikelihood, Request
from tests.cuda_operators import FLASH, Operators

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


def test_no_tensor_has_a_number_for_every_row_and_key(model: Any) -> None:
    """On a CPU a mask has a tile of rows; the weights of a chunk would be 512 by 2048."""
    with Counter() as counter:
        list(answers(model, scored(text()), Sizes(chunk=CHUNK)))
    masks = sdpa.TILE * (LENGTH + sdpa.TILE + sdpa.KEY_BLOCK)
    assert counter.largest == masks < CHUNK * LENGTH


@pytest.mark.parametrize("flash", [True, False])
def test_a_gpu_has_no_mask(model: Any, flash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is larger than the activations, and each chunk and layer is one call of attention."""
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    operators = Operators.installed(monkeypatch, flash=flash, dense=False)
    whole = list[torch.Tensor]()
    monkeypatch.setattr(
        sdpa, "scaled_dot_product_attention", lambda q, *_, **__: (whole.append(q), q.clone())[1]
    )
    with Counter() as counter:
        list(answers(model, scored(text()), Sizes(chunk=CHUNK, logits=1)))
    assert counter.largest <= LENGTH * 64
    assert len(operators.calls) + len(whole) == 3 * LENGTH // CHUNK
    assert len(whole) == 3 * flash  # the first chunk of each layer is a square


def test_a_token_of_a_text_goes_to_the_flash_kernel(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own choice might be a kernel that plans anew for every number of keys."""
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    operators = Operators.installed(monkeypatch, flash=True)
    prompt = Generate(text(40), 5, doc_id="q")
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", lambda q, *_, **__: q.clone())
    list(answers(model, [prompt], decode=str))
    steps = [(call.name, call.rows, call.keys) for call in operators.calls]
    assert steps == [(FLASH, 1, 40 + new) for new in range(5) for _ in range(3)]


@pytest.mark.parametrize("chunk", [LENGTH, CHUNK])
def test_keys_and_values_of_two_layers_never_coexist(
    model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a layer are freed before the next one computes its own."""
    own, stored, alive = packed_attention._hold, list[StorageWeakRef](), list[bool]()

    def noted(run: Any, *given: Any) -> None:
        own(run, *given)
        (layer,) = run.layers.values()
        stored[:] = [StorageWeakRef(tensor.untyped_storage()) for tensor in layer.whole]

    def begins(*_: Any) -> None:
        alive.extend(not one.expired() for one in stored)

    monkeypatch.setattr(packed_attention, "_hold", noted)
    with ExitStack() as stack:
        for layer in model.model.layers:
            stack.callback(layer.register_forward_pre_hook(begins).remove)
        list(answers(model, scored(text()), Sizes(chunk=chunk)))
    assert alive == [False] * 4  # keys and values of the first two layers, as the next begins


def test_the_head_is_read_once_per_pack(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it computes many rows at a time, and the host waits for losses and argmaxes once."""
    monkeypatch.setattr(forward, "on_gpu", lambda _: True)
    rows, reads = list[int](), list[int]()
    own = torch.Tensor.cpu

    def cpu(tensor: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        reads.append(len(tensor))
        return own(tensor, *given, **named)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    sizes = Sizes(pack=LENGTH, layer=640 * 4 * 256)
    handle = model.lm_head.register_forward_hook(
        lambda _, given, __: rows.append(given[0].shape[1])
    )
    list(answers(model, scored(text(), text(1500, seed=3)), sizes))
    handle.remove()
    assert rows == [640, 640, 640, 128, 640, 640, 220]
    assert reads == [LENGTH, LENGTH, 1500, 1500]
