"""Put an adapter on its base model by PEFT, tried before any weight of the base is read."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.hub import attempt, attempting
from ropewalk.harness.models.files import ONLY_SAFE, download, file_hash
from ropewalk.harness.models.gguf import is_gguf
from ropewalk.harness.models.structure import without_weights
from ropewalk.harness.names import place, printable, recorded, tensors

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
OTHER_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")  # initial values that change the base
# Warnings of PEFT about what would change the numbers.
UNREAD = ("Unexpected keyword", "Found missing adapter keys")


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
    """Read an adapter; raise UserError where it does not fit a base model.

    ``where`` and ``config`` are the base model's. An adapter of a matrix that two layers share is
    not ``merged``: both would change.
    """
    if find_spec("peft") is None:
        raise UserError("--adapter needs the package peft: pip install 'ropewalk[peft]'.")
    folder = _folder(given, allow_pickle=allow_pickle)
    model = without_weights(config, trust_remote_code=trusted)
    with attempting("adapter", given), _quiet():
        own = _read_config(folder, given, where)
        shared = _changes_shared(given, where, folder, model)
        files = (folder / CONFIG, folder / (WEIGHTS if (folder / WEIGHTS).exists() else PICKLED))
        path = place(given)
        known = os.path.normpath(path.absolute()) if path.is_dir() else given.partition("@")[0]
        return Adapter(
            name=printable(known.rpartition("/")[2]),
            folder=str(folder),
            fingerprint=sha256("".join(map(file_hash, files)).encode()).hexdigest()[:16],
            kind=str(own.peft_type.value),
            base=own.base_model_name_or_path,
            merged=merged and not shared,
        )


def adapted(model: Any, adapter: Adapter) -> Any:
    """Return a base model with its adapter's weights: merged, or in layers beside its own."""
    from peft import PeftModel

    with _quiet():
        model = PeftModel.from_pretrained(model, adapter.folder, torch_device=str(model.device))
        return model.merge_and_unload(safe_merge=True) if adapter.merged else model.get_base_model()


@contextmanager
def _quiet() -> Iterator[None]:
    """Raise what PEFT warns about where it changes the numbers, and ignore its other warnings."""
    with warnings.catch_warnings(action="ignore"):
        for message in UNREAD:
            warnings.filterwarnings("error", message=message)
        yield


def _folder(given: str, *, allow_pickle: bool) -> Path:
    """Return the folder of an adapter: a local one, or that of the hub's files."""
    folder, weights = place(given).absolute(), (WEIGHTS, *[PICKLED] * allow_pickle)
    if not folder.is_dir():
        if folder.exists() or given.startswith((".", "/", "~")) or given.count("/") > 1:
            raise UserError(
                f"--adapter {printable(given)} is not a folder; give one with {CONFIG}, or a hub "
                "name (owner/name)."
            )
        name, _, revision = given.partition("@")
        wanted = [CONFIG, *weights]
        folder = attempt("adapter", given, lambda: download(name, revision or None, wanted))
    if not (folder / CONFIG).exists():
        raise UserError(
            f"{printable(given)} is not an adapter, it has no {CONFIG}; give --model for it."
        )
    if not any((folder / file).exists() for file in weights):
        raise UserError(f"the adapter {printable(given)} has no {WEIGHTS}; {ONLY_SAFE}")
    return folder


def _read_config(folder: Path, given: str, where: str) -> Any:
    """Return the adapter's config as PEFT reads it; raise UserError for one of another base.

    The last part of the base's name must be the model's.
    """
    from peft import PeftConfig

    config: Any = PeftConfig.from_pretrained(str(folder))
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise UserError(
            f"the adapter {given} ({config.peft_type.value}) adds to the prompt, which changes the "
            "length; only adapters of weights are measured."
        )
    start = json.loads((folder / CONFIG).read_bytes()).get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(OTHER_BASE):
        raise UserError(
            f"the adapter {given} belongs to changed weights of its base ({start}); save it "
            "converted (PEFT: path_initial_model_for_weight_conversion)."
        )
    base, path = config.base_model_name_or_path or "", Path(where).absolute()
    wanted = base.rstrip("/").rpartition("/")[2].lower()
    same = path.stem.lower().startswith(wanted) if is_gguf(where) else path.name.lower() == wanted
    if base and not same:
        raise UserError(
            f"the adapter {printable(given)} was trained on {printable(base)}, not on {where}; give"
            f" that --model, or, where {path.name} is a copy of it, its name as"
            f" base_model_name_or_path in {CONFIG}."
        )
    return config


def _changes_shared(given: str, where: str, folder: Path, model: Any) -> bool:
    """Return whether an adapter changes a matrix that two layers share, as tied embeddings do.

    PEFT puts the adapter on a model without memory, merges it, and raises what does not fit. It
    passes over tensors that have no place there.
    """
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    try:
        with torch.device("meta"):
            model = PeftModel.from_pretrained(model, str(folder), torch_device="cpu")
            loaded = model.load_adapter(str(folder), "default", torch_device="cpu")
    except RuntimeError as error:
        raise UserError(
            f"the adapter {printable(given)} does not fit {where}: {reason(error).rstrip('.')}; "
            "where tokens were added, merge it, and save model and tokenizer in one folder."
        ) from error
    if extra := loaded.unexpected_keys:
        raise UserError(
            f"the adapter {printable(given)} does not fit {where}: the model has no place for "
            f"{tensors(extra)}."
        )
    modules = [*model.modules()]
    uses = Counter(id(weight) for one in modules for weight in one.parameters(recurse=False))
    bases = [one.get_base_layer() for one in modules if isinstance(one, BaseTunerLayer)]
    shared = any(uses[id(weight)] > 1 for base in bases for weight in base.parameters())
    model.merge_and_unload()
    return shared
