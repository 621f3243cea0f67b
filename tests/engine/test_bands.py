"""Moved positions in the engine: shared, in chunks and continued, it has the bits of each alone."""

from random import Random
from typing import Any

import pytest

from ropewalk.harness.engine import Sizes, answers, shareable
from ropewalk.harness.patching.patch import patched
from ropewalk.tasks.types import Generate, Loglikelihood, Request
from tests.banded import METHODS, TOKEN, bands_of, likelihoods, model_of
from tests.naive import naively

LENGTH = 300
SMALL = Sizes(pack=128, chunk=32, logits=1)
ELSEWHERE = ("rerope", "dual_chunk", "self_extend", "per_query exact")  # of another family


def asked(new: int = 0) -> list[Request]:
    """Return lengths of one text, forks at odd places, another beginning; or texts after them."""
    draw = Random("bands")
    text, other = (draw.choices(range(1, 257), k=LENGTH - new) for _ in range(2))
    given = [text, text[:257], text[:150] + other[150:240], text[:150] + other[30:75], other[:61]]
    if new:
        return [Generate(tuple(t), new, doc_id="q") for t in given]
    return [Loglikelihood(tuple(t), max(1, len(t) - 40), doc_id="q") for t in given]


def answered(model: Any, questions: list[Request], sizes: Sizes) -> dict[int, Any]:
    return dict(answers(model, questions, sizes, str))


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("llama", "rerope"),
        ("gpt_neox", "dual_chunk"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *(("qwen3", method) for method in METHODS if method not in ELSEWHERE),
                *((family, "self_extend") for family in ("cohere", "glm")),
            ]
        ),
    ],
)
def test_sharing_chunks_and_order_change_no_bit(family, method):
    model = model_of(family)
    with patched(model, bands_of(family, method, LENGTH)):
        assert shareable(model)
        for questions in (asked(), asked(new=2)[::2]):
            wanted = {i: answered(model, [one], Sizes())[0] for i, one in enumerate(questions)}
            assert answered(model, questions, Sizes()) == wanted
            back = answered(model, questions[::-1], SMALL)
            assert {len(questions) - 1 - i: answer for i, answer in back.items()} == wanted
    assert shareable(model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("qwen3", "dual_chunk"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("gpt_neox", "rerope"), ("llama", "lm_infinite"), ("cohere", "per_query")]
        ),
    ],
)
def test_losses_are_those_of_the_matrix_of_positions(family, method, monkeypatch):
    """Of a text in chunks, with forks, in small tiles: the naive float64 attention's to 1e-5."""
    monkeypatch.setattr("ropewalk.harness.patching.tiles.TILE", 32)
    model, bands = model_of(family), bands_of(family, method)
    tokens = tuple(TOKEN[0].tolist())
    with naively(model, bands) as wide:
        wanted = (-likelihoods(wide)).tolist()
    fork = Loglikelihood((*tokens[:50], *tokens[:20]), 60, doc_id="q")
    with patched(model, bands):
        whole = answered(model, [Loglikelihood(tokens, 1, doc_id="q"), fork], SMALL)[0]
        plain = (-likelihoods(model)).tolist()
    usual = max(abs(one - other) for one, other in zip(plain, wanted, strict=True))
    assert whole.nll == pytest.approx(wanted, abs=5 * usual + 1e-5)
    assert usual < 1e-4
