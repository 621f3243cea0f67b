"""Attention scores against distance, of rotary embeddings and of every other encoding."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from harness.encodings._config import EncodingConfig, built, config_of, plugin_of
from harness.encodings._model import EncodingForCausalLM
from harness.encodings.types import Places, Shape
from harness.errors import UserError
from harness.models.config import read_config
from harness.names import place, resolved
from harness.plugins import call
from scaling.types import Frequencies, Rope, Rotation

DRAWS = 64  # contents of a curve
POINTS = 200  # distances, on a linear and on a logarithmic axis each
MORE = BASES, ENCODINGS = "rotary at other bases", "encodings"  # panels beside the scalings
WIDTH, HEADS = 128, 2  # channels and heads of the model around an encoding that is not trained
SPREAD = (0.05, 0.95)  # the share of contents below a curve's lower and upper bound


@dataclass(frozen=True)
class Curve:
    """The score of a query with a key of the same content, by distance in tokens.

    For a rotation, queries and keys have standard normal channels. Scores are divided by
    sqrt(head_dim), and what an encoding adds is added. ``mean``, ``low`` and ``high`` are over
    contents and heads.
    """

    panel: str
    name: str
    distance: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def distances(length: int) -> list[int]:
    """Return the distances of a curve: 0 to length - 1, near ones one by one."""
    even = np.linspace(0, length - 1, POINTS)
    ratios = np.geomspace(1, max(1, length - 1), POINTS)
    return sorted({round(x) for x in (*even, *ratios) if x < length})


def of_rotation(panel: str, name: str, rotation: Rotation, length: int) -> Curve:
    """Return the curve of a rotation; where positions are moved, that of the last query."""
    every = distances(length)
    turned = rotation.angles(torch.tensor(every))
    pairs = turned.shape[1]
    draw = torch.Generator().manual_seed(0)
    content = torch.randn(DRAWS, pairs, 2, dtype=torch.float64, generator=draw).square().sum(-1)
    factor = rotation.strength / (2 * pairs) ** 0.5
    return _curve(panel, name, every, factor * content @ turned.cos().mT)


def of_base(base: float, rope: Rope, length: int) -> Curve:
    """Return the curve of the plain rotary embedding at another base; raise UserError for none."""
    if not 1 <= base <= torch.finfo(torch.float32).max:
        raise UserError(f"--base must be a number from 1 to 3.4e38, got {base:g}.")
    plain = Frequencies(replace(rope, base=base).inv_freq())
    return of_rotation(BASES, f"base {base:g}", plain, length)


@torch.no_grad()
def of_encoding(given: str, rope: Rope, length: int, *, trusted: bool) -> Curve:
    """Return the curve of an encoding, NAME or a trained model's folder, in its first layer.

    For a folder, the contents are tokens of its vocabulary through its norm and projections. By
    name there are no projections: a head's channels are those of random inputs, after a norm.
    Raises UserError for linear attention, which has no scores, for the folder of another model,
    where scores are not finite, and where a key's depends on the other keys.
    """
    first = _opened(given, rope, trusted=trusted)
    encoding = first.encoding
    if hasattr(encoding, "attend"):
        raise UserError(f"encoding {given} has no scores: it replaces softmax attention.")
    tables = [m.num_embeddings for m in encoding.modules() if isinstance(m, torch.nn.Embedding)]
    every = distances(min(length, *tables, length))
    scores = call(f"encoding {given}", lambda: _scores(first, every))
    if not scores.isfinite().all():
        raise UserError(f"encoding {given} has no finite scores at {every[-1] + 1:,} tokens.")
    some = sorted({*every[::2], every[-1]})
    kept = [every.index(distance) for distance in some]
    if not torch.allclose(scores[:, kept], _scores(first, some), atol=1e-3):
        raise UserError(
            f"encoding {given} has no curve by distance: a score depends on other keys."
        )
    return _curve(ENCODINGS, first.name, every, scores)


@dataclass(frozen=True)
class _First:
    """A model's first layer: ``contents`` are embeddings of tokens, ``(contents, 1, width)``."""

    name: str
    encoding: Any
    contents: torch.Tensor
    norm: Any
    layer: Any
    rotary: Any


