"""Export a method to a serving engine: choose its form, write it, and name the command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.harness.encodings._config import EncodingConfig
from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.files import make_folder, new_folder
from ropewalk.harness.models.checkpoint import check_rope, open_checkpoint, open_config
from ropewalk.harness.models.files import TOKENIZER_FILES, download, reading
from ropewalk.harness.models.gguf import GGUF, is_gguf
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.config import is_rotary, rope_of
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import Plugin, load
from ropewalk.harness.serve import gguf, hf_code, transformers
from ropewalk.harness.serve._config import changed_file
from ropewalk.harness.serve._parameters import Distance, Target, forms
from ropewalk.harness.sweep.spec import Spec

FORMS = {
    "default": "the plain embedding, with this base",
    "longrope": "longrope, the one form of any frequencies (both lists are the same)",
    "bands": "a modelling file",
}
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
NATIVE = ("consolidated", "params.json")  # Mistral's files, which vLLM prefers to a config
PORTS = {"gguf": 8080, "vllm": 8000, "sglang": 30000}  # where each serves by default
MERGED = "MERGED"  # the folder of a model with its adapter's weights


@dataclass(frozen=True)
class Export:
    """What an engine reads: ``form`` is its rope type, ``changed`` the keys that change.

    ``distance`` is how far what it computes is from what was measured, None for a modelling file:
    that stores the measured numbers. ``doctor`` names the command that compares a running server.
    ``place`` is the folder or file that was written, if any.
    """

    JSON = ("engine", "scaling", "length", "form", "changed", "distance", "place", "command")

    engine: str
    module: Any
    target: Target
    form: str
    changed: dict[str, Any]
    distance: Distance | None
    doctor: str = ""
    place: Path | None = None

    @property
    def scaling(self) -> str:
        """Return the label of the method."""
        return self.target.method.label

    @property
    def length(self) -> int:
        """Return the longest input in tokens."""
        return self.target.length

    @property
    def command(self) -> str:
        """Return the command that serves it.

        It needs a folder where it cannot override the config that is read: that of a GGUF file, or
        in transformers one inside of another. An override can only set a key, not remove it.
        """
        target, changed = self.target, self.changed
        fixed = None in changed.values() or (target.nested and self.engine == "transformers")
        fixed |= not self.module.OVERRIDES or is_gguf(target.place)
        if self.place is None and fixed and self.engine != "gguf":
            command = self.module.command(changed, "NEW", target)
            return f"{command}, with NEW written by --out NEW"
        return str(self.module.command(changed, str(self.place or target.place), target))

    def __str__(self) -> str:
        """Return config, distance and command, for the model or the place that was written."""
        computed = "The numbers are stored as they were measured"
        if self.distance is not None:
            computed = f"What it computes: {self.distance}"
        title = f"{self.target.label} for {self.engine}: {FORMS.get(self.form, self.form)}"
        lines = [title, _indented(self.changed), f"{computed}.", self.command]
        return "\n".join(lines + ([self.doctor] if self.doctor else []))


def _indented(value: Any, depth: int = 0) -> str:
    """Return JSON with one key per line and every list on one line."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = "  " * (depth + 1)
    lines = (f'{inner}"{key}": {_indented(part, depth + 1)}' for key, part in value.items())
    return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"


def export(spec: Spec, engine: str | None) -> Export:
    """Return what an engine reads for the one method and length of a spec; no weight is read.

    Without an engine it is transformers, or hf-code for a method that needs a modelling file.
    Raises UserError for what the engine cannot express, with its reasons and the alternative.
    """
    if len(spec.scaling) != 1 or len(spec.length) != 1:
        raise UserError("an export has one --scaling and one --length.")
    plugin = load("engine", engine.replace("-", "_")) if engine else None
    method, trusted = load("method", spec.scaling[0]), spec.trust_remote_code
    place, commit, config = open_config(spec.model, spec.revision, trusted)
    if isinstance(config, EncodingConfig) and plugin and plugin.module is not transformers:
        raise UserError(
            f"{spec.model} is a model of the laboratory, which Ropewalk's own class in transformers"
            f" alone reads, and {engine} does not; --to transformers writes methods of frequencies."
        )
    if not is_rotary(config):
        raise UserError(f"{spec.model} has no rotary embedding: there is nothing to export.")
    rope = rope_of(config, spec.trained_length)
    check_rope(config, rope, trust_remote_code=trusted)
    (length,) = spec.lengths(rope.trained_length)
    rotation = resolve(method, rope, length)
    plugin = plugin or load("engine", "hf_code" if rotation.needs_code else "transformers")
    revision = spec.revision if commit else None
    target = Target(method, length, rope, rotation, place, config, trusted, revision)
    result = choose(target, plugin)
    if port := PORTS.get(result.engine):
        words = ["doctor", *spec.opened, "--scaling", method.given, "--length", str(length)]
        command = shlex.join(["ropewalk", *words, "--server", f"http://127.0.0.1:{port}"])
        return replace(result, doctor=f"Compare its losses while it runs: {command}")
    return result


