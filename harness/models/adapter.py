"""Put an adapter on its base model by PEFT, checked before any weight of the base is read."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from harness.errors import UserError, reason
from harness.hub import attempt
from harness.models.files import ONLY_SAFE, exists, fetch, file_hash
from harness.models.gguf import is_gguf
from harness.models.structure import without_weights
from harness.names import place, printable, recorded, tensors

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
OTHER_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")  # initial values that change the base
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Adapter:
    """An adapter in its folder; ``merged`` says whether its weights are added to the base's."""

    name: str
    folder: str
    fingerprint: str
    kind: str
    base: str | None
    merged: bool

    @property
    def metadata(self) -> dict[str, Any]:
        """What a record holds: not the folder, which may change."""
        names = ("fingerprint", "kind", "merged")
        base = self.base and recorded(self.base)
        return {**{name: getattr(self, name) for name in names}, "base": base}


def open_adapter(
    given: str, where: str, config: Any, *, trusted: bool, allow_pickle: bool, merged: bool
) -> Adapter:
    """Read an adapter's config and the names of its tensors; raise UserError where it does not fit.

    ``where`` and ``config`` are the base model's. An adapter fits if PEFT can merge it into such a
    model and finds every tensor that it wants, in the right shape, and no others. An adapter of a
    matrix that two layers share is not ``merged``: both would change.
    """
    if find_spec("peft") is None:
        raise UserError("--adapter needs the package peft: pip install 'ropewalk[peft]'.")
    folder = _folder(given, allow_pickle=allow_pickle)
    weights = _weights(folder, given, allow_pickle=allow_pickle)
    own_config = _checked_config(folder, given)
    base = own_config.base_model_name_or_path
    _check_base(given, base, where)
    shapes = attempt("adapter", given, lambda: _shapes(weights))
    model = without_weights(config, trust_remote_code=trusted)
    wanted, own, shared = attempt("adapter", given, lambda: _wanted(model, own_config))
    _check_fit(given, where, shapes, wanted, own)
    hashes = "".join(file_hash(path) for path in (folder / CONFIG, weights))
    return Adapter(
        name=printable(_name(given)),
        folder=str(folder),
        fingerprint=sha256(hashes.encode()).hexdigest()[:16],
        kind=str(own_config.peft_type.value),
        base=base,
        merged=merged and not shared,
    )


def adapted(model: Any, adapter: Adapter) -> Any:
    """Return a base model with its adapter's weights: merged, or in layers beside its own."""
    from peft import PeftModel

    with warnings.catch_warnings(action="ignore"):
        model = PeftModel.from_pretrained(model, adapter.folder, torch_device=str(model.device))
        return model.merge_and_unload(safe_merge=True) if adapter.merged else model.get_base_model()


def _name(given: str) -> str:
    """Return an adapter's name: its folder's, or on the hub the last part, less the revision."""
    path = place(given)
    if path.is_dir():
        return os.path.normpath(path.absolute()).rpartition("/")[2]
    return given.partition("@")[0].rpartition("/")[2]


def _folder(given: str, *, allow_pickle: bool) -> Path:
    """Return the folder of an adapter: a local one, or that of the hub's files."""
    path = place(given)
    if path.is_dir():
        return path.absolute()
    if path.exists() or given.startswith((".", "/", "~")) or given.count("/") > 1:
        raise UserError(
            f"--adapter {printable(given)} is not a folder; give one with {CONFIG}, or a hub name "
            "(owner/name)."
        )
    return Path(attempt("adapter", given, lambda: _fetched(given, allow_pickle=allow_pickle)))


def _fetched(given: str, *, allow_pickle: bool) -> Path:
    """Return the folder of both files of an adapter on the hub."""
    name, _, revision = given.partition("@")
    folder = fetch(name, CONFIG, revision or None).parent
    safe = not allow_pickle or exists(name, WEIGHTS, folder.name)
    return fetch(name, WEIGHTS if safe else PICKLED, folder.name).parent


def _weights(folder: Path, given: str, *, allow_pickle: bool) -> Path:
    """Return the file of the weights that PEFT reads."""
    if not (folder / CONFIG).exists():
        raise UserError(
            f"{printable(given)} is not an adapter, it has no {CONFIG}; give --model for it."
        )
    weights = folder / WEIGHTS
    if not weights.exists() and allow_pickle:
        weights = folder / PICKLED
    if not weights.exists():
        raise UserError(f"the adapter {printable(given)} has no {WEIGHTS}; {ONLY_SAFE}")
    return weights


