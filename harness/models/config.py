"""Find a model, by hub name, folder or GGUF file, and read its config."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.utils import logging

from ropewalk.harness.encodings._config import EncodingConfig, check_code
from ropewalk.harness.errors import UserError, printable
from ropewalk.harness.files import expanded, is_path
from ropewalk.harness.models.files import TOKENIZER_FILES, download, reading
from ropewalk.harness.models.gguf import GGUF, files_of, is_gguf, kind_of

HUB_GGUF = re.compile(r"([^./~@][^/@]*/[^/@]+)/(.+\.gguf)", re.IGNORECASE)  # owner/name/file.gguf
MOVED = "MovedForCausalLM"  # without its code it would be the plain model, and named as that
REFERENCE = Path(__file__).resolve().parent / "reference"
ATTENTION, EXPERTS = ("eager", "sdpa"), ("eager", "batched_mm", "grouped_mm")  # the library's own


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
    with reading("config", where):
        if is_gguf(where):
            return where, None, _own_attention(AutoConfig.from_pretrained(files_of(where)))
        if not local:
            path = download(name, revision, ["*.json", *TOKENIZER_FILES], "*/*")
            commit = path.name
        if (path / "adapter_config.json").exists():  # the library would load its base
            raise UserError(
                f"{where} holds an adapter (adapter_config.json): give its base model as --model "
                "and this as --adapter."
            )
        options = {"revision": commit, "trust_remote_code": trust_remote_code}
        config = AutoConfig.from_pretrained(where, **options)
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
        return where, commit, _own_attention(config)


def label(name: str, quantized: str | None) -> str:
    """Return a model's name in tables and folders: its last part with the kind of its weights."""
    if name == "reference":
        return name
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


def _own_attention(config: Any) -> Any:
    """Return a config with which the library loads no attention or experts from the hub."""
    text = config.get_text_config()
    attention, experts = text._attn_implementation, text._experts_implementation
    config._attn_implementation = attention if attention in ATTENTION else None
    config._experts_implementation = experts if experts in EXPERTS else None
    return config
