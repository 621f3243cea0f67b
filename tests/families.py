"""Tiny models of every causal and image-text class, what the patch does to each, and their table.

``python -m tests.families > new.md`` writes results/families.md anew.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from ropewalk.harness.engine import DEFAULT, answers, shareable
from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.models.structure import (
    Layers,
    auto_model,
    layers_of,
    position_limit,
)
from ropewalk.harness.patching.config import FULL, geometry_of, is_rotary, rescaled
from ropewalk.harness.patching.frequencies import check_geometry
from ropewalk.harness.patching.patch import answering, patched
from ropewalk.harness.plugins import call
from ropewalk.scaling import native, none, ntk, pi, self_extend, yarn
from ropewalk.scaling.types import Band, Bands, Frequencies, Rope, by_distance
from ropewalk.tasks.types import Loglikelihood
from tests import ROOT
from tests.asking import own_losses
from tests.tiny import SHAPE, WINDOW

LENGTH = 3 * WINDOW
TOKENS = (torch.arange(LENGTH)[None] * 7919) % 256 + 1
FACTOR = 4.0
LARGEST = 20_000_000  # parameters of a tiny model; more are sizes that the names below do not cover
TEXT = {  # the sizes of a tiny language model, by all names that configs have for them
    **SHAPE, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "sliding_window": 32,
    "num_global_key_value_heads": 2, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 300, "shared_intermediate_size": 32, "seq_length": WINDOW,
    "n_positions": WINDOW, "original_max_position_embeddings": WINDOW, "is_decoder": True,
    # other words
    "ffn_hidden_size": 48, "num_layers": 2, "d_model": 32, "n_layer": 2, "n_embd": 32, "n_head": 2,
    "dim": 32, "n_layers": 2, "n_heads": 2, "ffn_dim": 48, "attention_hidden_size": 32,
    "attention_heads": 2, "word_embed_proj_dim": 32, "decoder_attention_heads": 2,
    "decoder_ffn_dim": 48, "decoder_layers": 2,
    # mixtures of experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "num_experts_per_token": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 48,
    "moe_num_experts": 4, "moe_k": 2, "n_group": 1, "topk_group": 1, "num_expert_group": 1,
    "n_shared_experts": 1, "expert_ffn_hidden_size": 16, "moe_topk": 2,
    # latent attention, and keys chosen by an index
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "index_topk": 48, "index_n_heads": 2, "index_head_dim": 32,
    # state spaces and linear attention
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1,
    "mamba_d_ssm": 64, "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16,
    "use_mamba_kernels": False, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "depth": 1, "num_heads": 2,
    "num_attention_heads": 2, "image_size": 28, "patch_size": 14, "out_hidden_size": 32,
    "embed_dim": 32, "num_layers": 1, "deepstack_visual_indexes": [0], "num_key_value_heads": 2,
    "fullatt_block_indexes": [0], "head_dim": 16,
}  # fmt: skip
TWO = {"layer_types": ["sliding_attention", "full_attention"]}
MORE: dict[str, dict[str, Any]] = {  # what a family needs besides
    "ernie4_5_vl_moe": {"moe_intermediate_size": [16, 16]}, "falcon": {"alibi": False},
    "falcon_h1": {"lm_head_multiplier": 3.0}, "glm5_next": {"qk_rope_head_dim": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "num_local_experts": 0,
        "position_embedding_type": "nope",
    },
    "laguna": TWO, "mellum": TWO, "ministral": TWO,
    "hrm_text": {"initializer_range": 0.1, "H_cycles": 1, "L_cycles": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {"floor_scale": 16, "no_rope_layers": [1, 0]},
    "mamba2": {"head_dim": 8, "num_heads": 8, "n_groups": 1, "state_size": 16},
    "mistral4": {"head_dim": 32},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "n_groups": 1},
    "smollm3": {"no_rope_layers": [1, 0]}, "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
INDEXING = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")  # choose their keys by an index
# The families that tests measure; the table has all.
SUPPORTED = (
    "afmoe", "apertus", "axk2", "bitnet", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "diffllama", "doge", "ernie4_5", "exaone4", "falcon", "falcon_h1", "gemma",
    "gemma2", "gemma3", "gemma3_text", "gemma4_text", "glm", "glm4_moe", "glm_moe_dsa", "gpt_neox",
    "gpt_oss",
    "granite", "helium", "hunyuan_v1_dense", "hy_v4", "hyperclovax", "kimi_k25", "laguna", "lfm2",
    "lfm3", "llama", "llama4_text", "llava", "mellum", "minimax", "ministral", "mistral",
    "mistral3", "mixtral", "modernbert-decoder", "nanochat", "nemotron", "olmo3", "olmoe",
    "persimmon", "phi", "phi3", "qwen2", "qwen3", "qwen3_5", "qwen3_moe", "qwen3_next",
    "qwen3_vl", "smollm3", "stablelm", "vaultgemma",
)  # fmt: skip
# Without a rotary embedding: measured as they are.
PLAINLY = (
    "biogpt", "bloom", "falcon_mamba", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "inkling_text",
    "jamba", "mamba", "mamba2", "mpt", "nemotron_h", "opt", "rwkv", "xglm",
)  # fmt: skip
# The sentence each is refused with, before its weights are read or on its own output.
REFUSED = {
    "beam": "beam: it has a rotary embedding for sliding_attention, but none for",
    "deepseek_v4": "deepseek_v4: it has a rotary embedding for main, compress, but none for",
    "granite_swa": "GraniteSWAForCausalLM has 2 rotary modules",
    "phimoe": "PhimoeForCausalLM: its output does not depend on its rotary",
    "recurrent_gemma": "recurrent_gemma: the config has no max_position_embeddings.",
}  # fmt: skip


def each(families: Iterable[str], *few: str) -> list[Any]:
    """Return the families as parameters of a test; all but a few are slow."""
    few = few or ("gemma2", "gpt_neox", "llama", "qwen3_moe")
    return [pytest.param(f, marks=() if f in few else pytest.mark.slow) for f in families]


@dataclass(frozen=True)
class Findings:
    """What was found of one family; a difference is in units of the logits' spread."""

    family: str
    refusal: str = ""
    rotary: str = ""  # "" of a model without a rotary embedding
    layers: str = ""
    identity: bool = True
    restored: bool = True
    effect: float = 1.0
    linear: float = 0.0
    yarn: float | None = 0.0  # None where its own type rotates other channels
    losses: tuple[float, float] = (0.0, 0.0)  # the mean of the engine's, and the model's own
    moved: float | None = None  # None where positions cannot be moved
    unmoved: float = 0.0  # what its own frequencies in two bands change
    positions: int | None = None  # of a model without a rotary embedding: how many it has
    shared: bool = False  # whether it computes common beginnings once

    @property
    def wrong(self) -> str:
        """What makes it unfit to be measured, "" for nothing."""
        checks = {
            "its own frequencies through the patch change its logits": not self.identity,
            "it is not restored bit for bit": not self.restored,
            "other frequencies hardly change its logits": self.effect < 1e-2,
            "another yarn or linear type than transformers'": max(self.linear, self.yarn or 0)
            > 1e-5,
            "bands of its own frequencies change its logits": self.unmoved > 2e-3,
            "its losses are not those of its labels": abs(self.losses[0] - self.losses[1])
            > 2e-6 * self.losses[1],
        }
        return "; ".join(text for text, bad in checks.items() if bad)


