"""What a user exchanges for speed: compiled layers and FlashAttention-4, and what they need."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention import _registry, current_flash_attention_impl

from ropewalk.harness.engine import DEFAULT, Sizes
from ropewalk.harness.engine.accelerated import NAME, compile_layers, flash2, flash4
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.patch import answering
from ropewalk.harness.runs.compatible import changed_setting
from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.record import describe
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.sweep.this_process import replies
from ropewalk.scaling import dual_chunk, native, yarn
from ropewalk.scaling.types import Rope
from ropewalk.tasks.types import Loglikelihood
from tests.cuda_operators import FLASH, Operators
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


@dataclass
class Handle:
    """Stands for the kernels that PyTorch registers, which need a GPU."""

    removed: bool = False

    def remove(self) -> None:
        self.removed = True


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """Let PyTorch's registry have a FlashAttention-4 that registers nothing."""
    one = Handle()
    operator = partial(Operators(flash=True).call, FLASH)
    monkeypatch.setattr(torch.ops.aten, FLASH, operator)
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, NAME, lambda: one)
    yield one
    assert current_flash_attention_impl() is None


@pytest.mark.parametrize("kind", ["auto", "flash4"])
def test_flash4_is_active_while_requests_are_answered_and_no_longer(kind, handle, reference):
    opened, model = reference
    opened = replace(opened, attention=kind)
    rotation = native.frequencies(opened.rope, 64)
    questions = {("cell", "q"): Loglikelihood(tuple(range(64)), 1, doc_id="q")}
    active = [
        current_flash_attention_impl() for _ in replies(model, opened, rotation, questions, DEFAULT)
    ]
    assert active == [NAME if kind == "flash4" else None]
    assert handle.removed == (kind == "flash4")


def test_flash4_is_rejected_where_it_sees_other_keys(handle, monkeypatch):
    """As one whose causality counts from the first row and key on."""

    def upper_left(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any,
                   **named: Any) -> Any:  # fmt: skip
        rows = query.shape[1]
        return Operators(flash=True).call(
            FLASH, query, key[:, :rows], value[:, :rows], *more[:3], rows, *more[4:], **named
        )

    monkeypatch.setattr(torch.ops.aten, FLASH, upper_left)
    with pytest.raises(UserError, match="other keys"), flash4(torch.device("cpu"), torch.float32):
        pass
    assert handle.removed


@pytest.mark.usefixtures("handle")
def test_texts_are_continued_by_flash_2():
    with flash4(torch.device("cpu"), torch.float32):
        with flash2():
            assert current_flash_attention_impl() is None
        assert current_flash_attention_impl() == NAME


@pytest.mark.parametrize(("change", "told"), [
    ({"attention": "flash4"}, "another model (attention: None, now flash4)"),
    ({"compiled": True}, "another model (compiled: False, now True)"),
])  # fmt: skip
def test_samples_have_keys_and_a_folder_of_their_own(change, told, reference):
    opened, _ = reference
    spec = Spec(scaling=("none",), task=("passkey:trials=1",), length=("1x",))
    plans = [make_plan(spec, checkpoint=replace(opened, **more)) for more in ({}, change)]
    keys = [{cell.key for cell in plan.cells} for plan in plans]
    assert keys[0].isdisjoint(keys[1])
    plain, own = (describe(plan) for plan in plans)
    assert changed_setting(plain, own) == told
    assert changed_setting(own, own) is changed_setting(plain, plain) is None


@pytest.mark.parametrize(("flags", "words"), [
    (("--attention", "flash4", "--device", "cpu"), "needs an H100, H200 or B200"),
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
