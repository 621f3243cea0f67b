"""How to serve a recorded method: the command that exports it, and the keys of ``config.json``.

Computed from a run's record alone, without torch: a report needs no model.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

EXACT = 1e-6  # relative: float32 holds no more of a frequency
STILL = 1e30  # the factor of a pair that does not turn: JSON has no infinity
# Model types with rope parameters inside of another config, or of each layer type: keys at the top
# of config.json would have no effect.
INSIDE = (
    "emu3", "fuyu", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
    "got_ocr2", "laguna", "lfm3", "llama4", "mellum", "mimo_v2_flash", "mllama",
    "modernbert-decoder", "moss_transcribe_diarize", "olmo3", "qwen3_5", "qwen3_5_moe", "qwen4_exp",
)  # fmt: skip
OWN = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")  # of the embedding itself


class Serving(NamedTuple):
    """The command to type, and the keys of config.json where frequencies express the method."""

    command: str
    config: str


def serving(run: Mapping[str, Any], scaling: str, length: int) -> Serving | None:
    """Return how to serve a method of a run; None for a model or method that has no name.

    A model that was loaded in Python, or several in one sweep, are not named by the record.
    """
    model, method = run["asked"].get("model"), run["methods"].get(scaling)
    if run["model"].get("loaded") or not isinstance(model, str) or method is None:
        return None
    cells = {(cell["scaling"], cell["length"]): cell["frequencies"] for cell in run["cells"]}
    stored = run["frequencies"].get(cells.get((scaling, length)))
    if stored is None:
        return None
    parameters = _parameters(run, method, stored, length)
    engine = "hf-code" if {"bands", "layers"} & stored.keys() else "transformers"
    revision = run["asked"].get("revision")
    words = ["ropewalk", "export", model, *(["--revision", revision] if revision else [])]
    words += ["--scaling", method["given"], "--length", str(length), "--to", engine]
    command = shlex.join(words)
    if parameters is None:
        return Serving(command, "")
    shipped = run["model"].get("shipped") or {}
    parameters |= {name: shipped[name] for name in OWN if name in shipped}
    keys = {"max_position_embeddings": length, "rope_parameters": parameters}
    return Serving(command, json.dumps(keys, indent=1))


def _parameters(
    run: Mapping[str, Any], method: Mapping[str, Any], stored: Mapping[str, Any], length: int
) -> dict[str, Any] | None:
    """Return the rope parameters of recorded frequencies, as transformers reads them.

    Named where all pairs have one factor, or where the method is YaRN as transformers computes it;
    else longrope, which holds any frequencies. None for positions that move and for frequencies of
    each layer, which no config expresses, and where the keys are not at the top of the config.
    """
    if run["model"].get("type") in INSIDE:
        return None
    base, window = run["model"]["base"], run["model"]["trained_length"]
    if set(stored) != {"inv_freq", "attention_factor"} or not isinstance(base, float | int):
        return None
    inv_freq, scale = stored["inv_freq"], stored["attention_factor"]
    plain = [base ** (-2 * pair / (2 * len(inv_freq))) for pair in range(len(inv_freq))]
    factors = [
        unscaled / scaled if scaled else STILL
        for unscaled, scaled in zip(plain, inv_freq, strict=True)
    ]
    alike = all(math.isclose(factor, factors[0], rel_tol=EXACT) for factor in factors)
    factor = round(factors[0], 6)
    if alike and scale == 1 and factor >= 1:
        linear = {"rope_type": "linear", "factor": factor}
        return {"rope_theta": base} | (linear if factor > 1 else {"rope_type": "default"})
    options, extended = method.get("options") or {}, max(1.0, length / window)
    head = {"rope_theta": base, "original_max_position_embeddings": window}
    named = method["given"].partition(":")[0] == "yarn" and not method.get("file")
    if named and options.get("ramp") == "code" and options.get("critical") is None:
        turns = {name: options[name] for name in ("beta_fast", "beta_slow", "truncate")}
        factor = options["factor"] or extended
        return {"rope_type": "yarn", **head, "factor": factor, "attention_factor": scale, **turns}
    return {
        "rope_type": "longrope", **head, "factor": extended, "attention_factor": scale,
        "short_factor": factors, "long_factor": factors,
    }  # fmt: skip
