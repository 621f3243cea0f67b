"""Compiled layers: the losses of the model to rounding, and a record of their own."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from ropewalk.harness.engine import Sizes
from ropewalk.harness.engine.structure import compile_layers
from ropewalk.harness.patching.patch import answering
from ropewalk.harness.runs.compatible import changed_setting
from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.record import describe
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import dual_chunk, yarn
from ropewalk.scaling.types import Rope
from ropewalk.tasks.types import Loglikelihood
from tests.families import build
from tests.tiny import WINDOW, tiny_config


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # PyTorch's own
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_compiled_layers_give_the_losses_of_the_model_to_rounding(family):
    """Under frequencies and under bands, in row chunks of several sizes, with a shared prefix."""
    plain = build(tiny_config(family))
    compiled = deepcopy(plain)
    compile_layers(compiled)
    texts = [
        [(17 * i * i + 3 * i + shift * (i > 60)) % 299 for i in range(128)] for shift in (0, 1)
    ]
    questions = [Loglikelihood(tuple(text), 1, doc_id="q") for text in texts]
    rope = Rope(rotary_dim=16, base=10_000.0, trained_length=WINDOW)
    for rotation in (yarn.frequencies(rope, 128), dual_chunk.bands(rope, 128)):
        for sizes in (Sizes(), Sizes(chunk=32)):
            losses = []
            for model in (plain, compiled):
                with answering(model, rotation, sizes) as answer:
                    losses.append(torch.tensor([one.nll for _, one in sorted(answer(questions))]))
            assert not torch.equal(*losses), "nothing was compiled"
            assert torch.allclose(*losses, atol=1e-4), (losses[0] - losses[1]).abs().max()


def test_samples_have_keys_and_a_folder_of_their_own(reference):
    opened, _ = reference
    spec = Spec(scaling=("none",), task=("passkey:trials=1",), length=("1x",))
    plans = [make_plan(spec, checkpoint=replace(opened, compiled=on)) for on in (False, True)]
    keys = [{cell.key for cell in plan.cells} for plan in plans]
    assert keys[0].isdisjoint(keys[1])
    plain, own = (describe(plan) for plan in plans)
    assert changed_setting(plain, own) == "another model (compiled: False, now True)"
    assert changed_setting(own, own) is changed_setting(plain, plain) is None


@pytest.mark.parametrize(("flags", "words"), [
    (("--compile", "--device", "cpu"), "needs a C++ compiler on a CPU"),
    (("--compile", "--device-map", "auto"), "--compile does not work with --device-map"),
])  # fmt: skip
def test_what_a_machine_cannot_do_is_an_error_before_weights_are_read(
    flags, words, rejected, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert words in rejected("run", *flags, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
