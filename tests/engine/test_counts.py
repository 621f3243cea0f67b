"""What a pass costs, counted as it runs: tensors of attention, keys, chunks of the head, reads."""

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

from harness.engine import Sizes, answers, memory, packed_attention, sdpa, shareable, trunk
from harness.engine.prefix_tree import build_tree
from harness.patching.patch import patched
from tasks.types import Generate, Loglikelihood, Request
from tests.asking import asked, together
from tests.banded import bands_of, model_of
from tests.cuda_operators import FLASH, Operators
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


@pytest.mark.parametrize("flash", [True, False])
def test_a_gpu_has_no_mask(model, flash, monkeypatch):
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


def test_a_token_of_a_text_goes_to_the_flash_kernel(model, monkeypatch):
    """PyTorch's own choice might be a kernel that plans anew for every number of keys."""
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    operators = Operators.installed(monkeypatch, flash=True)
    prompt = Generate(text(40), 5, doc_id="q")
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", lambda q, *_, **__: q.clone())
    list(answers(model, [prompt], decode=str))
    steps = [(call.name, call.rows, call.keys) for call in operators.calls]
    assert steps == [(FLASH, 1, 40 + new) for new in range(5) for _ in range(3)]


@pytest.mark.parametrize("chunk", [LENGTH, CHUNK])
def test_keys_and_values_of_two_layers_never_coexist(model, chunk, monkeypatch):
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


@pytest.fixture
def over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layers of every model be on several GPUs."""
    monkeypatch.setattr(trunk, "over_gpus", lambda _: True)


READS = ("_local_scalar_dense", "is_nonzero", "equal", "item")


class Reads(TorchDispatchMode):
    """Notes the operators for which a host waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.found += [func.__name__] * (func.__name__.partition(".")[0] in READS)
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("over_gpus")
def test_gpus_that_share_a_model_get_the_next_chunk_before_the_others_are_done(model):
    """All layers are given a chunk before the first is given the next, and the host waits for none
    of them: a GPU computes a chunk while the one after it computes the chunk before.

    transformers reads one number of the first GPU as it begins with a chunk.
    """
    calls = list[tuple[int, int]]()
    rows = [0] * 3
    with ExitStack() as stack:
        for at, layer in enumerate(model.model.layers):

            def begins(_: Any, given: Any, at: int = at) -> None:
                calls.append((rows[at] // CHUNK, at))
                rows[at] += given[0].shape[1]

            stack.callback(layer.register_forward_pre_hook(begins).remove)
        reads = stack.enter_context(Reads())
        list(answers(model, scored(text()), Sizes(chunk=CHUNK)))
    assert calls == [(chunk, layer) for chunk in range(LENGTH // CHUNK) for layer in range(3)]
    assert reads.found == ["is_nonzero.default"] * (LENGTH // CHUNK)


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


def test_overlapping_chunks_take_the_keys_of_all_layers():
    """The estimate has them; the least sizes, after a lack of memory, do without."""
    shape = memory.Shape(4096, 32, 8, 128, 14_336, 32, 128_256, 2).on(torch.device("cuda"), gpus=4)
    tree, sizes = build_tree([tuple(range(131_072))]), Sizes()
    keys = 131_072 * shape.keys
    both = [memory.shared(shape, tree, 131_072, one) for one in (sizes, sizes.least)]
    assert both[0] > 32 * keys
    assert both[1] < 4 * keys


def test_what_layers_share_goes_from_one_gpu_to_the_next():
    """A copy from the first GPU to every other would let it wait for the last."""
    given = torch.zeros(1, 8), None
    carried: trunk.Carried = {}
    layers = [torch.nn.Linear(4, 4, device=device) for device in ("cpu", "meta", "meta")]
    found = list[Any]()
    for layer in layers:
        own = trunk._carrying(lambda hidden, at: (found.append(at), hidden)[1], layer, carried)
        own(torch.zeros(1, 8, 4), given)
    assert [at[0].device.type for at in found] == ["cpu", "meta", "meta"]
    assert found[0][0] is given[0]
    assert found[1][0] is found[2][0]  # no second copy
    assert found[1][1] is None
