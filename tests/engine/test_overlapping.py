"""GPUs that share a model compute chunks that overlap, and no bit is another."""

from contextlib import ExitStack
from typing import Any

import pytest

from ropewalk.harness.engine import Sizes, answers, trunk
from ropewalk.harness.patching.patch import patched
from ropewalk.tasks.types import Loglikelihood
from tests.asking import asked, together
from tests.banded import bands_of, model_of
from tests.families import build, tiny


def test_gpus_that_share_a_model_get_the_next_chunk_before_the_others_are_done(monkeypatch):
    """A GPU computes a chunk while the one after it computes the chunk before."""
    monkeypatch.setattr(trunk, "over_gpus", lambda _: True)
    model, question = build(tiny("llama")), Loglikelihood(tuple(range(256)), 1, doc_id="q")
    list(answers(model, [question]))  # the check of the model
    calls, rows = list[tuple[int, int]](), [0, 0]
    with ExitStack() as stack:
        for at, layer in enumerate(model.model.layers):

            def begins(_: Any, given: Any, at: int = at) -> None:
                calls.append((rows[at] // 64, at))
                rows[at] += given[0].shape[1]

            stack.callback(layer.register_forward_pre_hook(begins).remove)
        list(answers(model, [question], Sizes(chunk=64)))
    assert calls == [(chunk, layer) for chunk in range(4) for layer in range(2)]


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
