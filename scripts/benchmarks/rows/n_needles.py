"""What a grid of needles forwards, counted and not timed, and the least that sharing allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.setting import Row, Setting, build, config, row
from harness.data.corpus import make_source
from harness.data.embedded import held_out
from harness.engine import answers
from harness.models.config import REFERENCE
from tasks import niah
from tasks.types import Loglikelihood, Request, TaskContext

DEVICE = "cpu"
LENGTH = 2048
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}  # counts are of any
HEADS = {"num_attention_heads": 1, "num_key_value_heads": 1}
GRIDS: list[dict[str, Any]] = [
    *({"preset": name} for name in ("single_1", "multivalue", "multiquery")),
    *({"preset": f"multikey_{n}", "in_turn": turns} for n in (1, 2, 3) for turns in (1, 4)),
]


def measure(setting: Setting) -> list[Row]:
    """Prompts of 2048 tokens, room for 128 new ones included; a smoke test has two of each."""
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    source = make_source(tokenizer, lambda: list(held_out()), LENGTH)
    shape = config("XS", vocab_size=len(tokenizer), **SMALL, **HEADS)
    model = build(setting, shape, torch.float32)
    return [_grid(setting, model, source, given) for given in GRIDS]


def _grid(setting: Setting, model: Any, source: TaskContext, given: dict[str, Any]) -> Row:
    grid: dict[str, Any] = {"depths": 2, "trials": 1} if setting.quick else {}
    asked = niah.ask(source, [LENGTH], **given, **grid)
    prompts = [_read(part) for question in asked for part in question.model_requests]
    list(answers(model, prompts[:1]))  # the check of the model, once
    counts: list[int] = []
    embed = model.get_input_embeddings()
    with embed.register_forward_hook(lambda _, ids, __: counts.append(ids[0].numel())):
        list(answers(model, prompts))
    whole, least = sum(prompt.length for prompt in prompts), _beginnings(prompts)
    told = ",".join(f"{name}={value}" for name, value in given.items() if value != 1)
    what = f"niah:{told}, {len(prompts)} prompts: forwarded of {whole:,} tokens"
    equal = f"counted: {sum(counts):,}; least {least:,}, {100 * least / whole:.1f}%"
    return row("n", what, [100 * sum(counts) / whole], "%", None, equal)


def _read(prompt: Request) -> Loglikelihood:
    """Return the question for the last token of a prompt: all of it is forwarded, none written."""
    count = len(prompt.tokens)
    return Loglikelihood(prompt.tokens, count - 1, doc_id=prompt.doc_id)


def _beginnings(prompts: list[Loglikelihood]) -> int:
    """Return how many different beginnings the prompts have: each is a token to forward."""
    every = sorted({tuple(prompt.tokens) for prompt in prompts})
    return sum(map(len, every)) - sum(_common(*pair) for pair in pairwise(every))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    unlike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))
