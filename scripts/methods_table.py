"""The table of all methods, read from their files and from what they return at one geometry.

``python -m scripts.methods_table`` prints the page ``scaling/methods.md``.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pandas as pd
import torch
from transformers import LlamaConfig

from harness.errors import UserError
from harness.methods.resolve import resolve
from harness.patching.config import rope_of
from harness.plugins import METHOD, Plugin, load, names, parameters
from harness.reports.writing.tables import markdown
from harness.serve._export import choose
from harness.serve._parameters import Target
from scaling.types import Bands, Rotation

WINDOW = 4096
CONFIG = LlamaConfig(
    hidden_size=512, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=4,
    max_position_embeddings=WINDOW,
)  # fmt: skip
ENGINES = ("transformers", "vllm", "sglang", "gguf", "mlx")
PAPER = re.compile(r"(?:arXiv:)?\b(\d{2})(\d{2}\.\d{5})\b")
HEADER = """# All methods

One row per method, made from the files of this folder by `python -m scripts.methods_table`.

- *Changes*: the frequencies of the channel pairs, the positions of query-key pairs (by channel or
  by head if they differ there), or the logits.
- *Inside the window*: whether the method, with its default options, changes the model at its
  trained length.
- *Calibration*: what has to be found on your model first.
- *Served by*: the engines whose config expresses it for a Llama at four windows; "all" is
  transformers, vLLM, SGLang, llama.cpp and MLX. Others need a modelling file for transformers
  (`ropewalk export --to hf-code`).

"""
DIFFERENCES = """
## Where a method differs from its paper or its authors' code

"""
OUT_OF_SCOPE = """
## Out of scope

- Selection of tokens or of cached keys (ReAttention, InfLLM, LongHeads, TokenSelect, InfiniteHiP,
  EM-LLM, ParallelComp): which keys are read depends on their content, not on positions.
- Positions from parsed code (HiRoPE), and edits of hidden states (arXiv:2405.18009).
- Methods that train (DroPE, SSMax, AdaRoPE, RoPE-ID, RePo, LongLoRA, PoSE, CLEX): their checkpoints
  are measured as they are.
- Methods whose formulas could not be read (AdaGroPE, DoPE).
"""


@dataclass(frozen=True)
class Entry:
    """What one method is: its file's facts, and what it returns at four trained windows."""

    name: str
    method: Plugin
    far: Rotation
    near: Rotation

    @property
    def module(self) -> ModuleType:
        """The method's file."""
        return self.method.module


def entries() -> list[Entry]:
    """Return every built-in method; those that read a file are given one."""
    rope = rope_of(CONFIG)
    with TemporaryDirectory() as folder:
        files = _files(Path(folder))
        result = []
        for name in names("method"):
            method = load("method", f"{name}:{files[name]}" if name in files else name)
            far, near = (resolve(method, rope, length) for length in (4 * WINDOW, WINDOW))
            result.append(Entry(name, method, far, near))
    return result


def _files(folder: Path) -> dict[str, str]:
    """Write the files without which a method is an error; return the options that name them."""
    heads, pairs = CONFIG.num_attention_heads, CONFIG.hidden_size // CONFIG.num_attention_heads // 2
    ranks = torch.arange(CONFIG.num_hidden_layers * heads).reshape(-1, heads).double()
    lists = {"short_factor": [1.0] * pairs, "long_factor": [2.0 + i / pairs for i in range(pairs)]}
    (folder / "heads.json").write_text(json.dumps({"outlier_shares": ranks.tolist()}))
    (folder / "factors.json").write_text(json.dumps(lists))
    return {
        "longrope": f"factors={folder / 'factors.json'}",
        "ms_poe": f"heads={folder / 'heads.json'}",
    }


def method_table() -> pd.DataFrame:
    """Return one row per method; see ``HEADER`` for the columns."""
    every = entries()
    plain = next(one.near for one in every if one.name == "none").fingerprint
    return pd.DataFrame(
        {
            "method": one.name,
            "changes": _changes(one.far),
            "inside the window": "unchanged" if one.near.fingerprint == plain else "changed",
            "calibration": _calibration(one),
            "served by": _served(one),
            "year": _year(one.module),
            "paper": _paper(one.module),
            "authors' code": getattr(one.module, "CODE", "–"),
        }
        for one in every
    )


def _changes(rotation: Rotation) -> str:
    if rotation.per_layer:
        return "frequencies of each layer"
    if not isinstance(rotation, Bands):
        scaled = rotation.last.attention_factor != 1
        return "frequencies, logits" if scaled else "frequencies"
    what = [] if all(band.unmoved for band in rotation.bands) else [_positions(rotation)]
    scaled = rotation.query_scale is not None or rotation.last.attention_factor != 1
    return ", ".join([*what, *["logits"] * scaled])


def _positions(bands: Bands) -> str:
    if bands.by_head:
        return "positions by head"
    if any(band.column is not None for band in bands.bands):
        return "positions by channel"
    return "positions, blended" if any(band.blended for band in bands.bands) else "positions"


def _calibration(one: Entry) -> str:
    known = parameters(one.module, "method")
    if "heads" in known:
        return "needed: heads" if one.method.options["heads"] else "group sizes; optionally heads"
    if "factors" in known:
        return "needed: factors"
    if "span" in known:
        return "span, for other models than the authors'"
    return "made for training" if hasattr(one.module, "TRAINING") else "none"


def _served(one: Entry) -> str:
    """Return the engines that express a method at four windows from their config."""
    if one.far.needs_code or one.far.stateful:
        return "hf-code"
    target = Target(one.name, 4 * WINDOW, rope_of(CONFIG), one.far, "model", CONFIG)
    served = []
    for engine in ENGINES:
        try:
            choose(target, load("engine", engine), one.method)
        except UserError:
            continue
        served.append(engine)
    return "all" if len(served) == len(ENGINES) else ", ".join(served)


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]


def _year(module: ModuleType) -> str:
    found = PAPER.search(_first_line(module))
    return str(getattr(module, "YEAR", f"20{found[1]}" if found else "–"))


def _paper(module: ModuleType) -> str:
    found = PAPER.search(_first_line(module))
    if found:
        return f"arXiv:{found[1]}{found[2]}"
    given = re.search(r"\(([^()]*)\)\.$", _first_line(module))
    return given[1] if given else "–"


def differences() -> dict[str, list[str]]:
    """Return what the docstring of each method says of how it differs from paper or code."""
    result = {}
    for name in names("method"):
        module = load("method", name).module
        functions = [getattr(module, part, None) for part in METHOD]
        text = "\n\n".join(inspect.getdoc(one) or "" for one in functions if one is not None)
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        if found := [part for part in paragraphs if part.startswith("Differs ")]:
            result[name] = found
    return result


def page() -> str:
    """Return ``scaling/methods.md``."""
    lines = [f"- `{name}`: {' '.join(found)}\n" for name, found in differences().items()]
    return HEADER + markdown(method_table()) + DIFFERENCES + "".join(lines) + OUT_OF_SCOPE


if __name__ == "__main__":
    print(page(), end="")
