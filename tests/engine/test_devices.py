"""What the engine does on a GPU, done on a CPU: no blocks, keys repeated, forks lower-right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.bias import CausalBias

from harness.engine import Sizes, generation, packed_attention, sdpa, trunk
from harness.engine.packed_attention import Run
from harness.engine.prefix_tree import Node
from harness.patching import banded_attention, tiles
from harness.patching.patch import patched
from harness.patching.tiles import Merged, Piece, attend
from tasks._tokens import kept
from tasks.types import Generate
from tests.asking import asked, together
from tests.banded import bands_of, likelihoods, model_of
from tests.families import build, tiny


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let no device be one of blocks, and note the masks that forks ask for."""
    asked_for: list[Any] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def noted(*given: Any, **named: Any) -> torch.Tensor:
        asked_for.append(named.get("attn_mask"))
        return fused(*given, **named)

    for module in (banded_attention, sdpa, trunk):
        monkeypatch.setattr(module, "blocked", lambda _: False)
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", noted)
    return asked_for


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox", "gemma", "qwen3_moe"])
def test_without_blocks_answers_are_the_same_to_rounding(family: str, elsewhere: list[Any]) -> None:
    """Together in small packs and chunks of any rows, as on a GPU: what the model alone gives."""
    model, questions = build(tiny(family)), asked()
    for sizes in (Sizes(), Sizes(pack=300, chunk=64)):
        elsewhere.clear()
        found = together(model, questions, sizes)
        assert any(isinstance(mask, CausalBias) for mask in elsewhere)  # never a tensor
        assert all(mask is None or isinstance(mask, CausalBias) for mask in elsewhere)
        for index, question in enumerate(questions):
            tokens, answer = torch.tensor([question.tokens]), found[index]
            with torch.inference_mode():
                logits = model(input_ids=tokens).logits[0, question.start - 1 : -1].double()
            wanted = torch.nn.functional.cross_entropy(
                logits, tokens[0, question.start :], reduction="none"
            )
            assert answer.nll == pytest.approx(wanted.tolist(), abs=2e-5)


