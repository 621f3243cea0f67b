"""Compare a server's losses with those measured, and find what explains a difference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from harness.methods.findings import Finding

# The mean difference of a loss in nats that a server's rounding and ours make: of SmolLM2-135M, its
# weights in four bits, bfloat16 alone makes 0.03 to 0.05, and llama.cpp's 8 bits in products 0.04.
BEGIN = " with"  # what a reading's name goes on with that has another first token
CLOSE = {torch.float32: 0.05, torch.float16: 0.05, torch.bfloat16: 0.12}


def server_finding(
    asked: str,
    known: Mapping[str, Mapping[int, float]],
    theirs: Mapping[int, float],
    counts: tuple[int, int | None],
    dtype: torch.dtype = torch.float32,
) -> Finding:
    """Return whether a server computes what was ``asked``, or what else, and where they part.

    ``known`` are our losses by place, under the name of what they were measured with: ``asked``,
    and what explains other numbers; where these are as near, it is a note. ``counts`` are the
    tokens of ours and of the server, ``dtype`` is that of our forward.
    """
    ours, (mine, other) = known[asked], counts
    if other is not None and other not in {len(k) for k in known.values()} | {mine}:
        told = f"it reads {other} tokens where the model's tokenizer has {mine}: other tokens"
        return Finding("server", "failed", told)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return Finding("server", "failed", "it gives no log-probability of a token of the text")
    # A mean of few tokens scatters: by the allowed difference itself over the root of their number.
    close = CLOSE.get(dtype, 0.12) * (1 + 2 / math.sqrt(len(shared)))
    apart = {name: _mean(losses, theirs) for name, losses in known.items()}
    best = min(apart, key=lambda name: (apart[name], name != asked))
    if apart[asked] <= close and apart[asked] <= 2 * apart[best] + 1e-3:
        told = (
            f"{asked}: the losses of {len(shared)} tokens differ by {apart[asked]:.2g} nats on "
            f"average (at most {close:.2g} is allowed)"
        )
        near = [n for n in known if apart[n] <= 2 * apart[asked] + 1e-3 and _mean(known[n], ours)]
        # The same rotation with another first token is no other reading of positions.
        alike = [n for n in near if _mean(known[n.partition(BEGIN)[0]], ours)]
        if near and not alike:
            told += "; this text does not tell whether it reads a begin token"
        if alike:
            told += f", and so near are those of {', '.join(alike)}: this text does not tell which"
        return Finding("server", "note" if alike else "passed", told)
    each = {at: abs(ours[at] - theirs[at]) for at in shared}
    first = next(at for at in shared if each[at] >= min(2 * close, max(each.values())))
    told = (
        f"its losses differ from {asked} by {apart[asked]:.2g} nats on average (at most "
        f"{close:.2g} is allowed), first at token {first} ({theirs[first]:.3f}, measured "
        f"{ours[first]:.3f})"
    )
    explained = best != asked and apart[best] <= close
    told += f"; they are those of {best}" if explained else "; no known cause explains them"
    return Finding("server", "failed", told)


def _mean(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return the mean absolute difference of the losses at places that both have."""
    shared = ours.keys() & theirs.keys()
    if not shared:
        return float("inf")
    return sum(abs(ours[at] - theirs[at]) for at in shared) / len(shared)
