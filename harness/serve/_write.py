"""Write an export: a folder that a tool loads, or a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers.utils import SAFE_WEIGHTS_NAME

from harness.errors import UserError, foreign
from harness.files import is_free, make_folder, new_folder, replacing
from harness.models.checkpoint import open_checkpoint
from harness.models.files import GGUF, fetch, fetch_tokenizer, fetch_weights, named_weights
from harness.models.gguf import is_gguf
from harness.models.weights import load_weights
from harness.names import resolved
from harness.serve import hf_code
from harness.serve._choose import Export
from harness.serve._rewrite import rewrite

CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
LEGACY = ("rope_scaling", "rope_theta")  # what transformers 4, mlx-lm and others read


def write(export: Export, out: Path, revision: str | None, *, copy: bool) -> Path:
    """Write a folder or file and return it; raise UserError where something is there already."""
    asked = export.asked
    if export.engine == "gguf":
        if not is_gguf(asked.place):
            raise UserError(
                f"--to gguf rewrites a GGUF file, {asked.place} is none: convert it with "
                "llama.cpp's convert_hf_to_gguf.py, and export that file."
            )
        target = out if out.suffix.lower() == GGUF else out / Path(asked.place).name
        _check_free(target)
        make_folder(target.absolute().parent, "--out")
        rewrite(Path(asked.place), target, export.changed)
        return target
    _check_free(out)
    with new_folder(out, "--out") as new:
        _fill(export, new, revision, copy=copy)
        if export.engine == "hf-code":
            hf_code.write(new, asked)
    return out


def _check_free(place: Path) -> None:
    """Raise UserError where an export would overwrite something."""
    if not is_free(place):
        raise UserError(f"--out {place} is there already; name a new one.")


def _fill(export: Export, out: Path, revision: str | None, *, copy: bool) -> None:
    """Put weights, tokenizer and the changed config into a folder."""
    asked = export.asked
    if is_gguf(asked.place):
        checkpoint = open_checkpoint(
            asked.place, revision=None, dtype="float32", device="cpu", trust_remote_code=False,
            allow_pickle=False,
        )  # fmt: skip
        model = load_weights(checkpoint)
        model.hf_quantizer = None  # its weights are no longer quantised
        del model.config.quantization_config
        with foreign(f"the weights of {asked.place} cannot be written"):
            model.save_pretrained(out)
            checkpoint.tokenizer.save_pretrained(out)
        source = out
    else:
        source = _source(asked, revision)
        for file in sorted(source.iterdir()):
            if file.is_file() and file.name not in (CONFIG, TOKENIZER):
                put = shutil.copyfile if copy else _link
                put(resolved(file), out / file.name)
    raw: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    _save(out / CONFIG, changed_config(raw, export.changed, asked.config))
    if (source / TOKENIZER).is_file():
        told = json.loads((source / TOKENIZER).read_text(encoding="utf-8"))
        least = told.get("model_max_length")  # vLLM takes the smaller one for the limit
        if isinstance(least, int) and least < asked.length:
            told["model_max_length"] = asked.length
        _save(out / TOKENIZER, told)


def changed_config(raw: dict[str, Any], changed: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return config.json with the changes, and with the keys of older readers beside the new ones.

    transformers 5 reads rope_parameters, others rope_theta and rope_scaling: both say the same.
    """
    new, text = dict(raw), raw.get("text_config")
    own = new if config.get_text_config() is config else dict(text or {})
    for name in LEGACY:
        own.pop(name, None)
    words = changed["rope_parameters"]
    if "rope_theta" in words:
        own |= {"rope_theta": words["rope_theta"], "rope_scaling": words}
        if words["rope_type"] == "default":
            own["rope_scaling"] = None
    own |= {name: value for name, value in changed.items() if name not in LEGACY}
    return new if own is new else {**new, "text_config": own}


def _source(asked: Any, revision: str | None) -> Path:
    """Return the folder of a model's files, downloaded where they are on the hub."""
    folder = Path(asked.place)
    if folder.is_dir():
        return folder
    commit = fetch(asked.place, CONFIG, revision).parent.name
    fetch_tokenizer(asked.place, commit)
    named = named_weights(asked.place, commit, asked.config, allow_pickle=False)
    fetch_weights(asked.place, commit, named or {SAFE_WEIGHTS_NAME})
    return fetch(asked.place, CONFIG, commit).parent


def _link(source: Path, target: Path) -> None:
    target.symlink_to(source)


def _save(file: Path, told: dict[str, Any]) -> None:
    if file.is_symlink():
        file.unlink()
    with replacing(file) as opened:
        opened.write((json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode())
