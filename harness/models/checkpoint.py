"""Open a model: where it is, its config and its tokenizer; or one that Python holds already."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from ropewalk.harness.encodings._config import EncodingConfig, check_code
from ropewalk.harness.engine import language_model
from ropewalk.harness.errors import UserError, foreign, printable
from ropewalk.harness.files import expanded, is_path
from ropewalk.harness.models.adapter import Adapter, open_adapter
from ropewalk.harness.models.files import (
    TOKENIZER_FILES,
    download,
    folder_hash,
    reading,
    tokenizer_hash,
)
from ropewalk.harness.models.gguf import GGUF, files_of, fingerprint, is_gguf, kind_of
from ropewalk.harness.models.structure import (
    own_frequencies,
    position_limit,
    weight_bytes,
    without_weights,
)
from ropewalk.harness.patching.config import geometry_of, is_rotary, rescaled, sliding_window
from ropewalk.harness.patching.frequencies import check_described
from ropewalk.harness.plugins import call
from ropewalk.scaling import native
from ropewalk.scaling.types import Rope

# Keys with which generate(do_sample=False) does more than process scores, and their neutral values.
UNSUPPORTED = {
    "num_beams": 1, "guidance_scale": 1, "penalty_alpha": 0, "token_healing": False,
    **dict.fromkeys(("constraints", "force_words_ids", "dola_layers", "stop_strings", "max_time")),
}  # fmt: skip
ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}  # variables of PyTorch
SPECIAL = ("tokenizer_config.json", "special_tokens_map.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HUB_GGUF = re.compile(r"([^./~@][^/@]*/[^/@]+)/(.+\.gguf)", re.IGNORECASE)  # owner/name/file.gguf
MOVED = "MovedForCausalLM"  # without its code it would be the plain model, and named as that
REFERENCE = Path(__file__).resolve().parent / "reference"
ATTENTION, EXPERTS = ("eager", "sdpa"), ("eager", "batched_mm", "grouped_mm")  # the library's own
APPLIED = ("active_adapters", "merged_adapters", "disable_adapters", "scaling")  # of PEFT's layers


@dataclass(frozen=True)
class Checkpoint:
    """A model before its weights are read.

    ``fingerprint`` identifies the weights in the key of every sample: the hub's commit, or for a
    folder or a GGUF file a hash. ``dtype`` is resolved.
    """

    name: str
    label: str
    fingerprint: str
    config: Any
    tokenizer: Any
    rope: Rope
    dtype: str
    device: str
    quantized: str | None  # the kind of quantised weights
    revision: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    device_map: str | None = None
    adapter: Adapter | None = None
    loaded: Any = None  # the model itself, where Python holds it already
    tokenizer_hash: str | None = None  # of a folder, whose fingerprint leaves out some of its files
    left_out: tuple[str, ...] = ()  # parts of its files that are not measured, as a vision tower
    served: str | None = None  # the engine that computes it, where that is not done here

    @property
    def sliding_window(self) -> int | None:
        """Tokens that a sliding layer sees; None where every layer sees all."""
        return sliding_window(self.config)

    @property
    def encoding(self) -> str | None:
        """The position encoding of a laboratory's model, with its options."""
        own = isinstance(self.config, EncodingConfig)
        return self.config.to_dict()["encoding"] if own else None

    @cached_property
    def positions(self) -> int | None:
        """The largest number of tokens with a position, where limited."""
        return None if is_rotary(self.config) else position_limit(self._without_weights)

    @cached_property
    def parameter_count(self) -> int:
        """The number of parameters, from the config alone."""
        return sum(weight.numel() for weight in self._without_weights.parameters())

    @cached_property
    def weight_bytes(self) -> int:
        """The bytes of the weights in memory, from the config alone."""
        return weight_bytes(self.config, DTYPES[self.dtype], self.trust_remote_code)

    @property
    def _without_weights(self) -> Any:
        return without_weights(self.config, trust_remote_code=self.trust_remote_code)

    @cached_property
    def generation(self) -> GenerationConfig:
        """The generation config that it ships."""
        if self.loaded is not None:
            return self.loaded.generation_config
        read = GenerationConfig.from_pretrained
        with reading("generation config", self.name):
            place = files_of(self.name)
            try:
                return read(place, revision=self.revision)
            except OSError:  # without a file of its own, it is in the model's config
                return read(place, config_file_name="config.json", revision=self.revision)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return generated tokens as a text."""
        text: str = self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def open_config(
    name: str, revision: str | None, trust_remote_code: bool
) -> tuple[str, str | None, Any]:
    """Return where a model is (file, folder or hub name), its commit on the hub, and its config."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = REFERENCE if name == "reference" else expanded(name)
    if not is_path(path) and (on_hub := HUB_GGUF.fullmatch(name)):
        with reading("config", name):  # even the config needs the whole file
            path = download(on_hub[1], revision, [on_hub[2]]) / on_hub[2]
            if not path.exists():
                raise UserError(f"{on_hub[1]} has no file {on_hub[2]}.")
        revision = None
    local = is_path(path)
    if local and revision:
        raise UserError(
            f"--revision {revision} is for hub models; {name} is a place on this machine."
        )
    where, commit = str(path) if local else name, None
    if path.is_file() and not is_gguf(where):
        raise UserError(f"{where} is a file, but no GGUF file; give the folder of the model.")
    with reading("config", where):
        if not local:
            path = download(name, revision, ["*.json", *TOKENIZER_FILES], "*/*")
            commit = path.name
        if (path / "adapter_config.json").exists():  # the library would load its base
            raise UserError(
                f"{where} holds an adapter (adapter_config.json): give its base model as --model "
                "and this as --adapter."
            )
        options = {"revision": commit, "trust_remote_code": trust_remote_code}
        config = AutoConfig.from_pretrained(files_of(where), **options)
        if MOVED in (config.architectures or ()):
            raise UserError(
                f"{where} is for other programs: `ropewalk export --to hf-code` wrote it, and code "
                "of its own rotates its tokens. Give the model it was made from, with the same "
                "--scaling."
            )
        from transformers.quantizers.auto import AutoHfQuantizer  # with every model's code

        packed = getattr(config, "quantization_config", None)
        readable = packed and AutoHfQuantizer.supports_quant_method(packed)
        if not readable and (packed or (path / "hf_quant_config.json").exists()):  # NVIDIA's file
            raise UserError(
                f"transformers does not read the quantised weights of {where}, only the numbers "
                "that stand for them; give the model that was quantised."
            )
        if isinstance(config, EncodingConfig):
            config.run_code = trust_remote_code
            check_code(config)
        # The library loads other attention and experts from the hub.
        text = config.get_text_config()
        attention, experts = text._attn_implementation, text._experts_implementation
        config._attn_implementation = attention if attention in ATTENTION else None
        config._experts_implementation = experts if experts in EXPERTS else None
        return where, commit, config


