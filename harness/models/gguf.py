"""Convert a GGUF file once into a folder that transformers reads.

What transformers would ignore of a file is an error.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import constants
from huggingface_hub.utils import WeakFileLock
from safetensors import SafetensorError
from safetensors.torch import save_model
from tokenizers import Regex, decoders
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig
from transformers.integrations.gguf import read_gguf_metadata
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from ropewalk.harness.errors import UserError, foreign, reason
from ropewalk.harness.files import make_folder, new_folder
from ropewalk.harness.models.files import file_hash, reading
from ropewalk.harness.models.structure import without_weights
from ropewalk.harness.patching.config import is_rotary, rope_of, sliding_window

log = logging.getLogger("ropewalk")
GGUF = ".gguf"
GGUF_OPTION = {"gguf_file": f"model{GGUF}"}  # the option of from_pretrained
PLAIN_BASE = 10_000.0  # the base of a file that gives none, by the format's definition
PLAIN_SCALING = ("none", 0, 1)  # a type and factors that change nothing
NO_SCALING = (".finetuned", ".original_context_length")  # facts beside one
GUESSED = 1024  # a flag beside the kind of file: its author did not write the kind
# How llama.cpp splits a text before its merges, by the name in the file: as GPT-2 does, and as
# GPT-2 does between single digits. transformers knows other names, and splits these as GPT-2.
AS_GPT2 = ("gpt-2", "phi-2", "olmo", "mpt")
BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")
SPACE = "▁"  # in the tokens of SentencePiece
FROM = "give the folder or hub name (config.json, safetensors) that it was made from."


def is_gguf(where: str) -> bool:
    """Return whether a model's place is a GGUF file."""
    return where.lower().endswith(GGUF) and Path(where).is_file()


