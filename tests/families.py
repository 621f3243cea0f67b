"""Tiny models of many families, what the patch does to each, and the table made of it.

``python -m tests.families > results/families.md`` writes the table anew.
"""

import sys
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from ropewalk.harness.engine import DEFAULT, answers, shareable
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.structure import Layers, layers_of, position_limit
from ropewalk.harness.patching.config import FULL, geometry_of, is_rotary, rope_of
from ropewalk.harness.patching.frequencies import check_geometry
from ropewalk.harness.patching.patch import answering, patched
from ropewalk.scaling import native, none, ntk, pi, self_extend, yarn
from ropewalk.scaling.types import Band, Bands, Frequencies, Rope, by_distance
from ropewalk.tasks.types import Loglikelihood
from tests.asking import own_losses
from tests.tiny import SHAPE, WINDOW

LENGTH = 3 * WINDOW
TOKENS = (torch.arange(LENGTH)[None] * 7919) % 256 + 1
FACTOR = 4.0
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 48,
}  # fmt: skip
TWO = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
LATENT = {
    "head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_group": 1, "topk_group": 1,
}  # fmt: skip
INDEXED = {**LATENT, "index_topk": 48, "index_n_heads": 2, "index_head_dim": 32}
INDEXING = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")  # choose their keys by an index
TOKENS_OF = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
SUPPORTED: dict[str, dict[str, Any]] = {
    "afmoe": TWO, "apertus": PLAIN, "arcee": {}, "aria_text": {}, "axk2": INDEXED, "bitnet": {},
    "cohere": {},
    "cohere2": TWO, "cwm": PLAIN, "deepseek_v3": LATENT, "deepseek_v32": INDEXED, "diffllama": {},
    "doge": {},
    "ernie4_5": {}, "ernie4_5_moe": {}, "exaone4": TWO, "falcon": {"alibi": False},
    "falcon_h1": {
        "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16,
        "lm_head_multiplier": 3.0,
    },
    "flex_olmo": {}, "gemma": {}, "gemma2": TWO, "gemma3_text": TWO, "glm": {}, "glm4": {},
    "glm4_moe": {}, "glm_moe_dsa": INDEXED,
    "gpt_neox": {}, "gpt_oss": {**TWO, **PLAIN}, "granite": {}, "granitemoe": {},
    "helium": {}, "hunyuan_v1_dense": {}, "hunyuan_v1_moe": {}, "hy_v3": {}, "hy_v4": INDEXED,
    "hyperclovax": {},
    "jais2": {}, "laguna": TWO, "lfm2": {"layer_types": ["conv", "full_attention"]}, "llama": {},
    "mellum": TWO, "minimax": {}, "minimax_m2": {}, "ministral": TWO,
    "mistral": {}, "mixtral": {}, "modernbert-decoder": {**TWO, "pad_token_id": 0},
    "nanochat": {}, "nemotron": {}, "olmo": {}, "olmo2": {}, "olmo3": TWO, "olmoe": {},
    "persimmon": {}, "phi": {}, "phi3": {"original_max_position_embeddings": WINDOW},
    "qwen2": {}, "qwen2_moe": {}, "qwen3": {},
    "qwen3_moe": {},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    "seed_oss": {}, "smollm3": {"no_rope_layers": [1, 0]}, "solar_open": {}, "stablelm": {},
    "starcoder2": {}, "vaultgemma": TWO,
}  # fmt: skip
# Without a rotary embedding: measured as they are.
PLAINLY: dict[str, dict[str, Any]] = {
    "biogpt": {}, "bloom": {"seq_length": WINDOW},
    "falcon": {"alibi": True}, "falcon_mamba": {}, "gpt2": {}, "gpt_bigcode": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8}, "inkling_text": {},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "position_embedding_type": "nope",
        "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "shared_intermediate_size": 32,
        "num_local_experts": 0,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "mamba": {}, "mamba2": {"head_dim": 8, "num_heads": 8, "n_groups": 1, "state_size": 16},
    "mpt": {}, "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1},
    "rwkv": {"attention_hidden_size": 32}, "xglm": {"attention_heads": 2, "ffn_dim": 48},
}  # fmt: skip
# The sentence each is refused with, before its weights are read or on its own output.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "beam": ("beam: it has a rotary embedding for sliding_attention, but none for", {}),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM: its rotary module does not return the given angles.", {},
    ),
    "deepseek_v4": ("deepseek_v4: it has a rotary embedding for main, compress, but none for", {}),
    "granite_swa": ("GraniteSWAForCausalLM has 2 rotary modules", {}),
    "llama4_text": ("Llama4ForCausalLM: its rotary module does not return the given angles.", {}),
    "phimoe": ("PhimoeForCausalLM: its output does not depend on its rotary", {}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM has 0 rotary modules", {}),
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
    rotary: str = ""
    layers: str = ""
    identity: bool = False
    restored: bool = False
    effect: float = 0.0
    linear: float = 0.0
    yarn: float = 0.0
    losses: tuple[float, float] = (0.0, 0.0)
    moved: float | None = None  # None where positions cannot be moved
    unmoved: float = 0.0  # what its own frequencies in two bands change


def tiny(family: str) -> Any:
    """Return the config of a family in a tiny shape."""
    given = SUPPORTED.get(family) or REFUSED.get(family, ("", {}))[1]
    shape = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16, **EXPERTS, **TOKENS_OF, **given}
    if family == "falcon":
        del shape["head_dim"]  # a property without a setter
    return AutoConfig.for_model(family, **shape)