@pytest.mark.parametrize(("rows", "position"), [(40, 0), (24, 16), (1, 39)])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_keys_that_heads_share_are_copied_or_not_to_the_same_values(
    rows: int, position: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the flash kernel the shared keys go to it as they are; without, a copy for each head."""
    torch.manual_seed(0)
    query = torch.randn(1, 8, rows, 16)
    key, value = (torch.randn(1, groups, 40, 16) for _ in range(2))
    scores = query @ key.repeat_interleave(8 // groups, 1).mT * 0.3
    unseen = torch.ones(rows, 40, dtype=torch.bool).triu(position + 1)
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    wanted = weights @ value.repeat_interleave(8 // groups, 1)
    given: list[int] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def noted(*parts: torch.Tensor, **named: Any) -> torch.Tensor:
        given.append(parts[1].shape[1])
        assert named.get("enable_gqa", False) or parts[1].shape[1] == 8
        return fused(*parts, **named)

    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", noted)
    for copied in (True, False):
        monkeypatch.setattr(sdpa, "copied", lambda *_, copied=copied: copied)
        found = sdpa.causal(query, key, value, position, 0.3, None)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert given == [groups if rows == 1 else 8, groups]


def test_the_flash_kernel_is_asked_whether_it_takes_shared_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU copies what its flash kernel refuses; nothing is asked where no head shares keys."""
    asked_for: list[tuple[int, ...]] = []

    def refuses(params: Any) -> bool:
        asked_for.append((params.query.shape[1], params.key.shape[1], params.enable_gqa))
        return bool(params.query.dtype == torch.bfloat16)

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda")

    def on_gpu(heads: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(1, heads, 2, 8, dtype=dtype).as_subclass(Elsewhere)

    monkeypatch.setattr(sdpa, "can_use_flash_attention", refuses)
    for dtype, wanted in ((torch.bfloat16, False), (torch.float32, True)):
        query, key, own = (on_gpu(heads, dtype) for heads in (8, 2, 8))
        assert sdpa.copied(query, key, key) is wanted
        assert not sdpa.copied(query, own, own)
    assert asked_for == [(8, 2, True)] * 2
    one, other = torch.zeros(1, 8, 2, 8), torch.zeros(1, 2, 2, 8)
    assert not sdpa.copied(one, other, other)  # on a CPU


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("method", ["rerope", "dual_chunk"])
def test_moved_positions_share_without_blocks_to_rounding(method: str) -> None:
    """In pieces instead of tiles, together in small packs and chunks of any rows: each alone."""
    model, questions = model_of("qwen3"), [one for one in asked() if one.length <= 411]
    with patched(model, bands_of("qwen3", method, 411)):
        for index, answer in together(model, questions, Sizes(pack=200, chunk=96)).items():
            tokens, question = torch.tensor([questions[index].tokens]), questions[index]
            wanted = -likelihoods(model, tokens)[question.start - 1 :]
            assert answer.nll == pytest.approx(wanted.tolist(), abs=2e-5)


@pytest.mark.usefixtures("elsewhere")
def test_keys_of_a_path_are_joined_on_the_device_of_their_layer() -> None:
    """A model over several GPUs has layers of one shape on each."""
    text = range(96)
    nodes = (
        Node(0, kept(text[:32]), ()),
        *(Node(32, kept(text[a : a + 32]), (0,)) for a in (32, 64)),
    )
    spans = {0: (0, 32), 1: (32, 64), 2: (64, 96)}
    run = Run(nodes, spans, 96, sdpa.Causal(64))
    for layer, device in enumerate(("cpu", "meta", "cpu")):
        run.layer = [torch.ones(1, 2, 96, 4, device=device)] * 2
        for found in packed_attention._path(run, 2, 96, layer):
            assert (found.device.type, found.shape[2]) == (device, 64)
    assert bool((found == 1).all())


@torch.inference_mode()
def test_texts_are_written_one_by_one_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows may have the bits of one there, and more other bits: no check of few decides."""
    model, text = (
        build(tiny("llama")),
        generation.Generation(Generate((1,), 4, doc_id="q"), lambda _: "", frozenset()),
    )
    assert list(generation.together(model, {0: text, 1: text}, 100)) == [[0, 1]]
    monkeypatch.setattr(generation, "blocked", lambda _: False)
    assert list(generation.together(model, {0: text, 1: text}, 100)) == [[0], [1]]


def test_pieces_go_to_a_gpu_by_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator takes what it is called with, and its padded log-sum-exp is cut to the rows."""
    schema = torch.ops.aten._scaled_dot_product_efficient_attention.default._schema
    names = [argument.name for argument in schema.arguments]
    calls: list[dict[str, Any]] = []

    def operator(*given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        told = dict(zip(names, given, strict=False)) | named
        calls.append(told)
        q, k, v = told["query"], told["key"], told["value"]
        scores = q @ k.mT * told["scale"]
        if told["is_causal"]:
            unseen = ~torch.ones_like(scores, dtype=torch.bool).tril()
            scores = scores.masked_fill(unseen, -torch.inf)
        lse = torch.nn.functional.pad(scores.logsumexp(-1), (0, -q.shape[2] % 32))
        return scores.softmax(-1) @ v, lse, torch.empty(0), torch.empty(0)

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, width) for width in (16, 16, 24))
    cut = [
        Piece((0, 50), (0, 50), "lower"), Piece((3, 50), (3, 50), "upper"),
        Piece((5, 20), (0, 9), "all"),
    ]  # fmt: skip
    found = []
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", operator)

    def fused(parts: list[torch.Tensor], causal: bool, scale: float, _: None) -> Any:
        query, key, value = (tiles.widened(part, 24) for part in parts)
        return tiles._on_cuda(query, key, value, causal, scale)

    for by in (tiles._piece, fused):
        with monkeypatch.context() as patched:
            patched.setattr(tiles, "_piece", by)
            merged = Merged.empty(q, 24)
            attend(merged, q, k, v, cut, 0.3, None)
        found.append(merged)
    torch.testing.assert_close(found[1].values, found[0].values, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1].lse, found[0].lse, rtol=0, atol=1e-5)
    assert len(calls) == 3
    assert all(call["compute_log_sumexp"] and call["attn_bias"] is None for call in calls)
