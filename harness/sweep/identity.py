"""Find out which scaling a server computes, by its losses of one text."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.patch import answering
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.sweep.plan import Batch, Plan
from ropewalk.scaling.types import Rope, Rotation
from ropewalk.tasks.types import Loglikelihood

log = logging.getLogger("ropewalk")
COMPARED = 256  # tokens of the text
# The mean difference of a loss in nats that a server's rounding and ours cause, by dtype. In
# SmolLM2-135M, bfloat16 alone causes 0.03 to 0.05 with weights in four bits, llama.cpp's 8-bit
# products 0.04.
CLOSE, OTHER_CLOSE = {"float32": 0.05, "float16": 0.05}, 0.12
Losses = Mapping[int, float]  # by the place of the token
Asked = Callable[[Sequence[int]], Losses]  # the losses of a text that a server computes


@dataclass(frozen=True)
class Finding:
    """One line on a model, a server or code. A ``note`` is information: many good ones differ."""

    about: str
    verdict: Literal["passed", "failed", "note"]
    text: str


def identify(
    asked: Asked, model: Any, rope: Rope, rotation: Rotation, label: str, tokens: Sequence[int]
) -> Finding:
    """Compare a server's losses with ours under a rotation, under none and under native."""
    log.info("Comparing the server's losses of a text with those of the weights here.")
    rotations = {label: rotation}
    for name in ("none", "native") if rope.rotary_dim else ():
        rotations.setdefault(name, resolve(load("method", name), rope, rope.trained_length))
    unlike = {one.fingerprint: one for one in rotations.values()}
    losses = {name: losses_of(model, one, tokens) for name, one in unlike.items()}
    known = {name: losses[one.fingerprint] for name, one in rotations.items()}
    return verdict(label, known, asked(tokens), str(model.dtype).removeprefix("torch."))


def losses_of(model: Any, rotation: Rotation, tokens: Sequence[int]) -> Losses:
    """Return the loss of each token of a text by its place."""
    with answering(model, rotation) as answer:
        ((_, response),) = answer([Loglikelihood(tokens, 1, doc_id="text")])
    return dict(enumerate(response.nll, start=1))  # type: ignore[union-attr]


def verdict(label: str, known: Mapping[str, Losses], theirs: Losses, dtype: str) -> Finding:
    """Return whether a server computes the method of a label, or else what.

    ``known`` are our losses, for the method and for what explains other numbers.
    """
    ours, count = known[label], len(theirs)
    # A mean of few tokens scatters: by the allowed difference itself over the root of their number.
    close = CLOSE.get(dtype, OTHER_CLOSE) * (1 + 2 / math.sqrt(count))
    differences = {name: mean_difference(losses, theirs) for name, losses in known.items()}
    own = differences[label]
    best = min(differences, key=lambda name: (differences[name], name != label))
    by = f"by {own:.2g} nats on average (at most {close:.2g} is allowed)"
    if own > close or own > 2 * differences[best] + 1e-3:
        explained = best != label and differences[best] <= close
        cause = f"they match those of {best}" if explained else "no known cause explains them"
        text = f"its losses of {count} tokens differ from {label} {by}; {cause}"
        return Finding("server", "failed", text)
    text = f"{label}: the losses of {count} tokens differ {by}"
    others = [
        name
        for name, difference in differences.items()
        if difference <= 2 * own + 1e-3 and mean_difference(known[name], ours)
    ]
    if others:
        text += f", and those of {', '.join(others)} are as close: this text cannot tell which"
    return Finding("server", "note" if others else "passed", text)


def mean_difference(ours: Losses, theirs: Losses) -> float:
    """Return the mean absolute difference of the losses at places that both have."""
    shared = ours.keys() & theirs.keys()
    return sum(abs(ours[at] - theirs[at]) for at in shared) / len(shared)


class Identification:
    """Checks what servers compute by the weights here, which are loaded once, if they are here."""

    def __init__(self) -> None:
        self.model: Any = None
        self.lacking = ""

    def check(self, engine: str, asked: Asked, plan: Plan, batch: Batch) -> str:
        """Return what is known of an engine; raise UserError where it computes another scaling."""
        label, checkpoint = batch.items[0].cell.scaling, plan.checkpoint
        if self.model is None and not self.lacking:
            here = replace(checkpoint, served=None, dtype="float32", device="cpu")
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if here.weight_bytes > memory / 2:
                self.lacking = "its weights in float32 take more than half of the memory here."
            else:
                try:
                    self.model = load_weights(here, local_files_only=True)
                except UserError as error:
                    self.lacking = str(error)
        if self.lacking:
            text = f"Whether {engine} computes {label} is unknown: {self.lacking}"
            log.warning(text)
            return text
        longest = max((item.question for item in batch.items), key=lambda q: q.length - q.start)
        # A server may have angles for the trained window alone, where it ignores a scaling.
        tokens = longest.tokens[: min(COMPARED, checkpoint.rope.trained_length)]
        found = identify(asked, self.model, checkpoint.rope, batch.rotation, label, tokens)
        if found.verdict == "failed":
            raise UserError(
                f"{engine} does not compute {label}: {found.text}. Start it with the line "
                "that `ropewalk export` prints, or name what it computes as --scaling."
            )
        log.info(f"{engine} computes {found.text}.")
        return found.text
