"""Every encoding of the laboratory as its paper writes it: one score a pair, in plain loops."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

BASE, WINDOW, LAYER, D = 10_000.0, 64, 1, 16
ROOT = math.sqrt(D)


def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
    """Rotate channels i and i + d/2 of one vector by position * base^(-2i/d)."""
    half, out = len(x) // 2, x.clone()
    for i in range(half):
        angle = position * BASE ** (-i / half)
        cos, sin = math.cos(angle), math.sin(angle)
        out[i], out[i + half] = x[i] * cos - x[i + half] * sin, x[i + half] * cos + x[i] * sin
    return out


def sinusoid(position: int, width: int) -> torch.Tensor:
    """Return Vaswani's vector of a position."""
    angles = [position / 10_000 ** (2 * (c // 2) / width) for c in range(width)]
    values = [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]
    return torch.tensor(values, dtype=torch.float64)


def t5_bucket(distance: int, buckets: int = 32, farthest: int = 128) -> int:
    """Return T5's bucket of a causal distance."""
    exact = buckets // 2
    if distance < exact:
        return distance
    far = math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)
    return min(buckets - 1, exact + int(far))


@dataclass(frozen=True)
class Layer:
    """One layer: its encoding's module ``e``, the layer, and plain queries and keys by head."""

    e: Any
    layer: Any
    q: torch.Tensor
    k: torch.Tensor

    @cached_property
    def turned(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries and keys, vector by vector."""
        both = (self.q, self.k)
        return tuple(
            torch.stack([torch.stack([rotated(x, p) for p, x in enumerate(head)]) for head in part])
            for part in both
        )

    def content(self, h: int, i: int, j: int) -> Any:
        return self.q[h, i] @ self.k[h, j]

    def project(self, weight: torch.Tensor, vector: torch.Tensor, h: int) -> torch.Tensor:
        d = self.q.shape[-1]
        return (weight @ vector)[h * d : (h + 1) * d]


def rope(a: Layer, h: int, i: int, j: int) -> Any:
    return a.turned[0][h, i] @ a.turned[1][h, j] / ROOT


def xpos(a: Layer, h: int, i: int, j: int) -> Any:
    pairs = torch.arange(D // 2, dtype=torch.float64)
    zeta = ((2 * pairs / D + 0.4) / 1.4).repeat(2) ** ((i - j) / (WINDOW / 2))
    return (a.turned[0][h, i] * zeta) @ a.turned[1][h, j] / ROOT


def shaw(a: Layer, h: int, i: int, j: int) -> Any:
    return a.q[h, i] @ (a.k[h, j] + a.e.keys[LAYER, h, min(i - j, a.e.clip)]) / ROOT


def transformer_xl(a: Layer, h: int, i: int, j: int) -> Any:
    r = sinusoid(i - j, a.e.shape.width) @ a.e.projection[LAYER, h]
    four = a.content(h, i, j) + a.q[h, i] @ r + a.e.u[h] @ a.k[h, j] + a.e.v[h] @ r
    return four / ROOT


def t5(a: Layer, h: int, i: int, j: int) -> Any:
    return a.content(h, i, j) / ROOT + ROOT * a.e.bias[h, t5_bucket(i - j)]


def untied(a: Layer, h: int, i: int, j: int) -> Any:
    rows = [a.e.table.weight[position] for position in (i, j)]
    one, other = ((r - r.mean()) / torch.sqrt(r.var(correction=0) + 1e-5) for r in rows)
    places = a.project(a.e.queries, one, h) @ a.project(a.e.keys, other, h)
    bias = ROOT * a.e.bias[h, t5_bucket(i - j)]
    return (a.content(h, i, j) + places) / math.sqrt(2 * D) + bias


def deberta(a: Layer, h: int, i: int, j: int) -> Any:
    def delta(apart: int) -> int:
        return max(0, min(2 * a.e.clip - 1, apart + a.e.clip))

    key = a.project(a.layer.k_proj.weight, a.e.vectors[delta(i - j)], h)
    query = a.project(a.layer.q_proj.weight, a.e.vectors[delta(j - i)], h)
    return (a.content(h, i, j) + a.q[h, i] @ key + a.k[h, j] @ query) / math.sqrt(3 * D)


def alibi(a: Layer, h: int, i: int, j: int) -> Any:
    return a.content(h, i, j) / ROOT - 2 ** (-8 * (h + 1) / len(a.q)) * (i - j)


def kerple(a: Layer, h: int, i: int, j: int) -> Any:
    r1, r2 = (max(1e-2, float(r[LAYER, h])) for r in (a.e.r1, a.e.r2))
    far = math.log(1 + r2 * (i - j)) if a.e.kind == "log" else (i - j) ** min(r2, 2)
    return a.content(h, i, j) / ROOT - r1 * far


def fire(a: Layer, h: int, i: int, j: int) -> Any:
    def psi(x: float) -> Any:
        return torch.log(a.e.c[LAYER].abs() * x + 1)

    longest = max(abs(float(a.e.threshold[LAYER])) * WINDOW, i)
    share = psi(i - j) / (psi(longest) + 1e-6)
    first, _, last = a.e.networks[LAYER]
    hidden = (first.weight[:, 0] * share + first.bias).clamp(min=0)
    return a.content(h, i, j) / ROOT + last.weight[h] @ hidden + last.bias[h]


def plain(a: Layer, h: int, i: int, j: int) -> Any:
    return a.content(h, i, j) / ROOT


SCORES: dict[str, Callable[[Layer, int, int, int], Any]] = {
    one.__name__: one
    for one in (rope, xpos, shaw, transformer_xl, t5, untied, deberta, alibi, kerple, fire)
}


def attention(
    name: str, e: Any, layer: Any, states: tuple[torch.Tensor, ...], *, turned: bool = True
) -> torch.Tensor:
    """Return what every query reads, (heads, tokens, head_dim), pair by pair."""
    q, k, v = states
    a, score, out = Layer(e, layer, q, k), SCORES.get(name, plain), torch.zeros_like(v)
    one = Layer(e, layer, *(torch.where(x > 0, x + 1, x.exp()) for x in (q, k)))  # of rope_linear
    for h in range(len(q)):
        for i in range(q.shape[1]):
            if name == "rope_linear":
                above = rope if turned else plain
                over = sum(above(one, h, i, j) * v[h, j] for j in range(i + 1))
                out[h, i] = over / sum(plain(one, h, i, j) for j in range(i + 1))
                continue
            weights = torch.stack([score(a, h, i, j) for j in range(i + 1)]).softmax(0)
            for j in range(i + 1):
                beside = e.worth[LAYER, h, min(i - j, e.clip)] if name == "shaw" else 0
                out[h, i] += weights[j] * (v[h, j] + beside)
    return out
