"""Models of 1 and 8 billion parameters for the rows of a GPU, and answers that fit into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from benchmarks.setting import Row, Setting, build, config, tokens
from harness.engine import DEFAULT, Sizes, answers
from tasks.types import Loglikelihood, LoglikelihoodResponse, ModelRequest

SHAPES = {  # of Llama 3.2 1B and Llama 3 8B
    "1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
    },
    "8B": {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
    },
}  # fmt: skip
LENGTHS = (8192, 32_768, 131_072)
TRAINED = 8192  # window of the models
CURVE = 8  # lengths of a prefix curve


def measured(
    setting: Setting,
    rows: Callable[[Setting, str, Any], list[Row]],
    cases: Sequence[tuple[str, torch.dtype]] = (),
) -> list[Row]:
    """Build a model of random weights for every case, and return the rows of those that fit.

    Without cases it is each shape in bfloat16.
    """

    def built(name: str, dtype: torch.dtype) -> list[Row]:
        shaped = config("S", **SHAPES[name], max_position_embeddings=TRAINED)
        return rows(setting, name, build(setting, shaped, dtype))

    found = []
    for name, dtype in cases or [(name, torch.bfloat16) for name in SHAPES]:
        of = f"{name} in {str(dtype).removeprefix('torch.')}"
        found += fitting(of, partial(built, name, dtype))
    return found


def fitting(what: str, rows: Callable[[], list[Row]]) -> list[Row]:
    """Return rows, or say that there are none because memory was too little."""
    try:
        return rows()
    except torch.OutOfMemoryError:
        print(f"gpu: {what} is not measured: it does not fit into this GPU's memory.")
        return []


def answered(
    setting: Setting, model: Any, asked: Sequence[ModelRequest], sizes: Sizes = DEFAULT
) -> list[LoglikelihoodResponse]:
    """Return the answers in the order of the questions.

    Raises OutOfMemoryError where memory ran out, also where the engine then went on with less at a
    time: its time and memory are of something else.
    """
    before = _failed(setting)
    found = [answer for _, answer in sorted(answers(model, asked, sizes), key=itemgetter(0))]
    whole = [answer for answer in found if isinstance(answer, LoglikelihoodResponse)]
    if len(whole) < len(found) or _failed(setting) > before:
        raise torch.OutOfMemoryError("a question ran out of memory")
    return whole


def _failed(setting: Setting) -> int:
    """Return how often the GPU's memory was too little so far."""
    return int(torch.cuda.memory_stats(setting.device)["num_ooms"])


def one_pass(model: Any, length: int) -> list[ModelRequest]:
    """Return a question on every token of a text."""
    return [Loglikelihood(tokens(model, length), 1, doc_id="pass")]


def curve(model: Any, length: int) -> list[ModelRequest]:
    """Return questions on the beginnings of one text, at eight lengths."""
    text = tokens(model, length)
    steps = [length * step // CURVE for step in range(1, CURVE + 1)]
    return [Loglikelihood(text[:n], 1, doc_id="curve") for n in steps]
