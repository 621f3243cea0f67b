"""What the engine does on a GPU, done on a CPU: no blocks, CUDA's operators by their schemas."""

from copy import deepcopy

import pytest
import torch
from transformers import DynamicCache

from ropewalk.harness.engine import Sizes, sdpa, shareable
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.patching.tiles import pieces
from ropewalk.tasks.types import Loglikelihood
from tests.asking import asked, own_losses, together
from tests.banded import LENGTH, METHODS, TOKEN, bands_of, likelihoods, model_of
from tests.cuda_operators import Operators
from tests.families import build, tiny
from tests.naive import naively


@pytest.fixture(params=["flash", "efficient"])
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Operators:
    """Let every device have CUDA's kernels, with the flash kernel or without it."""
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
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


FORK = 50  # tokens of a text after which another one goes on


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("qwen3", "dpe top"),
        ("gemma3_text", "self_extend"),  # layers with sliding windows
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *(("qwen3", name) for name in METHODS if name != "dpe top"),
                *((family, "lampe") for family in ("cohere", "glm", "gpt_neox", "smollm3")),
            ]
        ),
    ],
)
@torch.inference_mode()
def test_windows_of_the_flash_operator_are_the_matrix_of_positions(family, method, monkeypatch):
    """To 1e-5 of the naive float64 attention: whole, from a cache, in chunks and forked.

    Every layer calls the operator once for each run of a band's rows.
    """
    monkeypatch.setattr(sdpa, "blocked", lambda _: False)
    operators = Operators.installed(monkeypatch, flash=True)
    bands, model = bands_of(family, method), model_of(family)
    with naively(model, bands) as wide:
        wanted = likelihoods(wide)
        logits = wide(input_ids=TOKEN, use_cache=False).logits
    wide = deepcopy(model).double()
    with patched(wide, bands):
        operators.calls.clear()
        torch.testing.assert_close(likelihoods(wide), wanted, rtol=0, atol=1e-5)
        runs = sum(len(pieces(band.first, band.end, windows=True)) for band in bands.bands)
        if family == "qwen3":
            assert len(operators.calls) == runs * wide.config.num_hidden_layers
        kept = {"past_key_values": DynamicCache(), "use_cache": True}
        chunks = TOKEN.split([50, 40, 1, LENGTH - 91], 1)
        found = torch.cat([wide(input_ids=chunk, **kept).logits for chunk in chunks], 1)
        torch.testing.assert_close(found.double(), logits, rtol=0, atol=1e-4)
        if not shareable(wide):
            return
        tokens = tuple(TOKEN[0].tolist())
        fork = Loglikelihood((*tokens[:FORK], *tokens[:20]), FORK + 1, doc_id="fork")
        alone = together(wide, [fork], Sizes())[0].nll
        asked = [Loglikelihood(tokens, 1, doc_id="text"), fork]
        for sizes in (Sizes(), Sizes(pack=128, chunk=32)):
            both = together(wide, asked, sizes)
            assert both[0].nll == pytest.approx((-wanted).tolist(), abs=2e-5)
            assert both[1].nll == pytest.approx(list(alone), abs=2e-5)
