"""Search a cube by CMA-ES: ask, measure, tell; the same asks whenever the answers are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from harness.errors import UserError
from harness.select.space import Space

SIGMA = 0.2  # of the first draws, in widths of the cube


@dataclass(frozen=True)
class Trial:
    """One point that was tried: its number, the method there, and its score in nats a token."""

    number: int
    method: str
    score: float  # infinite for one that has no number


def check_installed() -> None:
    """Raise UserError where the optimiser is not installed, before anything is measured."""
    if find_spec("cmaes") is None:
        raise UserError("tune needs the package cmaes: pip install 'ropewalk[tune]'.")


def search(
    space: Space, trials: int, seed: int, measure: Callable[[Sequence[Trial]], Sequence[Trial]]
) -> list[Trial]:
    """Return every trial, in order.

    Nothing but the seed and the scores decides what is tried, so a search that continues from
    stored scores is the one that was not interrupted, bit for bit. ``measure`` takes the trials of
    one generation without scores and returns them with.
    """
    from cmaes import CMA

    size = max(2, len(space.start))  # CMA-ES needs two; the second then has no effect
    start = np.array([*space.start, *[0.5] * (size - len(space.start))])
    cube = np.array([[0.0, 1.0]] * size)
    optimiser = CMA(start, SIGMA, bounds=cube, seed=seed % 2**32)
    done: list[Trial] = []
    while len(done) < trials:
        asked = [optimiser.ask() for _ in range(optimiser.population_size)]
        some = [
            Trial(number, space.method(x.tolist(), number), math.inf)
            for number, x in enumerate(asked[: trials - len(done)], start=len(done) + 1)
        ]
        found = measure(some)
        done += found
        if len(found) == len(asked):
            scores = [trial.score for trial in found]
            optimiser.tell([(x, score) for x, score in zip(asked, scores, strict=True)])
    return done
