"""What the engine does on a GPU, done on a CPU: no blocks, CUDA's operators by their schemas."""

import pytest
import torch

from ropewalk.harness.engine import Sizes, sdpa, trunk
from ropewalk.harness.patching import banded_attention
from ropewalk.harness.patching.patch import patched
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


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("method", ["rerope", "dual_chunk"])
def test_moved_positions_share_without_blocks_to_rounding(method):
    model, questions = model_of("qwen3"), [one for one in asked() if one.length <= 411]
    with patched(model, bands_of("qwen3", method, 411)):
        for index, answer in together(model, questions, Sizes(pack=200, chunk=96)).items():
            tokens, question = torch.tensor([questions[index].tokens]), questions[index]
            wanted = -likelihoods(model, tokens)[question.start - 1 :]
            assert answer.nll == pytest.approx(wanted.tolist(), abs=2e-5)
