"""llama.cpp: by name (linear, yarn, another base) or as rope_freqs, in a rewritten GGUF file."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.integrations.gguf import read_gguf_metadata

from ropewalk.harness.files import replacing
from ropewalk.harness.models.gguf import is_gguf
from ropewalk.harness.patching.config import ORIGINAL
from ropewalk.harness.serve._parameters import RopeParameters, Target
from ropewalk.scaling.types import Frequencies

NAMED, OVERRIDES = ("default", "linear", "yarn"), True
READ = ("exaone", "granite", "llama", "mistral", "mistral3")  # these load the tensor of factors
TENSOR = "rope_freqs.weight"
SCALING, BASE, WINDOW = "rope.scaling.", "rope.freq_base", "context_length"
KINDS: dict[type, str] = {str: "STRING", int: "UINT32", float: "FLOAT32"}


def express(parameters: RopeParameters, target: Target) -> dict[str, Any]:
    """Return the keys of the file without their prefix, the architecture, and the factors."""
    kind, attention = parameters["rope_type"], target.frequencies.attention_factor
    named = kind if kind in ("linear", "yarn") else "none"
    keys = {WINDOW: target.length, BASE: float(parameters["rope_theta"]), f"{SCALING}type": named}
    if named != "none":
        keys[f"{SCALING}factor"] = parameters["factor"]
    if kind == "yarn":
        own = 1 + 0.1 * math.log(parameters["factor"])  # it always multiplies by this
        keys |= {
            f"{SCALING}original_context_length": parameters[ORIGINAL],
            f"{SCALING}yarn_beta_fast": float(parameters["beta_fast"]),
            f"{SCALING}yarn_beta_slow": float(parameters["beta_slow"]),
            f"{SCALING}attn_factor": attention / own,
        }
    if kind == "longrope":
        if target.config.model_type not in READ:
            raise ValueError(
                f"it loads {TENSOR} for {', '.join(READ)}, not for {target.config.model_type}"
            )
        keys |= {f"{SCALING}attn_factor": attention, TENSOR: parameters["long_factor"]}
    return keys


def computed(changed: dict[str, Any], target: Target) -> Frequencies:
    """Return its frequencies, each the previous one multiplied by a step in float32."""
    one, pairs = np.float32(1), target.rope.rotary_dim // 2
    base = np.float32(changed[BASE])
    step, plain = np.float32(float(base) ** (-1 / pairs)), [one]
    for _ in range(pairs - 1):
        plain.append(plain[-1] * step)
    inv_freq = np.array(plain) / np.array(changed.get(TENSOR, [1.0]), dtype=np.float32)
    scale = changed.get(f"{SCALING}attn_factor", 1.0)
    slow = one / np.float32(changed.get(f"{SCALING}factor", 1.0))
    if changed[f"{SCALING}type"] == "yarn":
        window = changed[f"{SCALING}original_context_length"]
        first, last = (
            pairs * math.log(window / (changed[f"{SCALING}{bound}"] * 2 * math.pi)) / math.log(base)
            for bound in ("yarn_beta_fast", "yarn_beta_slow")
        )
        first, last = max(0, math.floor(first)), min(2 * pairs - 1, math.ceil(last))
        ramp = (np.arange(pairs, dtype=np.float32) - first) / np.float32(max(0.001, last - first))
        kept = 1 - ramp.clip(0, 1)
        inv_freq = inv_freq * slow * (1 - kept) + inv_freq * kept
        scale *= 1 + 0.1 * math.log(changed[f"{SCALING}factor"])
    else:
        inv_freq = inv_freq * slow
    return Frequencies(torch.from_numpy(inv_freq.astype(np.float32)), scale)


def command(changed: dict[str, Any], place: str, target: Target) -> str:
    """Return the command that serves it: a rewritten file, or the same keys put over the file's.

    Not the flags for rotary embeddings: sliding layers do not read them, and the server admits no
    more tokens than the window in the file.
    """
    new = f"llama-server -m NEW.gguf -c {target.length}, with NEW.gguf written by --out NEW.gguf"
    if not is_gguf(target.place):
        return f"{new} from the model's GGUF file, which llama.cpp's convert_hf_to_gguf.py makes"
    if place == target.place and TENSOR in changed:
        return new
    line = f"llama-server -m {shlex.quote(place)} -c {target.length}"
    if place != target.place:
        return line
    arch = read_gguf_metadata(place)[0]["general.architecture"]
    keys = (f"{arch}.{name}={type(value).__name__}:{value}" for name, value in changed.items())
    return f"{line} --override-kv {','.join(keys)}"


def rewrite(source: Path, target: Path, changed: dict[str, Any]) -> None:
    """Write ``source`` to ``target`` with changed keys and factors; all other data stay.

    The keys of a scaling that the file had, and its tensor of factors, are left out.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    keys = {f"{arch}.{name}": value for name, value in changed.items() if name != TENSOR}
    with replacing(target) as file:
        writer = GGUFWriter(file.name, arch, endianess=reader.endianess)
        writer.data_alignment = reader.alignment
        for name, field in reader.fields.items():
            own = name.startswith(("GGUF.", f"{arch}.{SCALING}")) or name in keys
            if not own and name != "general.architecture":
                kinds = field.types
                inner = kinds[-1] if len(kinds) > 1 else None
                writer.add_key_value(name, field.contents(), kinds[0], sub_type=inner)
        for name, value in keys.items():
            writer.add_key_value(name, value, getattr(GGUFValueType, KINDS[type(value)]))
        tensors = [(one.name, one.data, one.tensor_type) for one in reader.tensors]
        tensors = [tensor for tensor in tensors if tensor[0] != TENSOR]
        if TENSOR in changed:
            factors = np.array(changed[TENSOR], dtype=np.float32)
            tensors.insert(0, (TENSOR, factors, GGMLQuantizationType.F32))
        for name, data, kind in tensors:
            writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, data, _ in tensors:
            writer.write_tensor_data(data, tensor_endianess=reader.endianess)
        writer.close()
