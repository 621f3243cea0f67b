"""Export a method to a serving engine: choose its form, write it, and name the command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ropewalk.harness.encodings._config import EncodingConfig
from ropewalk.harness.errors import UserError, foreign
from ropewalk.harness.files import make_folder, new_folder, replacing
from ropewalk.harness.models.checkpoint import check_rope, open_checkpoint
from ropewalk.harness.models.config import open_config
from ropewalk.harness.models.files import TOKENIZER_FILES, download, reading
from ropewalk.harness.models.gguf import GGUF, is_gguf
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.config import is_rotary, rope_of
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import Plugin, load
from ropewalk.harness.serve import gguf, hf_code, transformers
from ropewalk.harness.serve._parameters import AT_THE_TOP, Distance, RopeParameters, Target, forms
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling.types import StatefulRope

FORMS = {
    "default": "the plain embedding at another base",
    "longrope": "longrope, the one form of any frequencies (both lists are the same)",
    "bands": "a modelling file",
}
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
NATIVE = ("consolidated", "params.json")  # Mistral's files, which vLLM prefers to a config
LEGACY = ("rope_scaling", "rope_theta")  # what transformers 4, mlx-lm and others read
PORTS = {"gguf": 8080, "vllm": 8000, "sglang": 30000}  # where each serves by default
MERGED = "MERGED"  # the folder of a model with its adapter's weights


@dataclass(frozen=True)
class Export:
    """What an engine reads: ``form`` is its rope type, ``changed`` the keys that change.

    ``distance`` is how far what it computes is from what was measured, None for a modelling file:
    that stores the measured numbers. ``doctor`` is the command that compares a running server.
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
        inside = target.text is not target.config
        fixed = None in changed.values() or (inside and self.engine == "transformers")
        fixed |= not self.module.OVERRIDES or is_gguf(target.place)
        if self.place is None and fixed and self.engine != "gguf":
            command = self.module.command(changed, "NEW", target)
            return f"{command}, with NEW written by --out NEW"
        return str(self.module.command(changed, str(self.place or target.place), target))

    @property
    def config(self) -> str:
        """Return the changed keys as JSON, one key per line and every list on one line."""
        return _indented(self.changed)

    def __str__(self) -> str:
        """Return config, distance and command, for the model or the place that was written."""
        target, form = self.target, FORMS.get(self.form, self.form)
        if self.form == "default" and torch.equal(
            target.frequencies.inv_freq, target.rope.inv_freq()
        ):
            form = "the plain embedding as it is"
        computed = "The numbers are stored as they were measured"
        if self.distance is not None:
            computed = f"What it computes: {self.distance}"
        title = f"{target.label} for {self.engine}: {form}"
        compare = [f"Compare its losses while it runs: {self.doctor}"] if self.doctor else []
        return "\n".join([title, self.config, f"{computed}.", self.command, *compare])


def _indented(value: Any, depth: int = 0) -> str:
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
    if plugin is None:
        plugin = load("engine", "hf_code" if rotation.needs_code else "transformers")
    revision = spec.revision if commit else None
    target = Target(method, length, rope, rotation, place, config, trusted, revision)
    result = choose(target, plugin)
    if result.engine not in PORTS:
        return result
    words = ["ropewalk", "doctor", *spec.opened, "--scaling", method.given, "--length", str(length)]
    words += ["--server", f"http://127.0.0.1:{PORTS[result.engine]}"]
    return replace(result, doctor=shlex.join(words))


def choose(target: Target, engine: Plugin) -> Export:
    """Return the plainest form that differs from what was measured by rounding only.

    Raises UserError where there is none, with the engine's reasons and the nearest form.
    """
    module, name = engine.module, engine.label.replace("_", "-")
    reasons = dict[str, list[str]]()  # the forms that each excludes
    nearest: tuple[float, str] | None = None
    try:
        for parameters in _known_forms(target, module.NAMED):
            form = parameters["rope_type"]
            try:
                changed = module.express(parameters, target)
            except ValueError as error:
                reasons.setdefault(str(error), []).append(form)
                continue
            computed = module.computed(changed, target)
            distance = None if computed is None else target.distance(computed)
            if distance is None or distance.close:
                return Export(name, module, target, form, changed, distance)
            this = (distance.factor, f"the nearest is {form}, where {distance}")
            nearest = min(this, nearest or this)
    except ValueError as error:
        reasons = {str(error): []}
    texts = [f"{', '.join(forms)}: {why}" for why, forms in reasons.items()]
    texts = [*(texts if len(reasons) > 1 else reasons), *([nearest[1]] if nearest else [])]
    raise UserError(f"{name} cannot serve {target.label} ({'; '.join(texts)}).")


