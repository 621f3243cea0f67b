"""Files of a model that anyone may have written: each is read, or refused in one sentence."""

import json
import math
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ropewalk.harness.errors import UserError
from ropewalk.harness.serve._doctor import examine
from ropewalk.harness.sweep.spec import parse
from tests.child import bounded
from tests.quantized import save_gguf

# One of each kind of value that JSON has, and numbers at the ends of what computers count to.
values = st.sampled_from([
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**62, 10**30, 0.5, -0.5, 1e38, math.nan, math.inf,
    "", "x", "\0", "../x", "é" * 300, [], [None], ["x"], [[]], [7] * 9, {}, {"x": {}},
])  # fmt: skip
rope_keys = st.sampled_from(
    ["rope_type", "rope_theta", "factor", "partial_rotary_factor", "attention_factor",
     "short_factor", "long_factor", "original_max_position_embeddings", "beta_fast",
     "full_attention"]
)  # fmt: skip
types = st.sampled_from(["linear", "dynamic", "yarn", "longrope", "llama3", "default"])
config_keys = st.sampled_from(
    ["architectures", "text_config", "transformers_weights", "rope_theta", "attention_dropout",
     "auto_map", "dtype", "quantization_config", "layer_types", "sliding_window", "model_type",
     "rope_parameters", "rope_scaling", "hidden_size", "num_attention_heads", "num_key_value_heads",
     "head_dim", "vocab_size", "hidden_act", "id2label", "intermediate_size", "rms_norm_eps",
     "initializer_range", "max_position_embeddings", "attention_bias", "tie_word_embeddings",
     "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "attn_implementation", "encoding"]
)  # fmt: skip
in_rope = st.dictionaries(rope_keys, values | types, max_size=3)
TEXT = "a rope of tarred hemp, a lane to walk " * 3


def is_read_or_refused(place: Path) -> None:
    """Let doctor read a model: its config, its layers, and a text that its weights read."""
    (place.parent / "text.txt").write_text(TEXT)
    settings = {"model": str(place), "docs": str(place.parent / "text.txt"), "length": ["1x"]}
    try:
        list(examine(parse(None, {**settings, "scaling": ["native"]})))
    except UserError as error:
        assert 10 < len(str(error)) < 700  # noqa: PT017  # the other outcome is none


def changed(tiny: Path, *changes: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copytree(tiny, Path(folder) / "m"))
        for change in changes:
            change(place)
        is_read_or_refused(place)


def with_keys(place: Path, name: str, keys: dict[str, Any]) -> None:
    content = json.loads((place / name).read_text())
    (place / name).write_text(json.dumps(content | keys))


def test_a_config_of_any_values_is_read_or_refused(tiny):
    @given(st.dictionaries(config_keys, values | in_rope, min_size=1, max_size=2))
    @example({"attention_dropout": 2**31})
    @example({"sliding_window": {}})
    @example({"vocab_size": 2**70})
    def check(keys: dict[str, Any]) -> None:
        changed(tiny, partial(with_keys, name="config.json", keys=keys))

    bounded(check)


def with_header(place: Path, keys: dict[str, Any], name: str, length: int | None) -> None:
    """Put keys into a tensor's entry of a safetensors header; ``length`` is told for its own."""
    file = place / "model.safetensors"
    whole = file.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + size])
    header[name] = {**header.get(name, {}), **keys}
    content = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", length or len(content)) + content + whole[8 + size :])


def test_a_safetensors_header_of_any_values_is_read_or_refused(tiny):
    keys = {
        "dtype": values | st.sampled_from(["F32", "BF16", "F64", "I8", "F8_E4M3"]),
        "shape": values | st.lists(values, max_size=2),
        "data_offsets": values | st.lists(values, min_size=2, max_size=2),
    }
    names = st.sampled_from(["model.norm.weight", "model.embed_tokens.weight", "more", "\0"])
    lengths = st.sampled_from([None, None, None, 1, 100, 2**31, 2**63])

    @given(st.fixed_dictionaries({}, optional=keys), names, lengths)
    def check(keys: dict[str, Any], name: str, length: int | None) -> None:
        changed(tiny, partial(with_header, keys=keys, name=name, length=length))

    bounded(check)


