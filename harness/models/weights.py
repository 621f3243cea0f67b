"""Load the weights of a checkpoint, all of them and no others, onto one device or several."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ropewalk.harness.engine.accelerated import compile_layers
from ropewalk.harness.errors import UserError
from ropewalk.harness.hub import attempt, attempting
from ropewalk.harness.models.adapter import adapted
from ropewalk.harness.models.checkpoint import DTYPES, Checkpoint
from ropewalk.harness.models.files import ONLY_SAFE, absent, fetch_weights, weight_files
from ropewalk.harness.models.gguf import dequantized, is_gguf, keep, pretrained
from ropewalk.harness.models.structure import auto_model
from ropewalk.harness.names import tensors
from ropewalk.harness.patching.frequencies import check_geometry

# Buffers that older versions saved, and that a model computes itself.
BUFFERS = re.compile(
    r"(inv_freq|attn\.bias|attention\.bias|masked_bias|causal_mask|position_ids|_cached)$"
)


def load_weights(checkpoint: Checkpoint) -> Any:
    """Load the model in eval mode on its device, and check its geometry against its config."""
    if checkpoint.loaded is not None:
        check_geometry(checkpoint.loaded, checkpoint.rope)
        return checkpoint.loaded
    where = checkpoint.name
    kept = None
    if is_gguf(where) and not checkpoint.device_map:
        own = checkpoint.fingerprint.partition("+")[0]  # without that of an adapter
        kept = dequantized(own, checkpoint.dtype)
    try:
        model, info = attempt("weights", where, lambda: _load(checkpoint, kept))
    except UserError:
        if kept is None or not kept.exists():
            raise
        shutil.rmtree(kept)  # damaged: it is written again
        model, info = attempt("weights", where, lambda: _load(checkpoint))
    _check_fit(where, model, info)
    if kept is not None:
        keep(model, where, own, kept)
    if checkpoint.device_map:
        model = with_input_device(model)
    if checkpoint.adapter is not None:
        model = attempt(
            "adapter", checkpoint.adapter.name, partial(adapted, model, checkpoint.adapter)
        )
    model.eval()
    check_geometry(model, checkpoint.rope)
    if checkpoint.compiled:
        compile_layers(model)
    return model


def parts_left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Check names and shapes of a checkpoint's tensors; return the parts that its model lacks.

    No value is read: the library loads onto the meta device. Quantised weights, whose conversion
    needs values, and weights that are not here yet are checked when they are loaded.
    """
    where, commit, pickles = checkpoint.name, checkpoint.revision, checkpoint.allow_pickle
    either = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    if checkpoint.quantized is not None or len(absent(where, either, commit)) == len(either):
        return ()
    with attempting("weights", where):
        if absent(
            where, weight_files(where, commit, checkpoint.config, allow_pickle=pickles), commit
        ):
            return ()
        return _check_fit(where, *_load(replace(checkpoint, device="meta", device_map=None)))


def _load(checkpoint: Checkpoint, kept: Path | None = None) -> Any:
    """Return the model and the library's report on its tensors.

    ``kept`` is where the dequantised weights of a GGUF file may be.
    """
    where, commit, safe = checkpoint.name, checkpoint.revision, not checkpoint.allow_pickle
    if not is_gguf(where):
        files = weight_files(where, commit, checkpoint.config, allow_pickle=not safe)
        if commit is not None:
            fetch_weights(where, commit, files)
    placed: dict[str, Any] = {}  # on a CPU the files are mapped
    if checkpoint.device_map:
        placed = spread()
    elif torch.device(checkpoint.device).type != "cpu":  # else each tensor is in memory first
        placed = {"device_map": {"": torch.device(checkpoint.device)}}
    try:
        with pretrained(where) as (place, file):
            if kept is not None and kept.exists():
                place, file = str(kept), {}
            return auto_model().from_pretrained(
                place,
                config=deepcopy(checkpoint.config),
                dtype=DTYPES[checkpoint.dtype],
                output_loading_info=True,
                **placed,
                revision=commit,
                trust_remote_code=checkpoint.trust_remote_code,
                use_safetensors=True if safe else None,
                ignore_mismatched_sizes=True,  # _check_fit reports them
                **file,
            )
    except OSError as error:
        if safe and commit is None and "safetensors" in str(error):
            raise UserError(f"{where} has no weights in safetensors; {ONLY_SAFE}") from error
        raise


def _check_fit(where: str, model: Any, info: dict[str, Any]) -> tuple[str, ...]:
    """Raise UserError unless a model's tensors are those of its files; return parts left out.

    Such a part is outside the text model, as a vision tower is. Other tensors that the library does
    not read, as biases, scales or layers, would change the numbers.
    """
    for name, shape, wanted in sorted(info["mismatched_keys"]):
        raise UserError(
            f"the weights of {where} do not fit its config: {name} is {tuple(shape)}, by the config"
            f" {tuple(wanted)}."
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(f"the weights of {where} do not contain {tensors(missing)}.")
    unread, parts = _unused(model, sorted(info["unexpected_keys"]))
    if unread or (parts and is_gguf(where)):
        raise UserError(
            f"{type(model).__name__} does not use {tensors(unread or parts)} of {where}, so"
            " it would measure another model; compare its config.json with the original."
        )
    return tuple(parts)


def _unused(model: Any, names: list[str]) -> tuple[list[str], list[str]]:
    """Return which tensors belong into modules of a model or to more layers, and other parts.

    Buffers of older versions and draft layers (multi-token prediction) are neither.
    """
    modules, text = dict(model.named_modules()), model.config.get_text_config()
    layers = next((name for name, one in modules.items() if isinstance(one, nn.ModuleList)), "")
    holders = [*accumulate(layers.split(".")[:-1], "{}.{}".format), ""]  # what the layers are in
    more = getattr(text, "num_nextn_predict_layers", None) or 0
    drafts = {str(text.num_hidden_layers + number) for number in range(more)}
    unread, parts = list[str](), set[str]()
    for name in names:
        trunk = f"{model.base_model_prefix}.{name}"  # a trunk saved alone has no such prefix
        own = name.partition(".")[0] not in modules and ".".join(trunk.split(".")[:2]) in modules
        places = accumulate((trunk if own else name).split("."), "{}.{}".format)
        first = next((place for place in places if place not in modules), name)
        inside, _, last = first.rpartition(".")
        draft = last in drafts and isinstance(modules[inside], nn.ModuleList)
        if inside in holders:
            parts.add(first)
        elif not draft and not BUFFERS.search(name):
            unread.append(name)
    return unread, sorted(parts)


def spread() -> dict[str, Any]:
    """Return options with which from_pretrained fills GPUs, then memory, then a folder on disk."""
    folder = tempfile.mkdtemp(prefix="ropewalk-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"device_map": "auto", "offload_folder": folder}


def with_input_device(model: Any) -> Any:
    """Set ``model.device`` to the device of the inputs, of a model that accelerate has spread.

    transformers gives the device of the first parameter; an offloaded one is on "meta".
    """
    hook = getattr(model, "_hf_hook", None)
    if hook is not None:  # None where one device has everything
        kind, place = type(model), torch.device(hook.execution_device)
        named = {"device": property(lambda _: place), "__module__": kind.__module__}
        model.__class__ = type(kind.__name__, (kind,), named)
    return model
