"""What the reference model reads in training: text, pass key prompts, repeated spans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random

import torch

from tasks.passkey import Filler, prompt
from tasks.types import TaskContext

FILLERS: tuple[Filler, ...] = ("standard", "documents")


@dataclass(frozen=True)
class Recipe:
    """Every setting the weights depend on."""

    seed: int = 1
    steps: int = 1600
    window: int = 256
    rows: int = 32
    rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.1
    vocabulary: int = 2048
    width: int = 256
    layers: int = 6
    mlp: int = 768
    answer_weight: float = 8.0


@dataclass(frozen=True)
class Row:
    """One training window and the weight of every token in the loss."""

    tokens: list[int]
    weights: list[float]


def text_row(source: TaskContext, window: int, draw: Random) -> Row:
    """Draw a window of text: the begin token, then consecutive tokens of one document."""
    while True:
        passage = draw.choices(source.documents(), cum_weights=_cumulative(source))[0]
        tokens = passage.tokens
        if len(tokens) >= window:
            first = draw.randrange(len(tokens) - window + 2)
            kept = [*source.opening, *tokens[first : first + window - 1]]
            return Row(kept, [1.0] * window)


@cache
def _cumulative(source: TaskContext) -> list[int]:
    """Return the running sum of the passages' lengths: a token is drawn, not a document."""
    return list(accumulate(len(passage.tokens) for passage in source.documents()))


def passkey_row(source: TaskContext, recipe: Recipe, least: int, draw: Random) -> Row:
    """Draw a pass key prompt of random length, depth and filler; text follows a short one."""
    length = draw.randint(least, recipe.window)
    key, depth = draw.randrange(10_000, 100_000), draw.random()
    filler = draw.choice(FILLERS)
    made = prompt(source, length, key, depth, filler=filler, draw=draw)
    tokens, start = made.tokens, made.start
    weights = [1.0 if filler == "documents" else 0.2] * start
    weights += [recipe.answer_weight] * (length - start)
    rest = recipe.window - length
    if rest > 0:
        more = [*source.encode(".\n"), *text_row(source, recipe.window, draw).tokens[1:]]
        tokens += tuple(more[:rest])
        weights += [recipe.answer_weight, *[1.0] * (rest - 1)]
    return Row(list(tokens), weights)


def span_row(source: TaskContext, recipe: Recipe, draw: Random) -> Row:
    """Repeat a span of text or of random tokens, digits mixed in, until the window is full."""
    length = draw.randint(12, recipe.window // 2)
    if draw.random() < 0.5:
        span = text_row(source, recipe.window, draw).tokens[1 : length + 1]
    else:
        span = [draw.randrange(2, recipe.vocabulary) for _ in range(length)]
    digits = [token for digit in "0123456789" for token in source.encode(digit)]
    for _ in range(length // 6):
        span[draw.randrange(length)] = draw.choice(digits)
    copies = span * math.ceil(recipe.window / length)
    tokens = [*source.opening, *copies][: recipe.window]
    return Row(tokens, [0.1 if i <= length else 1.0 for i in range(recipe.window)])


def batch(
    source: TaskContext, recipe: Recipe, least: int, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and weights of a step, each (rows, window); a function of the step."""
    draw = Random(f"{recipe.seed}/{step}")
    spans = keys = recipe.rows // 4
    rows = [span_row(source, recipe, draw) for _ in range(spans)]
    rows += [passkey_row(source, recipe, least, draw) for _ in range(keys)]
    rows += [text_row(source, recipe.window, draw) for _ in range(recipe.rows - spans - keys)]
    return torch.tensor([r.tokens for r in rows]), torch.tensor([r.weights for r in rows])
