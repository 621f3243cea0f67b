"""What is proved of a model before its positions are moved, and what is refused by name."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from harness.engine import answers
from harness.errors import UserError
from harness.methods.resolve import resolve
from harness.models.checkpoint import Checkpoint
from harness.patching.banded_attention import BandedAttention
from harness.patching.config import rope_of
from harness.patching.patch import patched
from harness.plugins import load
from scaling import pi
from scaling.types import Rotation
from tasks.types import Loglikelihood
from tests.banded import bands_of, inside, likelihoods, model_of
from tests.families import EXPERTS, INDEXED, TOKENS, build
from tests.naive import naively
from tests.tiny import SHAPE, WINDOW

SPARSE = {
    "layer_types": ["minimax_m3_sparse", "full_attention"], "index_block_size": 32,
    "index_topk_blocks": 1, "index_local_blocks": 1, "index_n_heads": 2, "index_head_dim": 16,
}  # fmt: skip


def made(family: str, **given: Any) -> Any:
    tokens = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    shape = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16, **EXPERTS, **tokens, **given}
    return build(AutoConfig.for_model(family, **shape))


@pytest.mark.parametrize(
    ("family", "given", "words"),
    [
        ("minimax_m3_vl_text", SPARSE, "masks or biases its scores itself"),
        ("deepseek_v32", INDEXED, "masks or biases its scores itself"),
        ("hy_v4", INDEXED, "masks or biases its scores itself"),
        ("olmoe", {"sliding_window": 48}, "does not pass its windows to attention"),
    ],
)
def test_an_attention_that_chooses_its_keys_is_refused(
    family: str, given: dict[str, Any], words: str
) -> None:
    """Keys by index, or a window unlike its mask: no prompt of 24 tokens would show it."""
    with pytest.raises(UserError, match=words), patched(made(family, **given), bands_of("llama")):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_left_out_is_found_in_any_dtype(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ignored soft-capping of 50 moves one layer little, and is refused in 16 bits too."""
    model, own = deepcopy(model_of("gemma2")).to(dtype), BandedAttention.__call__
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 50.0

    def uncapped(self: Any, *given: Any, **options: Any) -> Any:
        options.pop("softcap", None)
        return own(self, *given, **options)

    inside(model, bands_of("gemma2"))
    monkeypatch.setattr(BandedAttention, "__call__", uncapped)
    with pytest.raises(UserError, match="changes its attention"):
        inside(deepcopy(model), bands_of("gemma2"))  # a copy is not proved yet


def test_a_model_is_proved_once() -> None:
    """Further frequencies and bands cost no forward; a model that is changed is proved again."""
    model, forwards = deepcopy(model_of("llama")), [0]
    model.register_forward_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))
    rope = rope_of(model.config)

    def counted(rotation: Rotation) -> int:
        before = forwards[0]
        with patched(model, rotation):
            return forwards[0] - before

    scales = [pi.frequencies(rope, WINDOW, factor=factor) for factor in (2.0, 4.0)]
    moved = [bands_of("llama", method) for method in ("self_extend", "lm_infinite")]
    assert [counted(one) for one in (*scales, *scales)] == [3, 0, 0, 0]
    assert [counted(one) > 5 for one in (*moved, *moved)] == [True, False, False, False]
    model.to(torch.bfloat16)
    assert counted(scales[0]) == 3
    model.model.rotary_emb = deepcopy(model.model.rotary_emb)
    assert counted(scales[0]) == 3


def test_what_is_refused_is_refused_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a proof that held is kept, and the angles are checked at every use."""
    model = deepcopy(model_of("llama"))
    frequencies = pi.frequencies(rope_of(model.config), WINDOW, factor=2.0)
    with monkeypatch.context() as broken:
        broken.setattr("harness.patching.frequencies.probe", lambda _: torch.full((1,), torch.nan))
        for _ in range(2):
            with pytest.raises(UserError, match="no finite logits"), patched(model, frequencies):
                pass
    with patched(model, frequencies):
        pass
    kind = type(model.model.rotary_emb)
    right = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *given: [2 * x for x in right(*given)])
    with (
        pytest.raises(UserError, match="does not return the given angles"),
        patched(model, frequencies),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe", "olmoe", "gpt_oss", "afmoe"])
def test_sixteen_bits_are_no_reason_to_refuse(family: str) -> None:
    """A model that is exact in float32 is taken in bfloat16, mixtures that change a route too."""
    inside(deepcopy(model_of(family)).to(torch.bfloat16), bands_of(family))


def test_a_model_that_shares_its_config_is_told() -> None:
    """Two models of one config object: the attention of the one serves no other."""
    model = model_of("llama")
    other = deepcopy(model)
    other.config = other.model.config = model.config
    for layer in other.model.layers:
        layer.self_attn.config = model.config
    with patched(model, bands_of("llama")), pytest.raises(UserError, match="config is shared"):
        likelihoods(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("gemma2", "self_extend"),
        *(("llama", name) for name in ("self_extend", "per_query", "lm_infinite", "log_n on yarn")),
    ],
)
def test_the_engine_answers_by_the_matrix_of_positions(family: str, method: str) -> None:
    """Questions that share beginnings, of several lengths: each as the naive attention has it."""
    model, bands, text = model_of(family), bands_of(family, method), TOKENS[0].tolist()
    texts = [text[:128], text[:100], [*text[:70], *text[90:120]]]
    asked = [Loglikelihood(tuple(t), 1, doc_id=str(n)) for n, t in enumerate(texts)]
    with patched(model, bands):
        found = dict(answers(model, asked))
    with naively(model, bands) as wide:
        for index, tokens in enumerate(texts):
            answer = found[index]
            assert answer is not None
            wanted = -likelihoods(wide, torch.tensor([tokens]))
            torch.testing.assert_close(
                torch.tensor(answer.nll, dtype=torch.float64), wanted, rtol=0, atol=2e-4
            )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dual_chunk", "lm_infinite"])
def test_neighbours_change_no_bit_of_moved_positions(
    method: str, reference: tuple[Checkpoint, Any]
) -> None:
    """Moved positions on the reference model: each question alone, or among the others."""
    opened, model = reference
    text = tuple((7919 * i) % opened.config.vocab_size for i in range(512))
    questions = [Loglikelihood(text[:n], n - 20, doc_id="q") for n in (256, 300, 512)]
    rotation = resolve(load("method", method), opened.rope, 512)
    with patched(model, rotation):
        together = dict(answers(model, questions))
        alone = [dict(answers(model, [question]))[0] for question in questions]
    assert [together[index] for index in range(len(questions))] == alone
