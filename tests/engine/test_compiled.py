"""Compiled layers: the same losses to rounding, and one compiled function for layers of a class."""

from copy import deepcopy

import pytest
import torch

from ropewalk.harness.engine import Sizes
from ropewalk.harness.engine.accelerated import check_compiler, compile_layers
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.patch import answering
from ropewalk.scaling import dual_chunk, yarn
from ropewalk.scaling.types import Rope
from ropewalk.tasks.types import Loglikelihood, LoglikelihoodResponse
from tests.families import build
from tests.tiny import WINDOW, tiny_config

# PyTorch's compiler imports parts of PyTorch that warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ROPE = Rope(rotary_dim=16, base=10_000.0, trained_length=WINDOW)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_compiled_layers_give_the_losses_of_the_model_to_rounding(family):
    """Under frequencies and under bands, in row chunks of several sizes, with a shared prefix."""
    plain = build(tiny_config(family))
    compiled = deepcopy(plain)
    compile_layers(compiled)
    texts = [
        [(17 * i * i + 3 * i + shift * (i > 60)) % 299 for i in range(128)] for shift in (0, 1)
    ]
    questions = [
        Loglikelihood(tuple(text), 1, doc_id=str(shift)) for shift, text in enumerate(texts)
    ]
    for rotation in (yarn.frequencies(ROPE, 128), dual_chunk.bands(ROPE, 128)):
        for sizes in (Sizes(), Sizes(chunk=32)):
            losses = []
            for model in (plain, compiled):
                with answering(model, rotation, sizes) as answer:
                    responses = [response for _, response in sorted(answer(questions))]
                    assert all(isinstance(one, LoglikelihoodResponse) for one in responses)
                    losses.append(torch.tensor([one.nll for one in responses]))
            assert not torch.equal(*losses), "nothing was compiled"
            assert torch.allclose(*losses, atol=1e-4), (losses[0] - losses[1]).abs().max()


def test_a_machine_without_a_compiler_is_an_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler.*leave --compile out"):
        check_compiler("cpu")


@pytest.mark.slow
def test_a_compiled_run_has_a_folder_of_its_own(ropewalk, tmp_path):
    command = ("run", "--scaling", "none", "--task", "passkey:depths=1,trials=1", "--length", "1x")
    assert ropewalk(*command, "--out", str(tmp_path / "plain")).status == 0
    refused = ropewalk(*command, "--compile", "--out", str(tmp_path / "plain"))
    assert refused.status == 2
    assert "compiled: False, now True" in refused.err
    both = ropewalk(*command, "--compile", "--device-map", "auto", "--out", str(tmp_path / "new"))
    assert both.status == 2
    assert "--compile does not work with --device-map" in both.err
