"""Load the weights of a checkpoint, all of them and no others, onto one device or several."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from huggingface_hub.utils import enable_progress_bars
from torch import nn

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.adapter import adapted
from ropewalk.harness.models.checkpoint import DTYPES, Checkpoint
from ropewalk.harness.models.files import reading, tensors
from ropewalk.harness.models.gguf import check_unchanged, files_of, is_gguf, keep, weights_of
from ropewalk.harness.models.structure import auto_model
from ropewalk.harness.patching.frequencies import check_geometry

# Buffers that older versions saved, and that a model computes itself.
BUFFERS = re.compile(
    r"(inv_freq|attn\.bias|attention\.bias|masked_bias|causal_mask|position_ids|_cached)$"
)


def load_weights(checkpoint: Checkpoint, **more: Any) -> Any:
    """Load the model in eval mode on its device, and check its geometry against its config.

    From then on PyTorch does not choose cuDNN's attention in this process: it plans anew for every
    length, and on a B200 it changes texts (https://github.com/pytorch/pytorch/issues/193893).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    if checkpoint.loaded is not None:
        check_geometry(checkpoint.loaded, checkpoint.rope)
        return checkpoint.loaded
    with reading("weights", checkpoint.name):
        check_unchanged(checkpoint.name, checkpoint.fingerprint)
        files = files_of(checkpoint.name)
        model, info = _load(checkpoint, **more)
        check_unchanged(checkpoint.name, checkpoint.fingerprint)
    _check_fit(checkpoint.name, model, info)
    if is_gguf(checkpoint.name) and not checkpoint.device_map:
        keep(model, checkpoint.name, Path(files, checkpoint.dtype))
    if checkpoint.adapter is not None:
        with reading("adapter", checkpoint.adapter.name):
            model = adapted(model, checkpoint.adapter)
    model.eval()
    check_geometry(model, checkpoint.rope)
    return model


def parts_left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Check names and shapes of a checkpoint's tensors; return the parts that its model lacks.

    No value is read: the library loads onto the meta device. Quantised weights, whose conversion
    needs values, and weights that are not here yet are checked when they are loaded.
    """
    if checkpoint.quantized is not None:
        return ()
    unplaced = replace(checkpoint, device="meta", device_map=None)
    with reading("weights", checkpoint.name):
        try:
            loaded = _load(unplaced, local_files_only=True)
        except OSError:
            return ()
    return _check_fit(checkpoint.name, *loaded)


def _load(checkpoint: Checkpoint, **more: Any) -> Any:
    """Return the model and the library's report on its tensors."""
    if checkpoint.device_map:
        more["device_map"] = checkpoint.device_map
    elif torch.device(checkpoint.device).type != "cpu":  # a CPU maps the files
        more["device_map"] = {"": torch.device(checkpoint.device)}
    if checkpoint.revision and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()  # a download of weights takes long; transformers' switch hides it
    with weights_of(checkpoint.name, checkpoint.dtype) as (where, file):
        return auto_model(checkpoint.config).from_pretrained(
            where,
            config=deepcopy(checkpoint.config),
            dtype=DTYPES[checkpoint.dtype],
            output_loading_info=True,
            revision=checkpoint.revision,
            trust_remote_code=checkpoint.trust_remote_code,
            use_safetensors=None if checkpoint.allow_pickle else True,
            ignore_mismatched_sizes=True,  # _check_fit reports them
            **file,
            **more,
        )


def _check_fit(where: str, model: Any, info: dict[str, Any]) -> tuple[str, ...]:
    """Raise UserError unless a model's tensors are those of its files; return parts left out.

    Such a part is outside the text model, as a vision tower is. Other tensors that the library does
    not read, as biases, scales or layers, would change the numbers. Buffers that older versions
    saved are ignored.
    """
    for name, shape, wanted in sorted(info["mismatched_keys"]):
        raise UserError(
            f"the weights of {where} do not fit its config: {name} is {tuple(shape)}, by the config"
            f" {tuple(wanted)}."
        )
    if missing := sorted(info["missing_keys"]):
        raise UserError(f"the weights of {where} do not contain {tensors(missing)}.")
    modules = dict(model.named_modules())
    layers = next((name for name, one in modules.items() if isinstance(one, nn.ModuleList)), "")
    holders = [*accumulate(layers.split(".")[:-1], "{}.{}".format), ""]  # what the layers are in
    unread, parts = list[str](), set[str]()
    for name in sorted(info["unexpected_keys"]):
        trunk = f"{model.base_model_prefix}.{name}"  # a trunk saved alone has no such prefix
        alone = name.partition(".")[0] not in modules and ".".join(trunk.split(".")[:2]) in modules
        places = accumulate((trunk if alone else name).split("."), "{}.{}".format)
        first = next((place for place in places if place not in modules), name)
        if first.rpartition(".")[0] in holders and not is_gguf(where):
            parts.add(first)
        elif not BUFFERS.search(name):
            unread.append(name)
    if unread:
        raise UserError(
            f"{type(model).__name__} does not use {tensors(unread)} of {where}, so it would measure"
            " another model; compare its config.json with the original."
        )
    return tuple(sorted(parts))