@dataclass(frozen=True)
class Plainly:
    """What was found of a family without a rotary embedding."""

    family: str
    positions: int | None  # for how many tokens it has some
    shared: bool
    losses: tuple[float, float]  # the mean of the engine's, and of the model's own logits


def plainly(family: str) -> Any:
    """Return the config of a family without a rotary embedding in a tiny shape."""
    given = {**SHAPE, **TOKENS_OF, **EXPERTS, "num_key_value_heads": 2, **PLAINLY[family]}
    return AutoConfig.for_model(family, **given)


@cache
def find_plainly(family: str) -> Plainly:
    """Measure a family as it is, as far as it reads, up to twice its window."""
    config = plainly(family)
    model = build(config)
    positions = None if is_rotary(config) else position_limit(model)
    tokens = TOKENS[:, : positions or 2 * WINDOW]
    rope = geometry_of(config)
    question = Loglikelihood(tuple(tokens[0].tolist()), 1, doc_id="q")
    with answering(model, none.frequencies(rope, question.length), DEFAULT) as answer:
        ((_, found),) = answer([question])
    wanted = float(own_losses(model, question.tokens).mean())
    return Plainly(family, positions, shareable(model), (sum(found.nll) / len(found.nll), wanted))


def build(config: Any) -> Any:
    """Return a model of seeded random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(deepcopy(config)).eval()


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


def inside(model: Any, frequencies: Frequencies) -> torch.Tensor:
    """Return the logits of a patched model."""
    with patched(model, frequencies):
        return logits(model)


def scaled(config: Any, kind: str) -> Any:
    """Return a config with the library's own scaling, in the slot that is patched."""
    changed = deepcopy(config)
    parameters = changed.rope_parameters
    slot = parameters if "rope_theta" in parameters else parameters[FULL]
    extra = {"original_max_position_embeddings": WINDOW} if kind == "yarn" else {}
    slot.update(rope_type=kind, factor=FACTOR, **extra)
    return changed


def difference(model: Any, config: Any, kind: str, frequencies: Frequencies) -> float:
    """Return how far the patch is from the library's own type, in units of the logits' spread."""
    own = build(scaled(config, kind))
    own.load_state_dict(model.state_dict())
    wanted = logits(own)
    return float((inside(model, frequencies) - wanted).abs().max() / wanted.std())


