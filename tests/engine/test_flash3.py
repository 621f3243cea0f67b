"""FlashAttention-3 on request: where it is active, what it needs, and what the records say."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from torch.nn.attention import _registry, current_flash_attention_impl

from ropewalk.harness.engine import DEFAULT
from ropewalk.harness.engine.accelerated import NAME
from ropewalk.harness.runs.compatible import changed_setting
from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.record import describe
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.sweep.this_process import replies
from ropewalk.scaling import native
from ropewalk.tasks.types import Loglikelihood


@dataclass
class Handle:
    """Stands for the kernels that PyTorch registers, which need a GPU."""

    removed: bool = False

    def remove(self) -> None:
        self.removed = True


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """Let PyTorch's registry have a FlashAttention-3 that registers nothing."""
    one = Handle()
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, NAME, lambda: one)
    yield one
    assert current_flash_attention_impl() is None


@pytest.mark.parametrize("kind", ["auto", "flash3"])
def test_it_is_active_while_requests_are_answered_and_no_longer(kind, handle, reference):
    """Another sweep of the same process has PyTorch's own kernels again."""
    opened, model = reference
    opened = replace(opened, attention=kind)
    rotation = native.frequencies(opened.rope, 64)
    questions = {("cell", "q"): Loglikelihood(tuple(range(64)), 1, doc_id="q")}
    active = [
        current_flash_attention_impl() for _ in replies(model, opened, rotation, questions, DEFAULT)
    ]
    assert active == [NAME if kind == "flash3" else None]
    assert handle.removed == (kind == "flash3")


def test_its_samples_have_keys_and_a_folder_of_their_own(reference):
    opened, _ = reference
    spec = Spec(scaling=("none",), task=("passkey:trials=1",), length=("1x",))
    plans = [
        make_plan(spec, checkpoint=replace(opened, attention=kind)) for kind in ("auto", "flash3")
    ]
    keys = [{cell.key for cell in plan.cells} for plan in plans]
    assert keys[0].isdisjoint(keys[1])
    plain, own = (describe(plan) for plan in plans)
    assert changed_setting(plain, own) == "another model (attention: None, now flash3)"
    assert changed_setting(own, own) is changed_setting(plain, plain) is None


def test_without_such_a_gpu_it_is_an_error_before_weights_are_read(rejected, tmp_path):
    folder = tmp_path / "run"
    assert "needs an H100 or H200, and the device is cpu; leave --attention out" in rejected(
        "run", "--attention", "flash3", "--device", "cpu", "--out", str(folder)
    )
    assert not folder.exists()