def open_checkpoint(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    device_map: str | None = None,
    adapter: str | None = None,
    trained_length: int | None = None,
    elsewhere: str | None = None,
) -> Checkpoint:
    """Read config and tokenizer; raise UserError for a model that cannot be evaluated.

    The dtype ``auto`` is float32 on a CPU, where it is exact; elsewhere the checkpoint's. The
    weights of a GGUF file, scales times whole numbers, are exact in float32 alone.

    ``elsewhere`` is the device of other processes, which this one need not have.
    """
    where, commit, config = open_config(name, revision, trust_remote_code)
    if device_map and device != "auto":
        raise UserError(f"--device-map {device_map} uses every device; leave --device out.")
    device = elsewhere or _device(device)
    if dtype == "auto":
        shipped = str(config.dtype or torch.float32).removeprefix("torch.")
        dtype = "float32" if device == "cpu" or shipped not in DTYPES else shipped
    with reading("weights", where):
        quantized = quantization(where, config)
        shown = label(name, quantized)
        if commit is not None:
            key = commit
        elif is_gguf(where):
            key = fingerprint(where)
        else:
            key = folder_hash(Path(where), code=trust_remote_code, allow_pickle=allow_pickle)
    if trust_remote_code and getattr(config, "auto_map", None):
        key += "+code"  # under transformers' own class the same files may compute otherwise
    added = None
    if adapter is not None:
        merge = not device_map and getattr(config, "quantization_config", None) is None
        added = open_adapter(adapter, where, allow_pickle=allow_pickle, merge=merge)
        key += f"+{added.metadata['fingerprint']}"
        shown += f"+{added.name}"
    return Checkpoint(
        name=where,
        label=shown,
        fingerprint=key,
        config=config,
        tokenizer=_tokenizer(where, commit, trust_remote_code),
        rope=geometry_of(config, trained_length),
        dtype=dtype,
        device=device,
        quantized=quantized,
        revision=commit,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        device_map=device_map,
        adapter=added,
        tokenizer_hash=None if commit or is_gguf(where) else tokenizer_hash(Path(where)),
    )


def label(name: str, quantized: str | None) -> str:
    """Return a model's name in tables and folders: its last part with the kind of its weights."""
    path = expanded(name)
    path = path.with_suffix("") if path.suffix.lower() == GGUF else path
    last = printable(Path(os.path.normpath(path.absolute())).name)
    named = quantized is None or quantized.lower() in last.lower()
    return last if named else f"{last}-{quantized}"


def quantization(where: str, config: Any) -> str | None:
    """Return the kind of quantised weights, such as Q4_K_M or bitsandbytes-8bit."""
    if is_gguf(where):
        return kind_of(where)
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    keys = given if isinstance(given, dict) else given.to_dict()
    bits = 8 if keys.get("load_in_8bit") else 4 if keys.get("load_in_4bit") else keys.get("bits")
    kind = f"{bits}bit" if bits else ""
    if isinstance(keys.get("quant_type"), dict):  # of torchao
        kind = str(keys["quant_type"].get("default", {}).get("_type", "")).removesuffix("Config")
    method = keys.get("quant_method")
    return printable("-".join(filter(None, (str(getattr(method, "value", method)), kind))))


