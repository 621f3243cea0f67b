"""What is read of a config, and what no geometry can be read of."""

import pytest
from transformers import AutoConfig, LlamaConfig, Qwen2Config

from harness.errors import UserError
from harness.patching.config import rope_of
from scaling import native


@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_theta", "1e4"), ("rope_theta", None), ("partial_rotary_factor", "half"),
     ("original_max_position_embeddings", [64]), ("rope_theta", float("nan"))],
)  # fmt: skip
def test_a_config_whose_geometry_is_no_number_is_refused(field, value):
    config = LlamaConfig(hidden_size=32, num_attention_heads=2)
    config.rope_parameters = {**config.rope_parameters, field: value}
    with pytest.raises(UserError, match="must be a number, the config gives"):
        rope_of(config)


@pytest.mark.parametrize("kind", ["gemma4_text", "blt"])
def test_layers_without_a_common_head_are_refused(kind):
    with pytest.raises(UserError, match=f"^{kind}: the config gives no head_dim of all layers"):
        rope_of(AutoConfig.for_model(kind))


def test_a_checkpoint_for_dual_chunk_attention_was_trained_at_its_original_length():
    """Qwen2.5-1M: 262,144 tokens; its maximum is the length at which it is served."""
    table = {
        "chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144,
    }  # fmt: skip
    config = Qwen2Config(max_position_embeddings=1_010_000, dual_chunk_attention_config=table)
    rope = rope_of(config)
    assert rope.trained_length == 262_144
    assert rope.stretch(1_010_000) == 1_010_000 / 262_144
    assert native.dual_chunk_options(rope) == {"chunk": 253_952, "largest": 262_144}
    assert native.ships(rope)
