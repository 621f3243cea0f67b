"""A pretrained model by hub name or local folder: config and tokenizer first, weights later."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import logging as hub_logging
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import cached_file, logging
from transformers.utils.hub import extract_commit_hash

from harness.errors import UserError, reason
from harness.geometry import rescaled, rope_of
from harness.names import place, printable
from harness.placement import check_whole, seated, spread
from harness.rotary import check_geometry
from scaling._types import Rope

REFERENCE = Path(__file__).resolve().parent / "reference"
QUERY_SCALES = ("llama_4_scaling_beta",)  # position-dependent, applied in the attention
TRUST = "where you trust it, let it run with --trust-remote-code."
NO_FOLDER = " There is no folder of this name either."
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a model before its weights are read.

    ``fingerprint`` stands for the weights in the key of every sample: the hub's commit, or for a
    folder a hash of its files. ``dtype`` is resolved.
    """

    name: str
    label: str
    revision: str | None
    fingerprint: str
    config: Any
    tokenizer: Any
    rope: Rope
    dtype: str
    device: str
    trust_remote_code: bool
    allow_pickle: bool
    device_map: str | None = None

    @property
    def sliding_window(self) -> int | None:
        """Return how many tokens a sliding layer sees; None where every layer sees all."""
        config = self.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
        return getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None


def open_checkpoint(
    name: str,
    *,
    revision: str | None,
    dtype: str,
    device: str,
    trust_remote_code: bool,
    allow_pickle: bool,
    device_map: str | None = None,
    elsewhere: str | None = None,
) -> Checkpoint:
    """Read config and tokenizer; raise UserError for a model that cannot be evaluated.

    ``elsewhere`` is the device of other processes, which this one need not have.
    """
    where, commit, config = _open_config(name, revision, trust_remote_code)
    options = {"revision": commit, "trust_remote_code": trust_remote_code}
    tokenizer = _read("tokenizer", where, lambda: AutoTokenizer.from_pretrained(where, **options))
    check_whole(device_map, device)
    where_to = elsewhere or _device(device)
    return Checkpoint(
        name=where,
        label=_label(name),
        revision=commit,
        fingerprint=commit or _folder_hash(Path(where)),
        config=config,
        tokenizer=tokenizer,
        rope=rope_of(config),
        dtype=_dtype(dtype, where_to, config),
        device=where_to,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        device_map=device_map,
    )


def read_config(name: str, *, revision: str | None, trust_remote_code: bool) -> tuple[str, Any]:
    """Return a model's label and config; neither tokenizer nor weights are looked at."""
    return _label(name), _open_config(name, revision, trust_remote_code)[2]


def load_weights(checkpoint: Checkpoint) -> Any:
    """Load the model in eval mode on its device, and check its geometry against its config."""
    where = checkpoint.name
    loaded: Any = _read(
        "weights",
        where,
        lambda: AutoModelForCausalLM.from_pretrained(
            where,
            revision=checkpoint.revision,
            dtype=DTYPES[checkpoint.dtype],
            trust_remote_code=checkpoint.trust_remote_code,
            use_safetensors=None if checkpoint.allow_pickle else True,
            output_loading_info=True,
            **(spread() if checkpoint.device_map else {}),
        ),
        hint="" if checkpoint.allow_pickle else " Only safetensors are read, or --allow-pickle.",
    )
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        message = f"the weights of {where} lack {len(missing)} tensors, {missing[0]} among them."
        raise UserError(message)
    model = seated(model) if checkpoint.device_map else model.to(checkpoint.device)
    model.eval()
    check_geometry(model, checkpoint.rope)
    return model


def parameter_count(checkpoint: Checkpoint) -> int:
    """Count the parameters from the config alone, without memory for any."""
    model = hollow(checkpoint.config, trust_remote_code=checkpoint.trust_remote_code)
    return sum(parameter.numel() for parameter in model.parameters())