def _checked_config(folder: Path, given: str) -> Any:
    """Return the adapter's config as PEFT reads it, whole."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftConfig

    raw = attempt("adapter", given, lambda: dict(json.loads((folder / CONFIG).read_bytes())))
    kind = reason(raw.get("peft_type"))
    if kind not in PEFT_TYPE_TO_CONFIG_MAPPING:
        raise UserError(
            f"the adapter {given} is of the kind {kind}, which this PEFT does not read."
        )
    with warnings.catch_warnings():
        # A field that PEFT does not know may change the numbers.
        warnings.filterwarnings("error", message="Unexpected keyword")
        config: Any = attempt("adapter", given, lambda: PeftConfig.from_pretrained(str(folder)))
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise UserError(
            f"the adapter {given} ({kind}) adds to the prompt, which changes the length; only "
            "adapters of weights are measured."
        )
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(OTHER_BASE):
        raise UserError(
            f"the adapter {given} belongs to changed weights of its base ({start}); save it "
            "converted (PEFT: path_initial_model_for_weight_conversion)."
        )
    if raw.get("megatron_config"):
        raise UserError(f"the adapter {given} needs Megatron, which is not supported.")
    return config


def _check_base(given: str, base: str | None, where: str) -> None:
    """Raise UserError where the last part of the base's name is not the model's."""
    if not base:
        return
    wanted = base.rstrip("/").rpartition("/")[2].lower()
    path = Path(where).absolute()
    same = path.stem.lower().startswith(wanted) if is_gguf(where) else path.name.lower() == wanted
    if not same:
        raise UserError(
            f"the adapter {printable(given)} was trained on {printable(base)}, not on {where}; give"
            f" that --model, or, where {path.name} is a copy of it, its name as"
            f" base_model_name_or_path in {CONFIG}."
        )


def _shapes(weights: Path) -> Shapes:
    if weights.name == PICKLED:
        held = torch.load(weights, map_location="meta", weights_only=True)
        return {name: tuple(tensor.shape) for name, tensor in held.items()}
    with safe_open(weights, "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # it is no mapping


def _wanted(model: Any, config: Any) -> tuple[Shapes, Shapes, bool]:
    """Return the shapes that PEFT wants of an adapter, the model's own, and if a matrix is shared.

    The model is without memory. Raises what PEFT raises where it cannot add or merge the adapter.
    """
    from peft import PeftModel, get_peft_model_state_dict

    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        model = PeftModel(model, config)
        own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        state = get_peft_model_state_dict(model, save_embedding_layers=False)
        shared = _changes_shared(model)
        model.merge_and_unload()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}, own, shared


def _changes_shared(model: Any) -> bool:
    """Return whether an adapter changes a matrix that two layers share, as tied embeddings do."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    modules = [*model.modules()]
    uses = Counter(id(weight) for one in modules for weight in one.parameters(recurse=False))
    bases = (one.get_base_layer() for one in modules if isinstance(one, BaseTunerLayer))
    return any(uses[id(weight)] > 1 for base in bases for weight in base.parameters())


def _check_fit(given: str, where: str, shapes: Shapes, wanted: Shapes, own: Shapes) -> None:
    """Raise UserError unless an adapter has exactly the tensors that it must have."""
    places = {**own, **wanted}
    wrong = [name for name, shape in shapes.items() if places.get(name) != shape]
    # PEFT saves the resized matrix of a whole module under more names, which are nowhere.
    name = next((name for name in wrong if name in places), wrong[0] if wrong else None)
    missing = sorted(wanted.keys() - shapes.keys())
    if name is None and not missing:
        return
    if name is None:
        why = f"it lacks {tensors(missing)}"
    elif name not in places:
        why = f"its tensor {printable(name)} has no place there"
    elif name in own or f"{name.removesuffix('.weight')}.original_module.weight" in own:
        why = f"it changes {printable(name)} from {places[name]} to {shapes[name]}, as where tokens"
        why += " are added; merge it, and save model and tokenizer in one folder"
    else:
        why = f"{printable(name)} is {shapes[name]}, by the model {places[name]}"
    raise UserError(f"the adapter {printable(given)} does not fit {where}: {why}.")
