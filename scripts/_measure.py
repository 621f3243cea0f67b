"""Random models and requests, and the time of some work: for the benchmark and the GPU check."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ropewalk.harness.patching.config import geometry_of
from ropewalk.harness.patching.patch import answering
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.scaling.types import Rope, Rotation
from ropewalk.tasks.types import Loglikelihood, ModelRequest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
Row = dict[str, Any]
FIELDS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "tie_word_embeddings",
)  # fmt: skip
SHAPES = {
    "tiny": (64, 128, 2, 4, 2, 512, True),
    "S": (512, 1408, 8, 8, 8, 32_000, False),
    "135M": (576, 1536, 30, 9, 3, 49_152, True),
    "8B": (4096, 14_336, 32, 32, 8, 128_256, False),
}


def build(shape: str, dtype: torch.dtype, device: str = "cpu", **changes: Any) -> Any:
    """Return a model of seeded random weights with a window of 8192 tokens; it ends no text."""
    torch.manual_seed(0)
    fields = dict(zip(FIELDS, SHAPES[shape], strict=True)) | changes
    with torch.device(device):
        config = LlamaConfig(**fields, max_position_embeddings=8192)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def tokens_of(model: Any, count: int, seed: int = 0) -> tuple[int, ...]:
    """Return random tokens; fewer of a seed begin the longer text."""
    return tuple(random.Random(seed).choices(range(model.config.vocab_size), k=count))


def one_pass(model: Any, length: int, targets: int, seed: int = 0) -> Loglikelihood:
    """Return a request for the losses of the last of some random tokens."""
    return Loglikelihood(tokens_of(model, length, seed), length - targets, doc_id=f"{seed}")


def rotation_of(model: Any, method: str, length: int, rope: Rope | None = None) -> Rotation:
    """Return a method's rotation at a length, by default of the model's own geometry."""
    return resolve(load("method", method), rope or geometry_of(model.config), length)


def replies(
    model: Any, rotation: Rotation, requests: Sequence[ModelRequest], decode: Any = lambda _: ""
) -> list[Any]:
    """Return the engine's responses in the order of the requests."""
    with answering(model, rotation, decode=decode) as answer:
        return [response for _, response in sorted(answer(requests), key=itemgetter(0))]


def timed(work: Callable[[], Any], device: str = "cpu") -> tuple[float, Any]:
    """Return the seconds that some work takes, and its result.

    They are CPU time of this process, and wall time where the device is a GPU.
    """
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    result = work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - began, result


def operations(config: Any, length: int) -> tuple[float, float]:
    """Return the multiplications and additions of a forward with full logits.

    The first number counts matrix products, the second causal attention.
    """
    heads = config.num_attention_heads * config.head_dim
    groups = config.num_key_value_heads * config.head_dim
    width, layers = config.hidden_size, config.num_hidden_layers
    per_layer = 2 * width * heads + 2 * width * groups + 3 * width * config.intermediate_size
    products = 2 * length * (layers * per_layer + width * config.vocab_size)
    return float(products), float(2 * layers * heads * length * (length + 1))
