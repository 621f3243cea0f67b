"""What is noted before a sweep, for checkpoints of the shapes that the hub has."""

import json
from typing import Any

import pytest
from transformers import AutoConfig

from ropewalk.harness.patching.config import geometry_of
from ropewalk.harness.plugins import load
from ropewalk.harness.sweep.notes import notes, plan_notes
from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.spec import parse
from tests import ROOT

# config.json as these checkpoints have it, older words ("type", rope_scaling) included, but for
# fewer layers.
HUB: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/data/checkpoints.json").read_text())
SHIPPED = {
    "Llama-3.1-8B": "llama3 scaling, factor 8, trained window 8,192 tokens.",
    "Phi-3-mini-128k": "longrope scaling, factor 32, trained window 4,096 tokens.",  # 131072 / 4096
    "Qwen2.5-7B-yarn": "yarn scaling, factor 4, trained window 32,768 tokens.",
    "vicuna-16k": "linear scaling, factor 4, trained window 4,096 tokens.",
    "dynamic-8k": "dynamic scaling, factor 2.5, trained window 8,192 tokens.",
    "gpt-oss-20b": "yarn scaling, factor 32, trained window 4,096 tokens.",
}
NO_USE = (
    "see only 4,096 tokens back, within the trained window: a method that scales them changes "
    "nothing beyond it"
)
LAYERS = {
    "command-r7b": [
        f"The layers that rotate {NO_USE}; log_n:layers=unrotated acts on the others.",
    ],
    "Mistral-7B-v0.1": [f"The layers that rotate {NO_USE}."],
}


def noted(config: Any, *scaling: str) -> list[str]:
    methods = [load("method", given) for given in scaling]
    return notes("model", config, methods, geometry_of(config), trust_remote_code=False)


@pytest.mark.parametrize("name", HUB)
def test_what_a_checkpoint_ships_and_what_a_method_acts_on(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HUB[name]))
    found = noted(AutoConfig.from_pretrained(tmp_path), "none", "yarn")
    if name in SHIPPED:
        assert found.pop(0).startswith(f"model ships {SHIPPED[name]} native keeps it; ")
    if name == "vicuna-16k":  # and in Gemma 3 it is the window after it
        assert found.pop(0).endswith("give --trained-length 1024 (4,096 / 4).")
    assert found == LAYERS.get(name, [])


def test_methods_that_change_nothing_or_are_equal_are_named(tiny, docs):
    """At 2x, PI by 1 is the plain embedding; with the factor unset PI is PI by 2, NTK is not."""
    scaling = ("none", "pi:factor=1", "pi", "pi:factor=2", "ntk")
    given = {"model": str(tiny), "docs": str(docs), "scaling": scaling, "length": ("1x", "2x")}
    plan = make_plan(parse(None, {**given, "task": "perplexity:tail=16", "device": "cpu"}))
    assert plan_notes(plan)[-2:] == [
        "none and pi:factor=1 are equal beyond the trained window and measured once.",
        "pi and pi:factor=2 are equal beyond the trained window and measured once.",
    ]
