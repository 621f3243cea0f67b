"""Layer-specific scaling: one factor per layer, by a Bezier curve of depth (arXiv:2503.04355)."""

from itertools import pairwise
from typing import Annotated, Literal

from ropewalk.scaling import ntk, pi, yarn
from ropewalk.scaling.types import (
    Factor,
    Frequencies,
    PerLayerFrequencies,
    Range,
    Rope,
    factor_or_stretch,
)

SCALED = {"pi": pi.frequencies, "ntk": ntk.frequencies, "yarn": yarn.frequencies}
Share = Annotated[float, Range(0.0, 2.0)]


def frequencies(
    rope: Rope,
    length: int,
    *,
    factor: Factor = None,
    first: Share = 1.0,
    second: Share = 1.0,
    third: Share = 1.0,
    last: Share = 1.0,
    kind: Literal["pi", "ntk", "yarn"] = "pi",
) -> Frequencies | PerLayerFrequencies:
    """Return, for each layer, the frequencies of ``kind`` at its own factor, ``factor`` ** share.

    The share of a layer lies on a cubic Bezier curve over the depth. It is ``first`` at the first
    layer and ``last`` at the last. It is pulled towards ``second`` after a third of the depth and
    towards ``third`` after two thirds. A share of 0 leaves a layer as it was trained. A share of 1,
    the default of all four, is ``kind`` itself. An unset factor is the stretch of the length.

    The paper searches the curve with a genetic algorithm for a model and a task, for PI and
    NTK-aware factors; ``ropewalk tune layerwise`` uses CMA-ES. Differs from the paper, of which
    only the summary was available: here the curve gives shares of the factor's logarithm, with the
    control points at equal steps of depth.
    """
    points = (first, second, third, last)
    for share in points:
        if not 0 <= share <= 4:
            raise ValueError(f"first, second, third and last must be from 0 to 4, got {share}")
    if kind not in SCALED:
        raise ValueError(f"kind is pi, ntk or yarn, got {kind}")
    whole, deepest = factor_or_stretch(factor, rope, length), max(1, rope.layers - 1)
    shares = [_curve(points, layer / deepest) for layer in range(rope.layers)]
    return PerLayerFrequencies(
        tuple(SCALED[kind](rope, length, factor=whole**share) for share in shares)
    ).plainest()


def _curve(points: tuple[float, ...], at: float) -> float:
    """Return a Bezier curve's value at 0..1, by de Casteljau's steps: exact where all are equal."""
    while len(points) > 1:
        points = tuple(a + at * (b - a) for a, b in pairwise(points))
    return points[0]
