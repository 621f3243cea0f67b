"""A folder with a small modelling file: moved positions, or frequencies of each layer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM

from harness.files import replacing
from harness.models.structure import layers_of
from harness.serve._config import changes
from harness.serve._types import Asked, Words
from scaling.types import Bands, PerLayerFrequencies, Rotation, needs_code

NAMED = ("bands",)
# Families on which the file's losses were compared with those that are measured.
READ = ("cohere", "gemma2", "granite", "llama", "mistral", "qwen2", "qwen3")
FILE, DATA, CLASS = "modeling_moved.py", "moved_positions.npz", "MovedForCausalLM"
BASE = "LlamaForCausalLM"  # in the file as it stands here


def express(words: Words, asked: Asked) -> dict[str, Any]:
    """Return the changes of config.json: the plain embedding, and the class of the file."""
    if not needs_code(asked.rotation):
        message = f"{asked.scaling} changes frequencies alone. The nearest: --to transformers, "
        message += "whose config.json carries them without code"
        raise ValueError(message)
    kind = asked.config.model_type
    if asked.slotted or kind not in READ:
        raise ValueError(f"the file is checked for {', '.join(READ)}, not for {kind}")
    window = layers_of(asked.config, trust_remote_code=asked.trusted).window
    moved = isinstance(asked.rotation, Bands)
    if moved and window is not None and window < asked.length:
        message = f"it has sliding layers, which see {window:,} tokens, and the file has none: it "
        message += f"can serve {window:,} tokens at most"
        raise ValueError(message)
    plain = changes({"rope_type": "default", "rope_theta": asked.rope.base}, asked)
    named = {"AutoModelForCausalLM": f"{FILE.removesuffix('.py')}.{CLASS}"}
    return {**plain, "architectures": [CLASS], "auto_map": named}


def computed(changed: dict[str, Any], asked: Asked) -> None:
    """Return nothing: numbers are stored as they are, and angles are transformers' own."""


def command(changed: dict[str, Any], place: str, asked: Asked) -> str:
    """Return the line of Python that loads it."""
    new = place == asked.place
    named = json.dumps("NEW" if new else place, ensure_ascii=False)
    line = f"AutoModelForCausalLM.from_pretrained({named}, trust_remote_code=True)"
    return line + ", where --out NEW is written" * new


def write(folder: Path, asked: Asked) -> list[Path]:
    """Write the modelling file and its numbers; return the files."""
    data = io.BytesIO()  # of a full disk the archive's own error would say nothing
    np.savez_compressed(data, **_numbers(asked.rotation))
    with replacing(folder / DATA) as file:
        file.write(data.getvalue())
    own = AutoModelForCausalLM._model_mapping[type(asked.config)].__name__
    text = Path(__file__).with_name("_moved.py").read_text(encoding="utf-8")
    with replacing(folder / FILE) as file:
        file.write(text.replace(BASE, own).encode())
    return [folder / FILE, folder / DATA]


def _numbers(bands: Rotation) -> dict[str, Any]:
    """Return what the file reads: of bands, or of each layer's frequencies."""
    if isinstance(bands, PerLayerFrequencies):
        rows = [one.inv_freq.numpy() for one in bands.layers]
        factors = [one.attention_factor for one in bands.layers]
        return {"inv_freq": np.stack(rows), "factor": np.array(factors)}
    assert isinstance(bands, Bands)
    held: dict[str, Any] = {"length": bands.length}
    if bands.query_scale is not None:
        held["query_scale"] = bands.query_scale.numpy()
    for index, band in enumerate(bands.bands):
        for name in ("first", "end", "query", "key"):
            held[f"{name}_{index}"] = getattr(band, name).numpy()
        held[f"start_{index}"] = band.start
        held[f"inv_freq_{index}"] = band.frequencies.inv_freq.numpy()
        held[f"factor_{index}"] = band.frequencies.attention_factor
        if band.phase is not None:
            held[f"phase_{index}"] = band.phase.float().numpy()
    return held