@cache
def find(family: str) -> Findings:
    """Measure one family; a refusal is a finding."""
    config = tiny(family)
    try:
        rope = rope_of(config)
        model = build(config)
        check_geometry(model, rope)
        return _found(family, config, model, rope)
    except UserError as error:
        return Findings(family, refusal=str(error))


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
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Findings(
        family,
        rotary=f"{rope.rotary_dim} of {head}",
        layers=_scaled(layers_of(config)),
        identity=all(torch.equal(one, before) for one in plain),
        effect=float((strong - before).abs().max() / before.std()),
        linear=difference(model, config, "linear", pi.frequencies(rope, LENGTH, factor=FACTOR)),
        yarn=difference(model, config, "yarn", yarn.frequencies(rope, LENGTH, factor=FACTOR)),
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


def _scaled(layers: Layers) -> str:
    """Say which attention layers a method scales."""
    if not layers.rotated + layers.plain:
        return "not counted"
    if layers.own_sliding:
        return "full attention; sliding layers keep their own"
    if layers.rotated["sliding"]:
        if layers.rotated["full"]:
            return "all, sliding ones too"
        return "sliding only; the others do not rotate" if layers.plain else "all; every one slides"
    return "all but those without a rotary embedding" if layers.plain.total() else "all"


def told(value: float) -> str:
    """Say a difference in words that are the same on every machine of one rounding."""
    return "bit-equal" if value == 0 else "to rounding" if value < 1e-5 else f"{value:.0e}"


def table() -> str:
    """Return the whole of results/families.md."""
    found = [find(family) for family in sorted([*SUPPORTED, *REFUSED])]
    taken = [one for one in found if not one.refusal]
    lines = [
        "# Families: what the patch was checked on",
        "",
        f"Made by `python -m tests.families` with transformers {transformers.__version__}. Do not",
        "edit it. Each family is a model of two layers and seeded random weights, read at three",
        f"times its window. {len(taken)} families are supported. {len(found) - len(taken)} further",
        "ones represent those that are not supported, each with its error.",
        "",
        "The patch was checked on every supported family:",
        "",
        "- plain and native frequencies through the patch leave the logits bit-identical;",
        "- after the patch is removed, the model is bit-identical to what it was;",
        "- other frequencies change the logits;",
        "- the engine's mean loss is that of `model(labels=...)` to 2e-6.",
        "",
        "The columns mean:",
        "",
        "- *Rotated*: the rotated channels of a tiny head.",
        "- *Scaled layers*: whether a layer's attention depends on cos and sin, read from the tiny",
        "  model. *All, sliding ones too*: one rotary embedding serves all layers, so a method",
        "  also changes layers that never see past their window. *Sliding only* and *every one",
        "  slides*: no rotated layer sees farther than its window, so a method has little to",
        "  improve. *Not counted*: every layer chooses its keys by an index, or has a state space",
        "  beside its attention.",
        "- *linear* and *yarn*: the patched model's logits compared with those of transformers'",
        "  own type at factor 4, on the same weights.",
        "- *Positions*: whether methods that move positions (ReRoPE, Self-Extend, ...) run. The",
        "  model's own frequencies, cut into two bands, then give its own logits to 2e-3 of their",
        "  spread, also with sliding windows of 32 tokens. A model whose attention cannot be",
        "  replaced, that masks its scores itself, or that chooses among keys raises an error.",
        "",
        "A scaling that a family computes by a rule of its own raises an error: Hunyuan's",
        "`dynamic` with `alpha`, which its released checkpoints ship.",
        "",
        "`ropewalk inspect` and `ropewalk run` say how many layers a method scales in your model.",
        "",
        "| family | rotated | scaled layers | linear | yarn | positions |",
        "|---|---|---|---|---|---|",
        *(
            f"| {f.family} | {f.rotary} | {f.layers} | {told(f.linear)} | {told(f.yarn)} | "
            f"{'cannot be moved' if f.moved is None else 'moved'} |"
            for f in taken
        ),
        "",
        "The next families have no rotary embedding that could be replaced. The same engine",
        "measures them unchanged (`--scaling none`), and any other method raises an error. The",
        "engine's mean loss is that of the model's own logits to 2e-6. *Reads*: a longer cell has",
        "the status failed, with this number. *Beginnings*: whether a prefix that requests share",
        "is computed once; the model's check must allow it.",
        "",
        "| unchanged | reads | beginnings |",
        "|---|---|---|",
        *(
            f"| {one.family} | {f'{one.positions} tokens' if one.positions else 'any length'} | "
            f"{'shared' if one.shared else 'each whole'} |"
            for one in map(find_plainly, PLAINLY)
        ),
        "",
        "| not supported | error |",
        "|---|---|",
        *(f"| {one.family} | {one.refusal} |" for one in found if one.refusal),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
