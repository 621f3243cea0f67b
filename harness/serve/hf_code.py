"""A folder with a small modelling file: moved positions, or frequencies of each layer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM

from ropewalk.harness.models.structure import layers_of
from ropewalk.harness.serve._config import changes
from ropewalk.harness.serve._parameters import RopeParameters, Target

NAMED, OVERRIDES = ("bands",), False
# Families for which the losses of the file were compared with the measured ones.
READ = ("cohere", "gemma2", "granite", "llama", "mistral", "qwen2", "qwen3")
FILE, DATA, CLASS = "modeling_moved.py", "moved_positions.npz", "MovedForCausalLM"
BASE = "LlamaForCausalLM"  # the base class in the template


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the changes of config.json: the plain embedding, and the class of the file."""
    if not target.rotation.needs_code:
        raise ValueError(
            f"{target.method.label} changes frequencies alone. Use --to transformers, whose "
            "config.json carries them without code"
        )
    kind = target.config.model_type
    if kind not in READ:
        raise ValueError(f"the file is checked for {', '.join(READ)}, not for {kind}")
    window = layers_of(target.config, trust_remote_code=target.trusted).window
    if target.rotation.moves_positions and window is not None and window < target.length:
        raise ValueError(
            f"it has sliding layers, which see {window:,} tokens, and the modelling file has no "
            f"sliding layers: it can serve {window:,} tokens at most"
        )
    if not target.rotation.per_layer and target.rotation.as_bands(target.length).scaled_in != "all":
        raise ValueError("the modelling file scales the queries of all layers alike")
    plain = changes({"rope_type": "default", "rope_theta": target.rope.base}, target)
    named = {"AutoModelForCausalLM": f"{FILE.removesuffix('.py')}.{CLASS}"}
    return {**plain, "architectures": [CLASS], "auto_map": named}


def computed(changed: dict[str, Any], target: Target) -> None:
    """Return None: the file has the measured numbers, and computes angles as transformers does."""


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the line of Python that loads it."""
    named = json.dumps(place, ensure_ascii=False)
    return f"AutoModelForCausalLM.from_pretrained({named}, trust_remote_code=True)"


def write(folder: Path, target: Target) -> None:
    """Write the modelling file and its numbers."""
    data = io.BytesIO()  # on a full disk the error of an archive would not say so
    np.savez_compressed(data, **_arrays(target))
    (folder / DATA).write_bytes(data.getvalue())
    base = AutoModelForCausalLM._model_mapping[type(target.config)].__name__
    text = Path(__file__).with_name("_moved.py").read_text(encoding="utf-8")
    (folder / FILE).write_text(text.replace(BASE, base), encoding="utf-8")


def _arrays(target: Target) -> dict[str, Any]:
    """Return the arrays that the file reads: of bands, or of each layer's frequencies."""
    if target.rotation.per_layer:
        layers = target.rotation.frequency_sets()
        rows = [one.inv_freq.numpy() for one in layers]
        factors = [one.attention_factor for one in layers]
        return {"inv_freq": np.stack(rows), "factor": np.array(factors)}
    bands = target.rotation.as_bands(target.length)
    arrays: dict[str, Any] = {"length": bands.length}
    if bands.query_scale is not None:
        arrays["query_scale"] = bands.query_scale.numpy()
    for index, band in enumerate(bands.bands):
        parts = {
            **{name: getattr(band, name) for name in ("first", "end", "query", "key", "start")},
            "inv_freq": band.frequencies.inv_freq,
            "factor": band.frequencies.attention_factor,
            "phase": None if band.phase is None else band.phase.float(),
            "column": band.column,
            "blended": band.blended or None,
        }
        given = {name: values for name, values in parts.items() if values is not None}
        arrays |= {f"{name}_{index}": np.asarray(values) for name, values in given.items()}
    return arrays