def _known_forms(target: Target, known: tuple[str, ...]) -> Iterable[RopeParameters]:
    """Return the forms to try, the plainest first; raise ValueError where there can be none."""
    rotation = target.rotation
    if rotation.needs_code and "bands" in known:
        return [{"rope_type": "bands"}]
    if not isinstance(rotation, StatefulRope):
        return [form for form in forms(target) if form["rope_type"] in (*known, "longrope")]
    if "dynamic" not in known:
        raise ValueError(
            "only transformers has a base that follows the length step by step. Use mode=frozen, "
            "the base of one length"
        )
    return [{**rotation.rope_parameters, "rope_theta": target.rope.base}]


class Expressed(NamedTuple):
    """The command that exports a method, and what the engine reads.

    Where nothing serves the method, ``command`` and ``config`` are empty, and ``text`` has the
    reason.
    """

    command: str
    text: str
    config: str = ""


def express(spec: Spec, scaling: str, length: int, engine: str | None = None) -> Expressed:
    """Return how to serve a method: the command that exports it, and the keys that change.

    Without an engine it is transformers, or hf-code for a method that needs a modelling file. An
    export has no adapter, so with one the command is for the merged model.
    """
    asked = spec.model_copy(update={"scaling": (scaling,), "length": (str(length),)})
    try:
        result = export(asked, None if engine == "hf-code" else engine)
    except UserError as error:
        return Expressed("", f"no command serves it: {error}")
    merged = {"model": MERGED, "revision": None} if spec.adapter else {}
    words = ["ropewalk", "export", *spec.model_copy(update=merged).opened, "--scaling", scaling]
    command = text = shlex.join([*words, "--length", str(length), "--to", result.engine])
    if spec.adapter is not None:
        text = (
            f"merge the adapter {spec.adapter} into the model, which is served without it (PEFT: "
            f"merge_and_unload, then save_pretrained into {MERGED}, the tokenizer too): {command}"
        )
    return Expressed(command, text, result.config)


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
        _fill(export, folder, copy=copy)
        if export.engine == "hf-code":
            hf_code.write(folder, target)
    return out


def _fill(export: Export, out: Path, *, copy: bool) -> None:
    """Put weights, tokenizer and the changed config into a folder."""
    target = export.target
    if is_gguf(target.place):
        checkpoint = open_checkpoint(target.place, dtype="float32", device="cpu")
        model = load_weights(checkpoint)
        model.hf_quantizer = None  # its weights are no longer quantised
        if hasattr(model.config, "quantization_config"):  # it was dequantised just now
            del model.config.quantization_config
        with foreign(f"the weights of {target.place} cannot be written"):
            model.save_pretrained(out)
            checkpoint.tokenizer.save_pretrained(out)
        source = out
    else:
        source = _model_folder(target)
        for file in sorted(source.iterdir()):
            left_out = file.name in (CONFIG, TOKENIZER) or file.name.startswith(NATIVE)
            if file.is_file() and not left_out:
                if copy:
                    shutil.copyfile(file.resolve(), out / file.name)
                else:
                    (out / file.name).symlink_to(file.resolve())
    raw: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    _save(out / CONFIG, _changed_file(raw, export.changed, target))
    if (source / TOKENIZER).is_file():
        tokenizer = json.loads((source / TOKENIZER).read_text(encoding="utf-8"))
        most = tokenizer.get("model_max_length")  # above it libraries warn, or truncate
        if isinstance(most, int) and most < target.length:
            tokenizer["model_max_length"] = target.length
        _save(out / TOKENIZER, tokenizer)


def _changed_file(raw: dict[str, Any], changed: dict[str, Any], target: Target) -> dict[str, Any]:
    """Return config.json with the changes, and with the keys of older readers beside the new ones.

    transformers 5 reads rope_parameters, others rope_theta and rope_scaling: both say the same.
    """
    inside = target.text is not target.config
    text = dict(raw.get("text_config") or {}) if inside else dict(raw)
    for name in LEGACY:
        text.pop(name, None)
    parameters = changed["rope_parameters"]
    if "rope_theta" in parameters:
        plain = parameters["rope_type"] == "default"
        text |= {name: parameters[name] for name in AT_THE_TOP if name in parameters}
        text["rope_scaling"] = None if plain else parameters
    text |= {name: value for name, value in changed.items() if name not in LEGACY}
    removed = {name for name, value in changed.items() if value is None}
    text = {name: value for name, value in text.items() if name not in removed}
    return {**raw, "text_config": text} if inside else text


def _model_folder(target: Target) -> Path:
    """Return the folder of a model's files, downloaded where they are on the hub."""
    folder = Path(target.place)
    if folder.is_dir():
        return folder
    with reading("files", target.place):
        wanted = ["*.json", *TOKENIZER_FILES, "model*.safetensors"]
        return download(target.place, target.revision, wanted, unwanted="*/*")


def _save(file: Path, content: dict[str, Any]) -> None:
    with replacing(file) as opened:
        opened.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
