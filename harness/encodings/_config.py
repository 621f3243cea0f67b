"""The config of the laboratory's model: a small Llama whose position encoding is a plug-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from ropewalk.harness.encodings.types import Shape
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import Plugin, call, load, names_code

COPIES = 4  # most encodings: the scores, the masked scores, their softmax and a temporary
# Scores that are computed at once: as many as fit a processor's cache, on a GPU 64 MiB. With fewer
# queries, what some encodings compute for all keys each time would be most of the work.
SCORES, SCORES_GPU, LEAST_QUERIES = 2**19, 2**24, 64
STEP = 8  # channels of an MLP: what an encoding adds is taken from it in these


class EncodingConfig(PreTrainedConfig):  # type: ignore[misc]  # its type is Any here
    """The fields of Llama's config, and ``encoding``: NAME or FILE.py, with options.

    ``code`` is the hash of a user's file, which lies beside the weights; it runs only where
    ``run_code`` is set, which is never read from a file.
    """

    model_type = "ropewalk_encoding"
    encoding: str = "none"
    code: str | None = None
    run_code: bool = False
    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 256
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    mlp_bias: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 0
    eos_token_id: int | None = 1
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self, **more: Any) -> None:
        self.num_key_value_heads = self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        given = self.rope_parameters
        super().__post_init__(**more)
        self.rope_parameters = given and {"rope_type": "default", **given}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **more: Any) -> Any:
        """Read a config; a file cannot permit code to run."""
        return super().from_dict({**config_dict, "run_code": False}, **more)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a config file; a user's encoding is a file name, next to it."""
        fields: dict[str, Any] = super().to_dict()
        name, colon, options = self.encoding.partition(":")
        del fields["run_code"]
        return {**fields, "encoding": Path(name).name + colon + options}

    @property
    def shape(self) -> Shape:
        """The shape of the model that an encoding is built for."""
        return Shape(
            width=self.hidden_size,
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            head_dim=self.head_dim or 0,
            window=self.max_position_embeddings,
        )

    def queries_at_once(self, keys: int, device: torch.device) -> int:
        """Return for how many queries the scores are computed at once, in all heads."""
        most = SCORES if device.type == "cpu" else SCORES_GPU
        return max(LEAST_QUERIES, most // (self.num_attention_heads * keys))

    def score_numbers(self, length: int, device: torch.device) -> int:
        """Return how many numbers the encoding holds at once in a forward of a length.

        They are ``copies`` arrays of one number per head, query and key, or per head, key and
        distance in the window.
        """
        encoding = plugin_of(self).module.Encoding
        if not has_scores(encoding):
            return 0
        wide = max(self.queries_at_once(length, device), self.max_position_embeddings)
        copies = getattr(encoding, "copies", COPIES)
        return int(copies * self.num_attention_heads * length * min(length, wide))


def has_scores(encoding: Any) -> bool:
    """Return whether an encoding computes something for every query and key."""
    return any(hasattr(encoding, part) for part in ("scores", "values", "attend"))


def plugin_of(config: EncodingConfig) -> Plugin:
    """Return the encoding that a config names; raise UserError for code that may not run."""
    name, colon, options = config.encoding.partition(":")
    if name.endswith(".py"):
        name = str(Path(config.name_or_path) / name)
    check_code(config)
    plugin = load("encoding", f"{name}{colon}{options}")
    if config.code not in (None, plugin.digest):
        raise UserError(f"{name} is not the file of the encoding that the model was trained with.")
    return plugin


def check_code(config: EncodingConfig) -> None:
    """Raise UserError for an encoding that is code which may not run."""
    if not config.run_code and names_code("encoding", config.encoding):
        raise UserError(
            f"{config.name_or_path or 'the model'} has the encoding {config.encoding}, which is"
            " code beside its weights; --trust-remote-code (in Python run_code=True) runs it."
        )


def built(plugin: Plugin, shape: Shape) -> Any:
    """Return the module of an encoding for a model of a shape."""
    what = f"encoding {plugin.label}"
    module: Any = call(what, lambda: plugin.module.Encoding(shape, **plugin.arguments))
    if not isinstance(module, torch.nn.Module):
        raise UserError(f"{what}: it is {type(module).__name__}, not a torch.nn.Module.")
    base = getattr(module, "base", 1.0)
    if not isinstance(base, int | float) or not 1 <= base <= torch.finfo(torch.float32).max:
        raise UserError(f"{what}: base must be a number from 1 to 3.4e38, got {base!r}.")
    return module


def config_of(encoding: str, **fields: Any) -> EncodingConfig:
    """Return a config with an encoding, whose MLP is smaller by the parameters that it adds.

    So models of all encodings have one size, within 2 % at the laboratory's width. The rotary
    embedding has the base of the encoding, if it has one.
    """
    plugin = load("encoding", encoding)
    config = EncodingConfig(encoding=encoding, code=plugin.digest, run_code=True, **fields)
    with torch.device("meta"):
        module = built(plugin, config.shape)
    added = sum(parameter.numel() for parameter in module.parameters())
    channel = 3 * config.hidden_size * config.num_hidden_layers  # of all MLPs
    config.intermediate_size -= round(added / channel / STEP) * STEP
    if config.intermediate_size < STEP:
        raise UserError(
            f"encoding {plugin.label} adds {added:,} parameters, more than the model has."
        )
    if hasattr(module, "base"):
        config.rope_parameters = {"rope_type": "default", "rope_theta": float(module.base)}
    return config


AutoConfig.register(EncodingConfig.model_type, EncodingConfig)