def check_scaling_is_rotary(checkpoint: Checkpoint) -> None:
    """Raise UserError for a model that applies its shipped scaling outside the rotary embedding.

    Such a part (DeepSeek's softmax scale, Mistral 3's query scale) would stay on under every
    method. It is found from the config alone: the same model is built with and without.
    """
    shipped = checkpoint.rope.shipped
    if shipped.get("rope_type", "default") == "default":
        return
    kind = checkpoint.config.model_type
    trusted = checkpoint.trust_remote_code
    with_it, without = (
        _scales(hollow(config, trust_remote_code=trusted))
        for config in (checkpoint.config, rescaled(checkpoint.config, {"rope_type": "default"}))
    )
    changed = [name for name in with_it if with_it[name] != without.get(name)]
    beyond = [name for name in QUERY_SCALES if shipped.get(name) is not None]
    if changed or beyond:
        message = (
            f"{kind} applies the scaling it ships outside its rotary embedding too "
            f"({(changed + beyond)[0]}), where no method could take it off; not supported."
        )
        raise UserError(message)


def _open_config(
    name: str, revision: str | None, trust_remote_code: bool
) -> tuple[str, str | None, Any]:
    """Return where a model is (folder or hub name), its commit on the hub, and its config."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()  # else five lines of retries stand before our sentence
    folder = REFERENCE if name == "reference" else place(name)
    local = folder.is_dir()
    if not local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        message = f"model folder {name} does not exist; give a folder or a hub name (owner/name)."
        raise UserError(message)
    if local and revision:
        message = f"--revision {revision} is for hub models; {name} is a folder."
        raise UserError(message)
    where = str(folder) if local else name
    commit = None if local else _read("config", where, lambda: _commit(where, revision), NO_FOLDER)
    options = {"revision": commit, "trust_remote_code": trust_remote_code}
    config = _read("config", where, lambda: AutoConfig.from_pretrained(where, **options))
    return where, commit, config


def _label(name: str) -> str:
    """Return what a model is called in tables and as a folder: its last name, and never ``..``."""
    if name == "reference":
        return name
    return printable(os.path.normpath(place(name).absolute()).rpartition("/")[2])


def hollow(config: Any, *, trust_remote_code: bool) -> Any:
    """Build a model without memory for its weights; raise UserError for a config of none."""
    build, options = AutoModelForCausalLM.from_config, {"trust_remote_code": trust_remote_code}
    with torch.device("meta"):
        return _read("config", f"this {config.model_type}", lambda: build(config, **options))


def _scales(model: Any) -> dict[str, float]:
    """Return every module's own softmax scale."""
    scales = ((name, getattr(module, "scaling", None)) for name, module in model.named_modules())
    return {name: scale for name, scale in scales if isinstance(scale, float)}


def _read(part: str, where: str, function: Callable[[], Any], hint: str = "") -> Any:
    try:
        return function()
    except Exception as error:
        message = f"the {part} of {where} cannot be read: {reason(error)}{hint}"
        if "trust_remote_code=True" in str(error):
            message = f"the {part} of {where} needs the repository's own code; {TRUST}"
        raise UserError(message) from error


def _commit(name: str, revision: str | None) -> str:
    """Return the commit a hub model's branch or tag stands for; all else is read at it."""
    commit: str | None = extract_commit_hash(
        cached_file(name, "config.json", revision=revision), None
    )
    if commit is None:
        message = f"the commit of {name} is not known"
        raise OSError(message)
    return commit


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=device).cpu()  # the meta device has no values to copy
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        message = f"device {device!r} is not to be had here: {reason(error)}"
        raise UserError(message) from None
    return device


def _dtype(dtype: str, device: str, config: Any) -> str:
    """Resolve auto: float32 on a CPU, where it is exact; elsewhere what the checkpoint holds."""
    if dtype != "auto":
        return dtype
    shipped = str(config.dtype or torch.float32).removeprefix("torch.")
    return "float32" if device == "cpu" or shipped not in DTYPES else shipped


def _folder_hash(folder: Path) -> str:
    """Hash config, tokenizer, code and weights, every byte: a changed model has other numbers."""
    digest = sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".model", ".py", ".safetensors", ".bin"):
            with path.open("rb") as file:
                digest.update(f"{path.name} {file_digest(file, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()[:16]
