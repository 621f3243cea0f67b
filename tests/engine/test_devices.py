"""What the engine does on a GPU, done on a CPU: no blocks, CUDA's operators by their schemas."""

import pytest
import torch

from ropewalk.harness.engine import Sizes, sdpa, trunk
from ropewalk.harness.patching import banded_attention
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.patching.tiles import Merged, Piece, attend
from tests.asking import asked, own_losses, together
from tests.banded import bands_of, likelihoods, model_of
from tests.cuda_operators import Operators
from tests.families import build, tiny


@pytest.fixture(params=["flash", "efficient"])
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Operators:
    """Let every device have CUDA's kernels, with the flash kernel or without it."""
    for module in (banded_attention, sdpa, trunk):
        monkeypatch.setattr(module, "blocked", lambda _: False)
    return Operators.installed(monkeypatch, flash=request.param == "flash")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox", "gemma", "qwen3_moe"])
def test_without_blocks_answers_are_the_same_to_rounding(family, operators):
    """Together in small packs and chunks of any rows, as on a GPU: what the model alone gives."""
    model, questions = build(tiny(family)), asked()
    for sizes in (Sizes(), Sizes(pack=300, chunk=64)):
        operators.calls.clear()
        found = together(model, questions, sizes)
        assert any(call.rows < call.keys for call in operators.calls)  # forks
        for index, question in enumerate(questions):
            wanted = own_losses(model, question.tokens, question.start)
            assert found[index].nll == pytest.approx(wanted.tolist(), abs=2e-5)


@pytest.mark.parametrize("channels", [16, 12])
@pytest.mark.parametrize(("rows", "position"), [(40, 0), (24, 16), (1, 39)])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_gpu_computes_causal_attention_without_a_mask_or_copies_of_keys(
    rows, position, groups, channels, operators
):
    torch.manual_seed(0)
    query = torch.randn(1, 8, rows, channels)
    key, value = (torch.randn(1, groups, 40, channels) for _ in range(2))
    scores = query @ key.repeat_interleave(8 // groups, 1).mT * 0.3
    unseen = torch.ones(rows, 40, dtype=torch.bool).triu(position + 1)
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    wanted = weights @ value.repeat_interleave(8 // groups, 1)
    found = sdpa.causal(query, key, value, position, 0.3, None)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    whole = position == 0 and operators.flash  # left to PyTorch's own choice
    assert len(operators.calls) == (not whole)
    for call in operators.calls:
        assert call.stored == groups * 40 * (16 if channels == 12 else channels)


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("method", ["rerope", "dual_chunk"])
def test_moved_positions_share_without_blocks_to_rounding(method):
    model, questions = model_of("qwen3"), [one for one in asked() if one.length <= 411]
    with patched(model, bands_of("qwen3", method, 411)):
        for index, answer in together(model, questions, Sizes(pack=200, chunk=96)).items():
            tokens, question = torch.tensor([questions[index].tokens]), questions[index]
            wanted = -likelihoods(model, tokens)[question.start - 1 :]
            assert answer.nll == pytest.approx(wanted.tolist(), abs=2e-5)


def test_pieces_are_merged_by_the_kernels_of_a_gpu(operators):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 50, width) for heads, width in ((3, 16), (1, 16), (1, 24)))
    cut = [
        Piece((0, 50), (0, 50), "lower"), Piece((3, 50), (3, 50), "upper"),
        Piece((5, 20), (0, 9), "all"),
    ]  # fmt: skip
    found, wanted = Merged.empty(q, 24), Merged.empty(q, 24)
    attend(found, q, k, v, cut, 0.3, None)
    assert len(operators.calls) == 3
    attend(wanted, q, k, v, cut, 0.3, 1e9)  # a cap so high that it does nothing: without a kernel
    assert len(operators.calls) == 3
    torch.testing.assert_close(found.values, wanted.values, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.lse, wanted.lse, rtol=0, atol=1e-5)
