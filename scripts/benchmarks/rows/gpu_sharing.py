"""What shared beginnings save on a GPU: a prefix curve and a grid of pass keys."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import AutoTokenizer

from benchmarks import gpu
from benchmarks.setting import Row, Setting, agree, operations, over_law, ratios, row
from harness.data.corpus import make_source
from harness.engine.prefix_tree import build_tree
from harness.models.config import REFERENCE
from tasks import passkey
from tasks.types import LoglikelihoodResponse, ModelRequest

DEVICE = "cuda"
DEPTHS, TRIALS = 5, 4


def measure(setting: Setting) -> list[Row]:
    """Each question alone over all together, bfloat16; random weights."""
    return gpu.measured(setting, _model)


def _model(setting: Setting, name: str, model: Any) -> list[Row]:
    found = []
    for length in map(setting.size, gpu.LENGTHS):
        kinds = {
            f"prefix curve, {gpu.CURVE} lengths to {length}": gpu.curve(model, length),
            f"passkey at {length}, {DEPTHS} depths, {TRIALS} trials": grid(length),
        }
        for kind, asked in kinds.items():
            what = f"{name}: {kind}, each alone over all together"
            found += gpu.fitting(what, partial(_gain, setting, model, asked, what))
    return found


def grid(length: int) -> list[ModelRequest]:
    """Return pass keys in the tokens of the embedded model: any model has these."""
    source = make_source(AutoTokenizer.from_pretrained(REFERENCE), list, gpu.TRAINED)
    return list(passkey.ask(source, (length,), depths=DEPTHS, trials=TRIALS))


def _gain(setting: Setting, model: Any, asked: list[ModelRequest], what: str) -> list[Row]:
    found: list[list[LoglikelihoodResponse]] = [[], []]

    def alone() -> None:
        found[0] = [gpu.answered(setting, model, [one])[0] for one in asked]

    def together() -> None:
        found[1] = gpu.answered(setting, model, asked)

    gpu.answered(setting, model, asked[:1])  # the check of the model
    # Twenty prompts of the longest alone take minutes: once is enough there.
    turns = 1 if asked[0].length == setting.size(gpu.LENGTHS[-1]) else None
    gained = ratios(*setting.interleaved(alone, together, turns=turns))
    one, other = ([statistics.fmean(answer.nll) for answer in part] for part in found)
    return [
        row("gpu", what, gained, "x", None, agree(one, other, model.dtype)),
        over_law("gpu", gained, law(model.config, asked)),
    ]


def law(shaped: Any, asked: Sequence[ModelRequest]) -> float:
    """Return the operations of all questions alone over those of their prefix tree.

    The head reads a row for each target and one more, of a tree each row once.
    """
    tree = build_tree([one.tokens for one in asked])
    head = float(2 * shaped.hidden_size * shaped.vocab_size)

    def layers(length: int) -> float:
        return operations(shaped, length) - length * head

    rows = {
        (index, place)
        for one, path in zip(asked, tree.paths, strict=True)
        for index in path
        for place in range(
            max(tree.nodes[index].first, one.start - 1), min(tree.nodes[index].end, one.length)
        )
    }
    shared = sum(layers(node.end) - layers(node.first) for node in tree.nodes)
    alone = sum(layers(one.length) + head * (one.length - one.start + 1) for one in asked)
    return alone / (shared + head * len(rows))