def tiny(family: str, **given: Any) -> Any:
    """Return the config of a family in a tiny shape, without a scaling; ``given`` go over it."""
    kind = CONFIG_MAPPING[family]
    base = kind()
    text = base.get_text_config()
    sizes = _sizes(base, TEXT) if text is base else {}
    for name in base.sub_configs if text is not base else ():
        if (part := getattr(base, name)) is not None:
            own = _sizes(part, TEXT) | MORE.get(family, {}) if part is text else None
            sizes[name] = {**(own or _sizes(part, VISION)), "model_type": part.model_type}
    config = kind(**sizes | (MORE.get(family, {}) if text is base else {}) | given)
    if not is_rotary(config):
        return config
    # The default type of Mistral 4 rotates more channels than its attention has.
    plain = {"rope_type": "linear", "factor": 1.0} if family == "mistral4" else {}
    config = rescaled(config, {"rope_type": "default", **plain})
    flat = config.get_text_config().rope_parameters
    if text is not base and "rope_theta" in flat:  # each third of the pairs has its own positions
        pairs = geometry_of(config).rotary_dim // 2
        flat["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return config


def _sizes(config: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tiny sizes that a config has a name for, and layers of the last of its kinds."""
    has = config.to_dict()
    kept = {"sliding_window", "pad_token_id"}  # not set where the family has none
    given = {
        name: size
        for name, size in sizes.items()
        if name in has and not (name in kept and has[name] is None)
    }
    kinds = list(dict.fromkeys(has.get("layer_types") or ()))
    return given | ({"layer_types": (kinds * 2)[-2:]} if kinds and sizes is TEXT else {})


def build(config: Any) -> Any:
    """Return a model of seeded random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return auto_model(config).from_config(deepcopy(config)).eval()


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


def inside(model: Any, frequencies: Frequencies) -> torch.Tensor:
    """Return the logits of a patched model."""
    with patched(model, frequencies):
        return logits(model)


def difference(model: Any, config: Any, kind: str, frequencies: Frequencies) -> float:
    """Return how far the patch is from the library's own type, in units of the logits' spread."""
    window = {"original_max_position_embeddings": geometry_of(config).trained_length}
    own = build(rescaled(config, {"rope_type": kind, "factor": FACTOR, **window}))
    own.load_state_dict(model.state_dict())
    wanted = logits(own)
    return float((inside(model, frequencies) - wanted).abs().max() / wanted.std())


@cache
def find(family: str) -> Findings:
    """Measure one family; a refusal is a finding."""
    try:
        with foreign("not built"):
            config = tiny(family)
            with torch.device("meta"):
                model = auto_model(config).from_config(deepcopy(config))
            if sum(one.numel() for one in model.parameters()) > LARGEST:
                raise UserError("not built: this script knows no small shape of it.")
            model = build(config)
        rope = geometry_of(config, None if is_rotary(config) else WINDOW)
        if not is_rotary(config):
            return call(family, lambda: _plainly(family, model, rope))
        check_geometry(model, rope)
        return call(family, lambda: _found(family, config, model, rope))
    except UserError as error:
        return Findings(family, refusal=str(error))


def _plainly(family: str, model: Any, rope: Rope) -> Findings:
    """Measure a family as it is, as far as it reads, up to twice its window."""
    positions = position_limit(model)
    tokens = TOKENS[:, : positions or 2 * WINDOW]
    question = Loglikelihood(tuple(tokens[0].tolist()), 1, doc_id="q")
    with answering(model, none.frequencies(rope, question.length), DEFAULT) as answer:
        ((_, found),) = call(family, lambda: list(answer([question])))
    losses = sum(found.nll) / len(found.nll), float(own_losses(model, question.tokens).mean())
    return Findings(family, positions=positions, shared=shareable(model), losses=losses)


def _found(family: str, config: Any, model: Any, rope: Rope) -> Findings:
    before = logits(model)
    plain = [inside(model, one.frequencies(rope, LENGTH)) for one in (none, native)]
    strong = inside(model, ntk.frequencies(rope, LENGTH, factor=8))
    question = Loglikelihood(tuple(TOKENS[0].tolist()), 1, doc_id="q")
    ((_, answer),) = answers(model, [question])
    with torch.inference_mode():
        wanted = model(input_ids=TOKENS, labels=TOKENS, use_cache=False)
    # A mixture of experts may add its router's loss to the one of the tokens.
    extra = float(getattr(wanted, "aux_loss", None) or 0.0)
    linear = "linear" if rope.turning is None else "proportional"
    return Findings(
        family,
        rotary=f"{2 * rope.turning if rope.turning else rope.rotary_dim} of {_head_dim(config)}",
        layers=_scaled(config),
        identity=all(torch.equal(one, before) for one in plain),
        effect=float((strong - before).abs().max() / before.std()),
        linear=difference(model, config, linear, pi.frequencies(rope, LENGTH, factor=FACTOR)),
        yarn=difference(model, config, "yarn", yarn.frequencies(rope, LENGTH, factor=FACTOR))
        if rope.turning is None
        else None,
        losses=(sum(answer.nll) / len(answer.nll), float(wanted.loss) - extra),
        moved=_moved(model, self_extend.bands(rope, LENGTH), before),
        unmoved=_moved(model, Bands(LENGTH, _halves(rope)), before) or 0.0,
        restored=torch.equal(logits(model), before),  # after all of these
    )


def _halves(rope: Rope) -> tuple[Band, ...]:
    """Return the true positions at the model's own frequencies, cut in two at a distance of 20."""
    own = native.frequencies(rope, LENGTH)
    return by_distance(LENGTH, own, 0, 20), by_distance(LENGTH, own, 20)


def _moved(model: Any, bands: Any, before: torch.Tensor) -> float | None:
    """Return what bands change, in units of the logits' spread; None where it refuses them."""
    try:
        with patched(model, bands):
            return float((logits(model) - before).abs().max() / before.std())
    except UserError:
        return None


def _scaled(config: Any) -> str:
    """Say which attention layers a method scales."""
    try:
        layers: Layers = call(config.model_type, lambda: layers_of(config))
    except UserError:
        return "not counted"
    if not layers.rotated + layers.plain:
        return "not counted"
    if layers.own_sliding:
        return "full attention; sliding layers keep their own"
    if layers.rotated["sliding"]:
        if layers.rotated["full"]:
            return "all, sliding ones too"
        return "sliding only; the others do not rotate" if layers.plain else "all; every one slides"
    return "all but those without a rotary embedding" if layers.plain.total() else "all"


def _head_dim(config: Any) -> int:
    """Return the channels of a head of the layers that are scaled."""
    text = config.get_text_config()
    layers = text.per_layer_config if FULL in (getattr(text, "layer_types", None) or ()) else None
    one = layers[FULL] if layers else text
    return getattr(one, "head_dim", None) or one.hidden_size // one.num_attention_heads


def told(value: float | None) -> str:
    """Say a difference in words that are the same on every machine of one rounding."""
    if value is None:
        return "no such type"
    return "bit-equal" if value == 0 else "to rounding" if value < 1e-5 else f"{value:.0e}"


def row(one: Findings) -> str:
    """Return a family's row in one of the three tables."""
    images = one.family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    name = f"| {one.family}{' (image-text)' if images else ''} | "
    if why := one.refusal or one.wrong:
        return f"{name}{why.replace('|', '/')} |"
    if one.rotary:
        moved = "cannot be moved" if one.moved is None else "moved"
        types = f"{told(one.linear)} | {told(one.yarn)}"
        return f"{name}{one.rotary} | {one.layers} | {types} | {moved} |"
    reads = f"{one.positions} tokens" if one.positions else "any length"
    return f"{name}{reads} | {'shared' if one.shared else 'each whole'} |"


def table() -> str:
    """Return results/families.md with other counts and rows; its prose is written there."""
    families = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    found = [find(family) for family in sorted(families)]
    refused = [one for one in found if one.refusal or one.wrong]
    taken = [one for one in found if one.rotary and one not in refused]
    plain = [one for one in found if not one.rotary and one not in refused]
    page = (ROOT / "results" / "families.md").read_text(encoding="utf-8")
    tables, counts = iter((taken, plain, refused)), (len(taken), len(plain), len(refused))
    bodies = re.compile(r"(?<=---\|\n)(\|.*\n)+")
    page = bodies.sub(lambda _: "".join(f"{row(one)}\n" for one in next(tables)), page)
    begin = (
        "{} families are supported, {} more\nwithout a rotary embedding are measured unchanged, "
    )
    begin += "and {} are not measured"
    page = re.sub(begin.replace("{}", r"\d+"), begin.format(*counts), page)
    return re.sub(r"transformers [\d.]+,", f"transformers {transformers.__version__},", page)


if __name__ == "__main__":
    sys.stdout.write(table())