def fingerprint(where: str) -> str:
    """Return the hash of a GGUF file's content."""
    return _fingerprint(where, Path(where).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _fingerprint(where: str, _time: int) -> str:
    return file_hash(Path(where))[:16]


def check_unchanged(where: str, opened: str) -> None:
    """Raise UserError where a GGUF file was replaced: what is read has the old file's key."""
    if is_gguf(where) and fingerprint(where) != opened.partition("+")[0]:
        raise UserError(f"{where} was replaced after it was opened; start again.")


def kind_of(where: str) -> str:
    """Return the kind of a file's weights, as Q4_K_M."""
    from gguf import LlamaFileType

    kind = read_gguf_metadata(where)[0].get("general.file_type")
    known = {one.value: one.name.partition("_")[2] for one in LlamaFileType}
    return known.get(kind % GUESSED, "GGUF") if isinstance(kind, int) else "GGUF"


def files_of(where: str) -> str:
    """Return the folder with a GGUF file's config and tokenizer; any other place as it is.

    Such a file takes long to read, so that it is read once into the Hugging Face assets cache
    (HF_ASSETS_CACHE), by its hash and by the versions that its content depends on. Raises UserError
    where transformers reads less than the file says.
    """
    if not is_gguf(where):
        return where
    opened = fingerprint(where)
    key = f"2 {version('transformers')} {version('gguf')} {opened}"
    name = sha256(key.encode()).hexdigest()[:32]
    folder = Path(constants.HF_ASSETS_CACHE, "ropewalk", "gguf", name)
    if folder.exists():  # perhaps where nothing can be written
        return str(folder)
    settings, tokenizer = _read(where)
    check_unchanged(where, opened)
    make_folder(folder.parent, "HF_ASSETS_CACHE")
    unwritable = foreign(f"HF_ASSETS_CACHE {folder.parent} cannot be written")
    with unwritable, WeakFileLock(folder.with_suffix(".lock")):
        if not folder.exists():  # another process may have been first
            with new_folder(folder, "HF_ASSETS_CACHE") as new:
                tokenizer.save_pretrained(new)
                (new / CONFIG_NAME).write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


@contextmanager
def weights_of(where: str, dtype: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the options that ``from_pretrained`` reads a model's weights with.

    It is the folder of weights that are dequantised already, or the GGUF file alone in a folder:
    transformers would read a tokenizer beside it too.
    """
    if not is_gguf(where):
        yield where, {}
    elif (kept := Path(files_of(where), dtype)).exists():
        yield str(kept), {}
    else:
        with _alone(where) as folder:
            yield folder, GGUF_OPTION


def keep(model: Any, where: str, folder: Path) -> None:
    """Write the dequantised weights of a file for the next time, whole or not at all."""
    if folder.exists():
        return
    unwritable = suppress(UserError, OSError, SafetensorError)
    with unwritable, WeakFileLock(folder.with_suffix(".lock")):
        if not folder.exists():  # another process may have been first
            with new_folder(folder) as new:
                save_model(model, str(new / SAFE_WEIGHTS_NAME), {"format": "pt"})
                model.generation_config.save_pretrained(new)
            log.info(f"The dequantised weights of {where} are kept for the next time in {folder}.")


@contextmanager
def _alone(where: str) -> Iterator[str]:
    with TemporaryDirectory(prefix="ropewalk-") as folder, Path(os.devnull).open("w") as nowhere:
        (Path(folder) / GGUF_OPTION["gguf_file"]).symlink_to(Path(where).absolute())
        with redirect_stderr(nowhere):  # its progress bar has no switch
            yield folder


def _read(where: str) -> tuple[dict[str, Any], Any]:
    """Return the settings of the config of a GGUF file, and its tokenizer; no weight is read."""
    metadata, tensors = read_gguf_metadata(where)
    with _alone(where) as place:
        settings = PreTrainedConfig.get_config_dict(place, **GGUF_OPTION)[0]
        config = AutoConfig.for_model(**settings)
        if unread := next(_unread(config, metadata, tensors), None):
            raise UserError(f"transformers does not read {unread} of {where}: {FROM}")
        with reading("tokenizer", where):
            tokenizer = AutoTokenizer.from_pretrained(place, **GGUF_OPTION)
            return settings, configure_tokenizer(where, tokenizer, metadata)


def configure_tokenizer(where: str, tokenizer: Any, metadata: dict[str, Any]) -> Any:
    """Return the tokenizer of a GGUF file, configured to split a text as the file says.

    A SentencePiece tokenizer puts a space before a text unless the file says otherwise. Qwen's has
    no begin token, as in its folder on the hub, though the file names one. Raises UserError for an
    unknown way to split: other tokens than in training have other losses.
    """
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    kind, way = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind == "gpt2" and way in BY_DIGIT:
        digits = Split(Regex(r"\p{N}"), behavior="isolated")
        whole = Sequence([digits, ByteLevel(add_prefix_space=False, use_regex=True)])
        tokenizer.backend_tokenizer.pre_tokenizer = whole
    elif kind == "gpt2" and way not in (*AS_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        raise UserError(
            f"transformers does not split a text as {where} says ({reason(way)}): {FROM}"
        )
    if kind == "llama" and metadata.get("tokenizer.ggml.add_space_prefix") is False:
        backend = tokenizer.backend_tokenizer
        backend.normalizer, backend.pre_tokenizer = Replace(" ", SPACE), None
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    if way == "qwen2" and metadata.get("tokenizer.ggml.add_bos_token") is False:
        tokenizer.bos_token = None
    return tokenizer


def _unread(config: Any, metadata: dict[str, Any], tensors: tuple[str, ...]) -> Iterator[str]:
    """Yield what a file says and its config or model does not have, in words.

    Two windows, bases or widths, or a tensor without a place in the model (a scaling, a bias,
    experts) give other numbers than the model has.
    """
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    kind = metadata["general.architecture"]
    own = {k.removeprefix(f"{kind}."): v for k, v in metadata.items() if k.startswith(f"{kind}.")}
    yield from (f"{name} {reason(own[name])}" for name in own if name.endswith("scale"))
    if metadata.get("split.count", 1) > 1:
        yield f"the other {metadata['split.count'] - 1} files"
    if is_rotary(config):
        # To llama.cpp a factor without a type is a linear scaling; rope.scale_linear is older.
        for name, value in own.items():
            scales = name.startswith("rope.scal") and not name.endswith(NO_SCALING)
            if scales and value not in PLAIN_SCALING:
                yield f"the scaling ({name} {reason(value)})"
        rope = rope_of(config)
        for name, plain, read in (
            ("context_length", None, config.max_position_embeddings),
            ("rope.freq_base", PLAIN_BASE, rope.base),
            ("rope.dimension_count", rope.rotary_dim, rope.rotary_dim),
            ("attention.sliding_window", 0, sliding_window(config) or 0),
        ):
            value = own.get(name, plain)
            if not isinstance(value, int | float) or abs(value - read) > 1e-6 * abs(read):
                yield f"{name} {reason(value)} (it takes {read:g})"
    if kind not in GGUF_CONFIG_ARCHS:  # of these its report on the weights names unread tensors
        processor = TENSOR_PROCESSORS.get(kind, TensorProcessor)(config=config.to_dict())
        model = without_weights(config, trust_remote_code=False)
        known = get_gguf_hf_weights_map(model, processor)
        yield from (f"the tensor {reason(name)}" for name in tensors if name not in known)
