"""Grade what a model says by the answers in it, and score the share that is found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import chain

from ropewalk.tasks._intervals import proportion
from ropewalk.tasks._prompt import BETWEEN, THOUGHT
from ropewalk.tasks.types import (
    Fact,
    Generated,
    Group,
    GroupResponse,
    LoglikelihoodResponse,
    Request,
    Response,
    Sample,
    Score,
    TaskContext,
)

SHOWN = 400  # characters of a text that a record keeps
MORE = "…"  # after them, where the text goes on
QUOTE = ' "\n'  # what may stand before an answer


def answer_of(request: Request, response: Generated) -> str:
    """Return a text, or what follows the reasoning in it: nothing where that did not end."""
    if not request.metadata.get("thinking"):
        return response.text
    return response.text.partition(THOUGHT)[2].lstrip()


def shown(text: str) -> str:
    """Return what a record keeps of a text: all of it, or its beginning and a mark."""
    return text if len(text) <= SHOWN else text[:SHOWN] + MORE


def sample(request: Request, value: float, **facts: Fact) -> Sample:
    """Return the sample of a trial; its facts are added to those of the request."""
    return Sample(request.doc_id, float(value), 1, {**request.metadata, **facts})


def grade(request: Request, response: Response, context: TaskContext) -> Sample:
    """Return the share of the answers that occur in a text, or whether targets are the argmax.

    ``found`` of one answer is exact, where the text begins with it; format, where it comes later;
    or wrong. Case does not count, as in RULER. Targets must end the word too. A group of prompts is
    one sample, with the mean of their ``shares``; ``said`` is a JSON list of their texts.
    """
    if isinstance(request, Group) and isinstance(response, GroupResponse):
        pairs = zip(request.parts, response.parts, strict=True)
        graded = [grade(part, its, context) for part, its in pairs]
        shares = [one.value for one in graded]
        said = json.dumps([one.metadata["said"] for one in graded], ensure_ascii=False)
        losses = [its.nll for its in response.parts if isinstance(its, LoglikelihoodResponse)]
        logprob = {"logprob": -sum(chain.from_iterable(losses))} if losses else {}
        return sample(request, sum(shares) / len(shares), said=said, shares=shares, **logprob)
    wanted = str(request.metadata["answer"]).split(BETWEEN)
    if isinstance(response, LoglikelihoodResponse):
        said = context.decode(response.argmax).lstrip(QUOTE)
        same = response.argmax[:-1] == tuple(request.tokens[request.start :])
        hit = same and not said[len(wanted[0]) :][:1].isalnum()
        found = "exact" if hit else "wrong"
        return sample(request, hit, said=shown(said), found=found, logprob=-sum(response.nll))
    assert isinstance(response, Generated)
    text = answer_of(request, response)
    said = text.lower()
    hits = sum(answer.lower() in said for answer in wanted)
    facts: dict[str, Fact] = {"said": shown(text)}
    if len(wanted) == 1:
        first, answer = said.lstrip(QUOTE), wanted[0].lower()
        exact = first.startswith(answer) and not first[len(answer) :][:1].isalnum()
        facts["found"] = "exact" if exact else "format" if hits else "wrong"
    return sample(request, hits / len(wanted), **facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return the mean share of answers found, with Wilson's 95 % interval for all trials.

    It is the mean over the parts of a task, where each has as many trials. A mean of independent
    parts varies no more than the share of all their trials.
    """
    parts: dict[Fact, list[float]] = {}
    for one in samples:
        parts.setdefault(one.metadata.get("part"), []).append(one.value)
    if len({*map(len, parts.values())}) > 1:  # some have lost trials: all trials count the same
        parts = {"": [one.value for one in samples]}
    value = math.fsum(sum(values) / len(values) for values in parts.values()) / len(parts)
    return Score(value, *proportion(value * len(samples), len(samples)), len(samples))