class _Layer:
    """A layer as an encoding sees it, with projections that change nothing."""

    def __init__(self, shape: Shape, encoding: Any) -> None:
        self.layer_idx, self.head_dim = 0, shape.head_dim
        self.scaling = getattr(encoding, "scale", shape.head_dim**-0.5)
        self.q_proj = self.k_proj = torch.nn.Identity()


def _scores(first: _First, every: Sequence[int]) -> torch.Tensor:
    """Return the last query's scores, ``(contents and heads, distances)``."""
    encoding, layer = first.encoding, first.layer
    positions = every[-1] - torch.tensor(every)  # the query is at the first
    states = first.contents.expand(-1, len(every), -1)
    if hasattr(encoding, "inputs"):
        states = encoding.inputs(states, positions[None])
    states = first.norm(states)
    query, key = (
        project(states).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        for project in (layer.q_proj, layer.k_proj)
    )
    if hasattr(encoding, "turn"):
        angles = first.rotary(states, positions[None]) if first.rotary else None
        query, key = encoding.turn(query, key, angles, positions)
    query, places = query[:, :, :1], Places(positions[:1], positions)
    scores: torch.Tensor = query @ key.mT * layer.scaling
    if hasattr(encoding, "scores"):
        scores = scores + encoding.scores(layer, query, key, places)
    return scores[:, :, 0].flatten(0, 1)


def _opened(given: str, rope: Rope, *, trusted: bool) -> _First:
    """Return the first layer around an encoding: that of the model where a folder is named."""
    folder = place(given)
    draw = torch.Generator().manual_seed(0)
    if (folder / "config.json").exists():
        kind = read_config(str(resolved(folder)), revision=None, trust_remote_code=trusted)[1]
        if not isinstance(kind, EncodingConfig):
            raise UserError(
                f"--encoding {given} is a model of type {kind.model_type}; name an encoding, or a "
                "model that scripts/train_encodings.py wrote."
            )
        trunk = EncodingForCausalLM.from_pretrained(folder, run_code=trusted).model
        own = trunk.config.shape.window  # the figure marks that of the model inspected
        name = folder.name if own == rope.trained_length else f"{folder.name}, window of {own:,}"
        tokens = torch.randint(trunk.config.vocab_size, (DRAWS, 1), generator=draw)
        layer = trunk.layers[0]
        contents, norm = trunk.embed_tokens(tokens), layer.input_layernorm
        return _First(name, trunk.encoding, contents, norm, layer.self_attn, trunk.rotary_emb)
    config = config_of(
        given,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
        max_position_embeddings=rope.trained_length,
        intermediate_size=2**16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plugin = plugin_of(config)
        encoding = built(plugin, config.shape)
    contents = torch.randn(DRAWS, 1, WIDTH, generator=draw) / WIDTH**0.5
    norm = torch.nn.RMSNorm(WIDTH, elementwise_affine=False)
    rotary = LlamaRotaryEmbedding(config) if config.rope_parameters else None
    layer = _Layer(config.shape, encoding)
    return _First(plugin.label, encoding, contents, norm, layer, rotary)


def _curve(panel: str, name: str, every: Sequence[int], scores: torch.Tensor) -> Curve:
    """Return the mean and the bounds of scores ``(contents, distances)``."""
    low, high = (scores.double().quantile(share, 0).tolist() for share in SPREAD)
    return Curve(panel, name, every, scores.double().mean(0).tolist(), low, high)


def renamed(more: Sequence[Curve], taken: Collection[str]) -> list[Curve]:
    """Return curves with names of their own: the encoding none is not the scaling none."""
    return [
        replace(curve, name=f"{curve.name} ({curve.panel.removesuffix('s')})")
        if curve.name in taken
        else curve
        for curve in more
    ]


def frame(curves: Sequence[Curve]) -> pd.DataFrame:
    """Return one row per curve and distance."""
    return pd.concat([pd.DataFrame({**vars(curve)}) for curve in curves], ignore_index=True)
