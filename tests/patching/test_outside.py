"""What checkpoints scale outside their rotary embedding: as shipped, without it, and put back."""

import math
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import check_rope
from ropewalk.harness.patching.config import geometry_of, rescaled, rope_of
from ropewalk.scaling import (
    lm_infinite,
    log_n,
    logit_scale,
    native,
    none,
    pi,
    self_extend,
    temperature,
    yarn,
)
from ropewalk.scaling.types import Frequencies
from tests.families import LENGTH, build, each, inside, logits, tiny
from tests.tiny import WINDOW, YARN

LATENT = {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}
QUERY = {**YARN, "llama_4_scaling_beta": 0.3}
MU = 0.1 * 1.3 * math.log(4.0) + 1
SHIPPING = {
    "deepseek_v3": LATENT, "kimi_k25": LATENT, "ministral3": QUERY, "minicpm3": LATENT,
    "mistral4": {**LATENT, **QUERY}, "youtu": LATENT, "glm4_moe_lite": LATENT,
}  # fmt: skip


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted, atol=2e-4 * float(wanted.std()), rtol=0)


def shipping(family: str) -> tuple[Any, Any]:
    """Return a model as shipped, and the one of the same weights without any scaling."""
    config = rescaled(tiny(family), SHIPPING[family])
    model, plain = build(config), build(tiny(family))
    plain.load_state_dict(model.state_dict())
    check_rope(config, rope_of(config))
    return model, plain


@pytest.mark.parametrize("family", each(SHIPPING, "deepseek_v3", "ministral3", "mistral4"))
def test_native_is_the_model_as_shipped_and_other_methods_start_without(family):
    """Transformers' own logits, bit for bit: with the shipped scaling, and with none, PI, YaRN."""
    model, plain = shipping(family)
    rope, before = rope_of(model.config), logits(model)
    assert torch.equal(inside(model, native.frequencies(rope, LENGTH)), before)
    assert not torch.equal(logits(plain), before)
    for rotation in (
        none.frequencies(rope, LENGTH),
        pi.frequencies(rope, LENGTH, factor=3.0),
        yarn.frequencies(rope, LENGTH, factor=3.0),
    ):
        assert torch.equal(inside(model, rotation), inside(plain, rotation))
    moved = self_extend.bands(rope, LENGTH)
    close(inside(model, moved), inside(plain, moved))
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("family", each(SHIPPING, "ministral3", "mistral4"))
def test_what_was_shipped_is_put_back_by_position(family):
    """In bands the scale of every query is that of the formulas, worked by hand."""
    model, _ = shipping(family)
    rope, before = rope_of(model.config), logits(model)
    own = native.frequencies(rope, LENGTH)
    far = lm_infinite.bands(rope, LENGTH, window=LENGTH, on=lambda *_: own)
    bands = own.as_bands(LENGTH)
    beta = SHIPPING[family].get("llama_4_scaling_beta", 0.0)
    mu = MU if "mscale" in SHIPPING[family] else 1.0
    wanted = [mu**2 * (1 + beta * math.log(1 + m // WINDOW)) for m in range(LENGTH)]
    assert bands.query_scale.tolist() == pytest.approx(wanted, rel=1e-12)
    close(inside(model, bands), before)
    close(inside(model, far), before)


def test_the_temperature_of_ministral_is_an_option():
    model, _ = shipping("ministral3")
    rope = rope_of(model.config)
    shipped = yarn.frequencies(rope, LENGTH, factor=4.0)
    other = temperature.bands(
        rope, LENGTH, scale=0.3, floor=WINDOW, offset=0, on=lambda *_: shipped
    )
    close(inside(model, other), logits(model))


def test_the_temperature_of_llama_4_is_shipped_and_other_methods_start_without(tmp_path):
    """In the layer without rotary: transformers' own logits with its switch on, and off.

    Its attention cannot be moved, so the option cannot put it back; native has it.
    """
    config = tiny("llama4_text")
    config.attn_temperature_tuning = True
    model = build(config)
    rope, before = rope_of(model.config), logits(model)
    without = build(rescaled(model.config, {"rope_type": "default"}))
    without.load_state_dict(model.state_dict())
    assert not without.config.attn_temperature_tuning
    plain, shipped = none.frequencies(rope, LENGTH), native.frequencies(rope, LENGTH)
    assert torch.equal(inside(model, shipped), before)
    assert torch.equal(inside(model, plain), logits(without))
    assert not torch.equal(logits(without), before)
    assert torch.equal(logits(model), before)
    settings = {"scale": model.config.attn_scale, "floor": int(model.config.floor_scale)}
    option = temperature.bands(rope, LENGTH, layers="unrotated", **settings)
    assert shipped.as_bands(LENGTH).fingerprint == option.fingerprint
    changes = {"scaling": "none", "length": str(LENGTH), "to": "vllm"}
    model.config.save_pretrained(tmp_path)
    assert rw.export(tmp_path, **changes).changed["attn_temperature_tuning"] is False


def test_logits_that_a_model_does_not_scale_by_a_number_are_refused():
    rotation = Frequencies(rope_of(tiny("falcon")).inv_freq(), logit_scale=2.0)
    with pytest.raises(UserError, match="does not let its logits be scaled"):
        inside(build(tiny("falcon")), rotation)


@pytest.mark.parametrize(
    ("family", "layers", "scaled"),
    [
        ("jamba", "all", {1}),
        ("nemotron_h", "all", {1}),
        ("llama", "all", {0, 1}),
        ("llama", "1", {1}),
        ("smollm3", "unrotated", {1}),
        ("smollm3", "all", {0, 1}),
    ],
)
def test_queries_are_scaled_in_the_layers_that_are_named(family, layers, scaled):
    """The same logits as with the outputs of these layers' query projections scaled by hand."""
    model = build(tiny(family))
    rope = geometry_of(model.config)
    bands = log_n.bands(rope, LENGTH, layers=layers)
    scale = [max(1.0, math.log(m + 1) / math.log(WINDOW)) for m in range(LENGTH)]
    found = inside(model, bands)
    before = logits(model)
    projections = {
        module.layer_idx: module.q_proj for module in model.modules() if hasattr(module, "q_proj")
    }
    for layer in scaled:
        projections[layer].register_forward_hook(
            lambda _, __, out: out * torch.tensor(scale)[:, None]
        )
    wanted = logits(model)
    assert not torch.equal(wanted, before)
    close(found, wanted)


def test_a_constant_scale_is_the_softmax_scale_of_the_layers():
    """In every module's own scale, bit for bit; in bands for some layers, to rounding."""
    model = build(tiny("llama"))
    rope = rope_of(model.config)
    both = [logit_scale.bands(rope, LENGTH, scale=1.5, layers=layers) for layers in ("all", "0")]
    found = [inside(model, rotation) for rotation in both]
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.5
    assert torch.equal(found[0], logits(model))
    close(found[1], logits(model))
