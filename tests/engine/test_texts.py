"""Texts that are continued together as on a GPU, without a GPU: its operator computed densely."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig

from ropewalk.harness.engine import OutOfMemory, Sizes, answers, forward, memory, sdpa
from ropewalk.harness.engine import texts as written
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.patching.banded_attention import BandView
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import patched
from ropewalk.scaling import dual_chunk, dynamic_ntk, mesa, none, rerope, self_extend, yarn
from ropewalk.tasks.types import Generate
from tests.asking import generated
from tests.banded import model_of
from tests.cuda_operators import Counted, Operators
from tests.engine.test_generation import LENGTH, asked, decode, question, texts
from tests.families import build, tiny

SCHEMA = torch.ops.aten._flash_attention_forward.default._schema
PARTS = 8  # of the keys of a text
WAITING = ("_local_scalar_dense", "is_nonzero", "equal")  # operators that read numbers back


@torch.library.custom_op("ropewalk_tests::at_once", mutates_args=())
def at_once(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: torch.Tensor,
    seen: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the attention of rows that each read some of the keys, (rows, heads, channels).

    The second is the log-sum-exp, (heads, rows).
    """
    assert bool((seen > 0).all() and (first[:-1] + seen <= len(key)).all())
    place = torch.arange(int(seen.max()))
    read = first[:-1, None] + torch.minimum(place, seen[:, None] - 1)  # no key that is not seen
    keys, values = (
        part[read].double().repeat_interleave(query.shape[1] // part.shape[1], 2)
        for part in (key, value)
    )
    scores = torch.einsum("rhd,rnhd->hrn", query.double(), keys) * scale
    scores = scores.masked_fill(place >= seen[:, None], -torch.inf)
    out = torch.einsum("hrn,rnhd->rhd", scores.softmax(-1), values)
    return out.to(query.dtype), scores.logsumexp(-1).to(query.dtype)


class Graph(TorchDispatchMode):
    """Record operators and compute them again, into the same memory, as a CUDA graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.partition(".")[0] in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        read = {leaf.untyped_storage()._cdata for leaf in leaves((args, kwargs))}
        made = [leaf for leaf in leaves(out) if leaf.untyped_storage()._cdata not in read]
        self.calls.append((func, args, kwargs or {}, made))
        return out

    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            out = func(*args, **kwargs)
            for before, after in zip(made, leaves(out) if made else (), strict=True):
                before.copy_(after)


def leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@dataclass
class Gpu:
    """Calls of the operator of all texts: the number of texts in each; and replayed graphs.

    ``alone`` is the operator of one text.
    """

    alone: Any
    together: list[int] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)

    def flash(self, *given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        names = [argument.name for argument in SCHEMA.arguments]
        call = dict(zip(names, given, strict=False)) | named
        query, first, seen = call["query"], call["cum_seq_k"], call.get("seqused_k")
        if seen is None:
            out: tuple[torch.Tensor, ...] = self.alone(*given, **named)
            return out
        assert first.dtype == seen.dtype == call["cum_seq_q"].dtype == torch.int32
        assert len(first) == len(seen) + 1 == len(query) + 1
        assert call["max_q"] == 1
        assert not any(call[name] for name in ("dropout_p", "is_causal", "return_debug_mask"))
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            self.together.append(len(set(first[:-1:PARTS].tolist())))
        scale = query.shape[2] ** -0.5 if call["scale"] is None else call["scale"]
        return at_once(query, call["key"], call["value"], first, seen, scale)

    def graph(self) -> Graph:
        self.graphs.append(Graph())
        return self.graphs[-1]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Let the engine take this for a GPU."""
    model_of("llama")  # what transformers imports reads the operators
    Operators.installed(monkeypatch, flash=True)
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    for name, value in {"_known": {}, "PARTS": PARTS, "PART": 16}.items():
        monkeypatch.setattr(written, name, value)
    one = Gpu(torch.ops.aten._flash_attention_forward)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", one.flash)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", one.graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    return one


ROTATIONS: dict[str, Any] = {
    "none": none.frequencies,
    "yarn": partial(yarn.frequencies, factor=4),
    "dynamic": dynamic_ntk.bands,
    "self_extend": self_extend.bands,
    "dual_chunk": dual_chunk.bands,
}


def many() -> list[Any]:
    """Return more texts than rows, of different lengths, with common beginnings and packs."""
    few = asked()
    more = [question([*few[0].tokens[: 40 + n], n, 5], 1 + n % 9) for n in range(20)]
    return [*few, *more, question([9, 8, 7], 30)]


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("rotation", ROTATIONS)
def test_each_of_many_texts_is_that_of_generate_and_that_of_a_text_alone(
    rotation, graphs, gpu, monkeypatch
):
    if not graphs:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", partial(waits, "no graphs"))
    model, requests = model_of("llama"), many()
    with patched(model, ROTATIONS[rotation](rope_of(model.config), LENGTH)):
        found = texts(model, requests, Sizes(pack=300))
        most, replayed = max(gpu.together, default=0), len(gpu.graphs)
        alone = [texts(model, [one])[0] for one in requests[::4]]
        own = [generated(model, one.tokens, one.max_new_tokens) for one in requests]
    assert [list(answer.tokens) for answer in found] == own
    alike(found[::4], alone)
    assert most == 16
    assert (replayed > 0) == graphs


def waits(message: str) -> None:
    raise RuntimeError(message)


def alike(found: list[Any], wanted: list[Any]) -> None:
    """Compare texts whose prompts were computed in other chunks, which differ by rounding."""
    assert [(one.text, one.tokens) for one in found] == [(one.text, one.tokens) for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.nll == pytest.approx(other.nll, abs=1e-5)


def test_what_is_in_memory_before_a_text_changes_nothing(gpu, monkeypatch):
    """Some rows of mesa's bands see no key, and not what an earlier text left there either."""
    model, zeros = model_of("llama"), written._zeros
    with patched(model, mesa.bands(rope_of(model.config), LENGTH)):
        wanted = texts(model, many())
        monkeypatch.setattr(written, "_zeros", lambda *given: zeros(*given).fill_(torch.nan))
        alike(texts(model, many()), wanted)
    assert max(gpu.together) == 16


def test_a_band_that_is_computed_wrongly_at_once_is_computed_by_the_kernel(monkeypatch):
    """Its far queries are rotated like its near ones."""
    model, turned = build(tiny("llama")), BandView.turned

    def near(view: Any, *given: Any, query: bool) -> Any:
        first = view.attention.bands.bands[0]
        return turned(replace(view, band=first) if query else view, *given, query=query)

    with patched(model, rerope.bands(rope_of(model.config), LENGTH)):
        monkeypatch.setattr(BandView, "turned", near)
        found, (agrees,) = texts(model, asked()), written._agreeing[model].values()
        assert not agrees
        monkeypatch.undo()
        alike(found, texts(model, asked()))  # on a CPU


def test_ends_stop_strings_and_penalties_are_those_of_a_text_alone(monkeypatch):
    model = build(tiny("qwen3"))
    free = texts(model, [replace(one, max_new_tokens=12) for one in many()])
    model.generation_config.eos_token_id = [free[0].tokens[5], free[1].tokens[9]]
    model.generation_config.repetition_penalty = 1.3
    stop = decode(free[2].tokens[4:6])
    requests = [
        replace(one, max_new_tokens=12, penalized=n % 2 == 0, stop=(stop,) if n % 3 else ())
        for n, one in enumerate(many())
    ]
    found = texts(model, requests)
    alike(found, [texts(model, [one])[0] for one in requests])
    monkeypatch.undo()
    alike(found, texts(model, requests))  # on a CPU
    assert len({len(one.tokens) for one in found}) > 3


def test_a_model_that_mixes_texts_writes_one_at_a_time():
    """Within the rounding that the check of sharing allows, rows may still change one another."""
    model = build(tiny("llama"))

    def mix(_: Any, __: Any, out: Any) -> Any:
        return out * (1 + 1e-6 * out.mean(1, keepdim=True))

    model.model.layers[0].mlp.register_forward_hook(mix)
    found = texts(model, asked())
    (mode,) = written._known[model].values()
    assert mode == written.Mode(1, 1, PARTS, graph=True)
    assert [list(one.tokens) for one in found] == [generated(model, q.tokens, 6) for q in asked()]


def test_memory_that_is_too_little_for_some_texts_costs_no_other(monkeypatch):
    """What is continued together is lost together, and each of it is computed again alone."""
    model, requests = model_of("llama"), many()
    wanted, own, lost = texts(model, requests), written.Writer._forward, []

    def fail(writer: Any) -> Any:
        if len(writer.live) == 16 and not lost:
            lost.append(writer)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(writer)

    monkeypatch.setattr(written.Writer, "_forward", fail)
    alike(texts(model, requests), wanted)
    assert len(lost) == 1
    begin = written.Generation.of

    def never(model: Any, request: Any, *more: Any) -> Any:
        if request == requests[4]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return begin(model, request, *more)

    monkeypatch.setattr("ropewalk.harness.engine.generation.Generation.of", never)
    found = texts(model, requests)
    assert found.pop(4) == OutOfMemory("the GPU")
    alike(found, wanted[:4] + wanted[5:])


def test_a_gpu_is_asked_every_eighth_token_and_holds_what_is_estimated(monkeypatch):
    shaped = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=4096, eos_token_id=None,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shaped, dtype=torch.bfloat16).eval()
    Operators.installed(monkeypatch, flash=True, dense=False)
    alone = torch.ops.aten._flash_attention_forward

    def flash(query: torch.Tensor, *given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        at_once = "seqused_k" in named
        if not at_once:
            return alone(query, *given, **named)
        return torch.empty_like(query), query.new_empty((query.shape[1], len(query)))

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    forward._known[model] = {"sdpa": True}  # it needs numbers to be verified
    shape = memory.Shape.of(shaped, 2).on(torch.device("cuda"))
    sizes = Sizes(texts=5000 * shape.layers * shape.keys)

    def counted(new: int) -> tuple[Counted, list[Any]]:
        requests = [Generate([*range(n, n + 1500)], new, doc_id="text") for n in range(20)]
        with Counted() as device:
            device.ignore(model)
            list(answers(model, requests, sizes, str))
        return device, requests

    counted(1)  # the proof
    few, many = counted(1), counted(41)
    assert many[0].waits - few[0].waits == 7 * 5  # for seven times three texts
    tree = build_tree([one.tokens for one in many[1]])
    lengths = [(path, 1541) for path in tree.paths]
    estimate = memory.shared(shape, tree, 1, sizes, lengths)
    assert 0.7 * estimate < many[0].peak <= estimate