def choose(target: Target, engine: Plugin) -> Export:
    """Return the plainest form that differs from what was measured by rounding only.

    Raises UserError where there is none, with the reason against each form.
    """
    module, name = engine.module, engine.label.replace("_", "-")
    reasons = dict[str, list[str]]()  # the forms that each excludes
    try:
        for parameters in forms(target, module.NAMED):
            form = parameters["rope_type"]
            try:
                changed = module.express(parameters, target)
                computed = module.computed(changed, target)
            except ValueError as error:
                reasons.setdefault(str(error), []).append(form)
                continue
            distance = None if computed is None else target.distance(computed)
            if distance is None or distance.close:
                return Export(name, module, target, form, changed, distance)
            reasons.setdefault(f"it computes other numbers: {distance}", []).append(form)
    except ValueError as error:
        reasons = {str(error): []}
    texts = [f"{', '.join(forms)}: {why}" for why, forms in reasons.items()]
    texts = texts if len(texts) > 1 else [*reasons]
    raise UserError(f"{name} cannot serve {target.label} ({'; '.join(texts)}).")


def how_to_serve(spec: Spec, scaling: str, length: int, engine: str | None = None) -> str:
    """Return the command that exports a method, or why nothing serves it.

    Without an engine it is transformers, or hf-code for a method that needs a modelling file. An
    export has no adapter, so with one the command is for the merged model.
    """
    changes = {"scaling": (scaling,), "length": (str(length),)}
    try:
        result = export(spec.model_copy(update=changes), None if engine == "hf-code" else engine)
    except UserError as error:
        return f"no command serves it: {error}"
    merged = {"model": MERGED, "revision": None} if spec.adapter else {}
    words = ["ropewalk", "export", *spec.model_copy(update=merged).opened, "--scaling", scaling]
    command = shlex.join([*words, "--length", str(length), "--to", result.engine])
    if spec.adapter is None:
        return command
    return (
        f"merge the adapter {spec.adapter} into the model, which is served without it (PEFT: "
        f"merge_and_unload, then save_pretrained into {MERGED}, the tokenizer too): {command}"
    )


def write(export: Export, out: Path, *, copy: bool) -> Path:
    """Write a folder or file and return it; raise UserError where something is there already."""
    target, file = export.target, out
    if export.engine == "gguf":
        if not is_gguf(target.place):
            raise UserError(
                f"--to gguf rewrites a GGUF file, and {target.place} is none: convert it with "
                "llama.cpp's convert_hf_to_gguf.py, and export that file."
            )
        file = out if out.suffix.lower() == GGUF else out / Path(target.place).name
    if os.path.lexists(file) and not (file.is_dir() and not any(file.iterdir())):
        raise UserError(f"--out {file} is there already; name a new one.")
    if export.engine == "gguf":
        make_folder(file.absolute().parent, "--out")
        gguf.rewrite(Path(target.place), file, export.changed)
        return file
    with new_folder(out, "--out") as folder:
        source = _fill(target, folder, copy=copy)
        raw = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        contents = {CONFIG: changed_file(raw, export.changed, target)}
        if (source / TOKENIZER).is_file():
            tokenizer = json.loads((source / TOKENIZER).read_text(encoding="utf-8"))
            most = tokenizer.get("model_max_length")  # above it libraries warn, or truncate
            if isinstance(most, int) and most < target.length:
                tokenizer["model_max_length"] = target.length
            contents[TOKENIZER] = tokenizer
        for name, content in contents.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, encoding="utf-8")
        if export.engine == "hf-code":
            hf_code.write(folder, target)
    return out


def _fill(target: Target, out: Path, *, copy: bool) -> Path:
    """Put weights and tokenizer into a folder, and return the one that has their config."""
    source = Path(target.place)
    if is_gguf(target.place):
        checkpoint = open_checkpoint(target.place, dtype="float32", device="cpu")
        model = load_weights(checkpoint)
        model.hf_quantizer = None  # its weights are no longer quantised
        if hasattr(model.config, "quantization_config"):  # it was dequantised just now
            del model.config.quantization_config
        with foreign(f"the weights of {target.place} cannot be written"):
            model.save_pretrained(out)
            checkpoint.tokenizer.save_pretrained(out)
        return out
    if not source.is_dir():
        with reading("files", target.place):
            wanted = ["*.json", *TOKENIZER_FILES, "model*.safetensors"]
            source = download(target.place, target.revision, wanted, unwanted="*/*")
    for file in sorted(source.iterdir()):
        left_out = file.name in (CONFIG, TOKENIZER) or file.name.startswith(NATIVE)
        if file.is_file() and not left_out:
            if copy:
                shutil.copyfile(file.resolve(), out / file.name)
            else:
                (out / file.name).symlink_to(file.resolve())
    return source
