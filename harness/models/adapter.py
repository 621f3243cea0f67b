"""Put an adapter on its base model by PEFT."""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ropewalk.harness.errors import UserError, printable
from ropewalk.harness.files import expanded, recorded
from ropewalk.harness.models.files import ONLY_SAFE, download, file_hash, reading, tensors
from ropewalk.harness.models.gguf import is_gguf

log = logging.getLogger("ropewalk")

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
OTHER_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")  # initial values that change the base
# Warnings of PEFT about what would change the numbers.
UNREAD = ("Unexpected keyword", "Found missing adapter keys")


@dataclass(frozen=True)
class Adapter:
    """An adapter in its folder; ``merge`` says whether its weights may be added to the base's.

    ``metadata`` is what a record holds: not the folder, which may change.
    """

    name: str
    folder: str
    metadata: dict[str, Any]
    merge: bool


def open_adapter(name: str, where: str, *, allow_pickle: bool, merge: bool) -> Adapter:
    """Read an adapter's config; raise UserError for one that changes more than weights.

    A base of another name than the model at ``where`` is a warning: it may be a copy.
    """
    if find_spec("peft") is None:
        raise UserError("--adapter needs the package peft: pip install 'ropewalk[peft]'.")
    from peft import PeftConfig

    path, allowed = expanded(name), [WEIGHTS, *[PICKLED] * allow_pickle]
    with reading("adapter", name), warnings.catch_warnings(action="ignore"):
        if path.is_dir():
            folder, last = path.absolute(), os.path.normpath(path.absolute())
        else:
            last, _, revision = name.partition("@")
            folder = download(last, revision or None, [CONFIG, *allowed])
        files = [folder / file for file in allowed if (folder / file).exists()][:1]
        if not files:
            raise UserError(f"the adapter {name} has no {WEIGHTS}; {ONLY_SAFE}.")
        warnings.filterwarnings("error", message=UNREAD[0])
        config: Any = PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning or config.is_adaption_prompt:
            raise UserError(
                f"the adapter {name} ({config.peft_type.value}) adds to the prompt, which changes "
                "the length; only adapters of weights are measured."
            )
        start = getattr(config, "init_lora_weights", None)
        if isinstance(start, str) and start.lower().startswith(OTHER_BASE):
            raise UserError(
                f"the adapter {name} belongs to changed weights of its base ({start}); save it "
                "converted (PEFT: path_initial_model_for_weight_conversion)."
            )
        base = config.base_model_name_or_path
        trained, model = Path(base or "").name.lower(), Path(where).name.lower()
        if not (model.startswith(trained) if is_gguf(where) else trained in ("", model)):
            log.warning("The adapter %s names %s as its base; the model is %s.", name, base, where)
        hashes = (file_hash(file) for file in (folder / CONFIG, *files))
        metadata = {
            "fingerprint": sha256("".join(hashes).encode()).hexdigest()[:16],
            "kind": str(config.peft_type.value),
            "base": base and recorded(base),
        }
        return Adapter(printable(last.rpartition("/")[2]), str(folder), metadata, merge)


def adapted(model: Any, adapter: Adapter) -> Any:
    """Return a base model with its adapter's weights: merged, or in layers beside its own.

    An adapter of a matrix that two layers share, as tied embeddings do, is not merged: both would
    change. Raises UserError for tensors that PEFT passes over.
    """
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    with warnings.catch_warnings(action="ignore"):
        for message in UNREAD:
            warnings.filterwarnings("error", message=message)
        device = str(model.device)
        peft = PeftModel.from_pretrained(model, adapter.folder, torch_device=device)
        loaded = peft.load_adapter(adapter.folder, "default", torch_device=device)
        if extra := loaded.unexpected_keys:
            raise UserError(
                f"the adapter {adapter.name} does not fit: the model has no place for "
                f"{tensors(extra)}."
            )
        modules = [*peft.modules()]
        uses = Counter(id(w) for module in modules for w in module.parameters(recurse=False))
        bases = [one.get_base_layer() for one in modules if isinstance(one, BaseTunerLayer)]
        shared = any(uses[id(weight)] > 1 for base in bases for weight in base.parameters())
        if shared or not adapter.merge:
            return peft.get_base_model()
        return peft.merge_and_unload(safe_merge=True)