def check_rope(config: Any, rope: Rope, *, trust_remote_code: bool = False) -> None:
    """Raise UserError unless a model rotates, and scales its logits, as its config says.

    Both are detected from the config alone: the model's own rotary class is built, and the same
    model with and without the scaling.
    """
    call("the checkpoint", lambda: native.bands(rope, 1))
    if not rope.rotary_dim:
        return
    model = without_weights(config, trust_remote_code=trust_remote_code)
    own = own_frequencies(model, config.get_text_config())
    check_described(type(model).__name__, own, rope)
    if rope.shipped.get("rope_type", "default") == "default":
        return
    plain = rescaled(config, {"rope_type": "default"})
    with_it, without = (
        {n: getattr(module, "scaling", None) for n, module in language_model(built).named_modules()}
        for built in (model, without_weights(plain, trust_remote_code=trust_remote_code))
    )
    factor = native.logit_scale(rope)
    scales = {name: s for name, s in with_it.items() if isinstance(s, float)}
    plainly: dict[str, Any] = {name: factor * (without[name] or 0.0) for name in scales}
    if wrong := [name for name, s in scales.items() if not math.isclose(s, plainly[name])]:
        raise UserError(
            f"{config.model_type} applies the scaling it ships outside its rotary embedding too "
            f"({wrong[0]}), by a rule that is not known; not supported."
        )


def check_generation(checkpoint: Checkpoint) -> None:
    """Raise UserError for a generation config that asks for more than greedy generation."""
    shipped, wanted = checkpoint.generation, UNSUPPORTED.items()
    if keys := [key for key, off in wanted if getattr(shipped, key, off) not in (None, off)]:
        raise UserError(
            f"the generation config of {checkpoint.label} sets {', '.join(keys)}, which greedy "
            "generation does not apply; remove it there, or leave out the tasks that generate text."
        )


def _tokenizer(where: str, commit: str | None, trusted: bool) -> Any:
    """Return a tokenizer that has encoded and decoded a short text.

    Raises UserError for a folder without the file that says which token is the begin token: without
    that token other losses are measured.
    """
    with reading("tokenizer", where):
        files = Path(files_of(where))
        kind = PreTrainedTokenizerFast if is_gguf(where) else AutoTokenizer  # as it was written
        tokenizer = kind.from_pretrained(str(files), revision=commit, trust_remote_code=trusted)
        tokenizer.decode(tokenizer("A short text.", add_special_tokens=False)["input_ids"])
    named = not files.is_dir() or any((files / name).exists() for name in SPECIAL)
    if tokenizer.bos_token_id is None and not named:
        raise UserError(
            f"{where} has no {SPECIAL[0]}, which names the begin token or says that there is "
            "none; copy it from where the model came from."
        )
    return tokenizer


def _device(device: str) -> str:
    # Texts of many lengths leave unusable gaps between segments of fixed sizes. CUDA reads this
    # when it starts; a user's own setting stays.
    if not ALLOCATOR.intersection(os.environ):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    with foreign(f"device {device!r} is unavailable"):
        torch.empty(1, device=device).cpu()  # the meta device has no values to copy
    return device


def hold(model: Any, tokenizer: Any, trained_length: int | None = None) -> Checkpoint:
    """Return a loaded Hugging Face causal language model as a checkpoint, keyed by its weights.

    Its name is that of the folder or repository it was read from, else its class. Raises UserError
    for a model in training mode, or in a dtype that is not measured.
    """
    kind = type(model).__name__
    if hasattr(model, "get_base_model"):
        raise UserError(
            f"{kind} is a model of PEFT: save the adapter, and give its base as model= and the "
            "folder as adapter=."
        )
    if tokenizer is None:
        raise UserError(f"{kind} needs its tokenizer: run(model=…, tokenizer=…).")
    if model.training:
        raise UserError(f"{kind} is in training mode, where dropout applies; call model.eval().")
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UserError(f"{kind} computes in {dtype}; one of {', '.join(DTYPES)} is measured.")
    rope = geometry_of(model.config, trained_length)
    check_rope(model.config, rope)
    quantized = quantization("", model.config)
    name = label(PurePath(str(model.config.name_or_path)).name or kind, quantized)
    return Checkpoint(
        name=name,
        label=name,
        fingerprint=_fingerprint_in_memory(model),
        config=model.config,
        tokenizer=tokenizer,
        rope=rope,
        dtype=dtype,
        device=str(model.device),
        quantized=quantized,
        loaded=model,
    )


def _fingerprint_in_memory(model: Any) -> str:
    """Hash config and weights, every byte: a changed model has other numbers.

    The hash covers the generation config and how adapters are applied, which the weights do not
    show.
    """
    digest = sha256(model.config.to_json_string().encode())
    if (generation := getattr(model, "generation_config", None)) is not None:
        digest.update(generation.to_json_string().encode())
    for name, module in model.named_modules():
        if hasattr(module, "active_adapters") and hasattr(module, "merged_adapters"):
            applied = [getattr(module, part, None) for part in APPLIED]
            digest.update(f"{name} {applied}".encode())
    with foreign(f"{type(model).__name__} is not all in memory"):
        for name, tensor in model.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            values = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(values.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
