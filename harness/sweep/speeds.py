"""What a machine takes for the parts of a cost: fitted to what was measured, by length and kind.

A forward costs by its tokens, by the pairs of its attention and once for itself, and a token of a
text costs far more than one of a prompt: one rate for all of them would be wrong by a factor of
forty for long prompts after short texts. Every part has its own speed, found by least squares.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from harness.models.checkpoint import DTYPES

Cost = NDArray[np.float64]  # runs; operations by tokens, by pairs, of tokens that are written
# What is taken to be known before, in operations by tokens: what a run costs beside its tokens,
# and operations of the other kinds. Written tokens read all weights one by one.
USUAL = np.array([3e7, 1.0, 1.5, 40.0])
TRUST = 0.1  # in it: a speed ten times another one weighs as much as a row that is wrong by itself
SOON = 1.0  # seconds of a method until its own speed counts as much as that of all
OF_PEAK = 0.5  # share of the speed of a large product that a forward reaches
TIMED = 0.2  # seconds in which the fastest product is sought; others may hold the machine for some


@dataclass(frozen=True)
class Kind:
    """Samples that are alike in what they take: of a method, with one length, texts or not."""

    method: str
    length: int
    text: bool


@dataclass
class Row:
    """The cost and the seconds of all samples of a kind."""

    cost: Cost = field(default_factory=lambda: np.zeros(4))
    seconds: float = 0.0


Rows = dict[Kind, Row]


@dataclass(frozen=True)
class Speeds:
    """Seconds of each part of a cost, and how much slower each method is than all together."""

    parts: Cost
    factors: Mapping[str, float]

    def seconds(self, cost: Cost, method: str) -> float:
        """Return how long so much of a method takes."""
        return float(cost @ self.parts) * self.factors.get(method, 1.0)


def fitted(known: Rows, measured: Rows, guess: float | None) -> Speeds | None:
    """Return the speeds that these rows show; what is measured now sets the level.

    ``guess`` are the seconds of an operation where there is no row. None where nothing is known.
    """
    rows = {kind: row for kind, row in {**known, **measured}.items() if row.cost.any()}
    if not sum(row.seconds for row in rows.values()):
        return None if guess is None else Speeds(USUAL * guess, {})
    parts = _parts(list(rows.values()))
    now = {kind: row for kind, row in measured.items() if row.cost.any()}
    level = _level(parts, now.values()) if sum(row.seconds for row in now.values()) else 1.0
    factors = {}
    for method in {kind.method for kind in rows}:
        own = [(kind, row) for kind, row in rows.items() if kind.method == method]
        newest = [row for kind, row in own if kind in now] or [row for _, row in own]
        scale = level if any(kind in now for kind, _ in own) else 1.0
        told = scale * sum(float(row.cost @ parts) for row in newest)
        took = sum(row.seconds for row in newest)
        factors[method] = (took + SOON) / (told + SOON)
    return Speeds(parts * level, factors)


def _parts(rows: list[Row]) -> Cost:
    """Return the seconds of each part that fit the rows best, none below 0, relative to each."""
    costs = np.array([row.cost for row in rows]) * USUAL
    took = np.array([row.seconds for row in rows])
    base = took.sum() / costs.sum()
    weight = 1 / np.maximum(took, took.sum() / 100)  # a short row is known least
    held = math.sqrt(TRUST) * np.eye(4)
    asked = np.vstack([costs * base * weight[:, None], held])
    found, _ = nnls(asked, np.concatenate([took * weight, held.sum(axis=0)]))
    return np.asarray(found * base * USUAL)


def _level(parts: Cost, rows: Iterable[Row]) -> float:
    """Return how many times slower the rows were than these speeds say."""
    made = list(rows)
    return sum(row.seconds for row in made) / max(sum(float(r.cost @ parts) for r in made), 1e-9)


def guessed(device: str, dtype: str) -> float:
    """Return the seconds that an operation of a forward takes here, from one product, timed."""
    width = 4096 if torch.device(device).type == "cuda" else 512
    one = torch.ones(width, width, device=device, dtype=DTYPES[dtype])
    float((one @ one)[0, 0])  # the first loads what multiplies, which takes a GPU longer than TIMED
    took, end = math.inf, time.perf_counter() + TIMED
    while took == math.inf or time.perf_counter() < end:
        began = time.perf_counter()
        float((one @ one)[0, 0])  # waits for a GPU
        took = min(took, time.perf_counter() - began)
    return took / (2 * width**3) / OF_PEAK
