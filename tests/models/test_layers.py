"""Which layers rotate and see far, found without weights, against what models with weights do."""

from collections import Counter
from typing import Any

import pytest
import torch

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.structure import Layers, layers_of
from tests.families import INDEXING, SUPPORTED, TOKENS, build, each, tiny


def moved_by_angles(model: Any) -> set[int]:
    """Return the layers whose attention gives other numbers when its own cos and sin are others."""
    seen: dict[int, tuple[Any, Any]] = {}
    inputs: dict[Any, tuple[Any, Any]] = {}

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        if "position_embeddings" in kwargs:
            inputs[module] = (args, kwargs)

    handles = [
        module.register_forward_pre_hook(keep, with_kwargs=True)
        for module in model.modules()
        if getattr(module, "layer_idx", None) is not None
    ]
    with torch.inference_mode():
        model(input_ids=TOKENS[:, :8], use_cache=False)
        for handle in handles:
            handle.remove()
        for module, (args, kwargs) in inputs.items():
            table = kwargs["position_embeddings"]  # cos and sin, or complex numbers
            turned = table.conj() if isinstance(table, torch.Tensor) else table[::-1]
            other = {**kwargs, "position_embeddings": turned}
            one, two = (module(*args, **given) for given in (kwargs, other))
            one, two = (x[0] if isinstance(x, tuple) else x for x in (one, two))
            seen[module.layer_idx] = (one, two)
    return {index for index, (one, two) in seen.items() if not torch.equal(one, two)}


@pytest.mark.parametrize("family", each((*SUPPORTED, "ministral3", "mistral4")))
def test_the_layers_that_rotate_are_those_whose_numbers_depend_on_the_angles(family):
    """Asked without weights, as many layers rotate as give other numbers for other angles."""
    config = tiny(family)
    rotating = 0 if family in INDEXING else len(moved_by_angles(build(config)))
    assert layers_of(config).rotated.total() == rotating


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("llama", Layers(Counter(full=2), Counter(), None, own_sliding=False)),
        ("gemma2", Layers(Counter(sliding=1, full=1), Counter(), 32, own_sliding=False)),
        ("gemma3_text", Layers(Counter(sliding=1, full=1), Counter(), 32, own_sliding=True)),
        ("cohere2", Layers(Counter(sliding=1), Counter(full=1), 32, own_sliding=False)),
        ("mistral", Layers(Counter(sliding=2), Counter(), 32, own_sliding=False)),
        ("smollm3", Layers(Counter(full=1), Counter(full=1), None, own_sliding=False)),
        ("minimax", Layers(Counter(full=1), Counter(), None, own_sliding=False)),
    ],
)
def test_layers_of_known_models(family, wanted):
    """Sliding, full, without a rotary embedding, of another kind: each is counted as that."""
    assert layers_of(tiny(family)) == wanted


def test_layers_that_need_values_are_one_sentence():
    """JetMoE's experts read numbers of the hidden states; a sweep leaves out its note on layers."""
    with pytest.raises(UserError, match="the layers of this jetmoe cannot be told apart"):
        layers_of(tiny("jetmoe"))


def test_a_dynamic_checkpoint_is_asked_too():
    """A type that looks at the positions is taken off first: hollow positions have no values."""
    config = tiny("llama")
    config.rope_parameters.update(rope_type="dynamic", factor=2.0)
    assert layers_of(config).rotated == Counter(full=2)
