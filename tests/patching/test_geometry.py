"""What is read of a config, and what no geometry can be read of."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, LlamaConfig

from harness.errors import UserError
from harness.patching.config import rope_of


@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_theta", "1e4"), ("rope_theta", None), ("partial_rotary_factor", "half"),
     ("original_max_position_embeddings", [64]), ("rope_theta", float("nan"))],
)  # fmt: skip
def test_a_config_whose_geometry_is_no_number_is_refused(field: str, value: object) -> None:
    """A field that is a text, a list or not finite is named, with what stands there."""
    config = LlamaConfig(hidden_size=32, num_attention_heads=2)
    config.rope_parameters = {**config.rope_parameters, field: value}
    with pytest.raises(UserError, match="must be a number, the config gives"):
        rope_of(config)


@pytest.mark.parametrize("kind", ["gemma4_text", "blt"])
def test_layers_without_a_common_head_are_refused(kind: str) -> None:
    """A config of layers that are not alike, or of no heads, is one sentence with its type."""
    with pytest.raises(UserError, match=f"^{kind}: the config gives no head_dim of all layers"):
        rope_of(AutoConfig.for_model(kind))