def test_a_tokenizer_of_any_values_is_read_or_refused(tiny):
    parts = st.sampled_from(
        ["normalizer", "pre_tokenizer", "post_processor", "decoder", "model", "added_tokens",
         "truncation", "padding", "version"]
    )  # fmt: skip
    kinds = values | st.sampled_from(
        ["BPE", "Replace", "Split", "Prepend", "Sequence", "ByteLevel", "TemplateProcessing",
         "Precompiled"]
    )  # fmt: skip
    patterns = values | st.sampled_from([{"Regex": "(a*)*b"}, {"String": ""}])
    names = ["vocab", "merges", "unk_token", "content", "behavior", "prepend", "normalizers",
             "add_prefix_space"]  # fmt: skip
    more = dict.fromkeys(names, values) | {"pattern": patterns, "precompiled_charsmap": values}
    config = st.sampled_from(
        ["tokenizer_class", "bos_token", "eos_token", "model_max_length", "added_tokens_decoder",
         "chat_template", "additional_special_tokens", "extra_special_tokens", "add_bos_token",
         "padding_side", "auto_map", "clean_up_tokenization_spaces", "model_input_names"]
    )  # fmt: skip

    @given(
        st.dictionaries(
            parts, values | st.fixed_dictionaries({"type": kinds}, optional=more), max_size=2
        ),
        st.dictionaries(config, values, max_size=2),
    )
    def check(keys: dict[str, Any], settings: dict[str, Any]) -> None:
        changed(
            tiny,
            partial(with_keys, name="tokenizer.json", keys=keys),
            partial(with_keys, name="tokenizer_config.json", keys=settings),
        )

    bounded(check)


FACTS = (
    "general.architecture", "llama.context_length", "llama.embedding_length",
    "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.head_count_kv",
    "llama.rope.dimension_count", "llama.rope.freq_base", "general.file_type",
    "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model", "tokenizer.ggml.pre",
    "tokenizer.ggml.bos_token_id", "split.count", "llama.attention.scale",
)  # fmt: skip
FIELDS: list[tuple[int, bytes]] = [  # the number of a GGUF type, and a value of it
    *((4, struct.pack("<I", n)) for n in (0, 1, 3, 64, 2**31, 2**32 - 1)),
    *((6, struct.pack("<f", x)) for x in (0.0, -1.0, 1e38, math.nan, math.inf)),
    *((8, struct.pack("<Q", n) + b"llama") for n in (5, 0, 2**40, 2**63)),
    *((9, struct.pack("<IQ", kind, n)) for kind in (4, 8, 9, 99) for n in (0, 2**40)),
    (7, b"\1"), (10, struct.pack("<Q", 2**63)), (12, struct.pack("<d", -1.0)), (99, b""),
]  # fmt: skip


def test_a_gguf_header_of_any_values_is_read_or_refused(tmp_path_factory):
    whole = save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "F32").read_bytes()
    magic, version, own_tensors, own_facts = struct.unpack("<4sIQQ", whole[:24])
    counts = st.sampled_from([None, None, None, 0, 1, 2**31, 2**62])

    @given(st.sampled_from(FACTS), st.sampled_from(FIELDS), counts, counts)
    def check(fact: str, field: tuple[int, bytes], tensors: int | None, facts: int | None) -> None:
        number, value = field
        name = fact.encode()
        added = struct.pack("<Q", len(name)) + name + struct.pack("<I", number) + value
        tensors = own_tensors if tensors is None else tensors
        facts = own_facts + 1 if facts is None else facts
        # In place of the file's own, which is a fact of another name from here on.
        rest = whole[24:].replace(name, b"x" * len(name), 1)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "m.gguf"
            header = struct.pack("<4sIQQ", magic, version, tensors, facts)
            place.write_bytes(header + added + rest)
            is_read_or_refused(place)

    bounded(check)
