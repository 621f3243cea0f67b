"""Ask for what a prompt hides, as a text or as targets, and score the share that is found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from tasks._intervals import macro_average, proportion
from tasks._prompt import Frame
from tasks._types import Fact, Request, Response, Sample, Score, TaskContext

Form = Literal["text", "argmax"]
FACTS = {
    "depth": float, "trial": int, "answer": str, "needle": int, "found": str, "said": str,
    "logprob": float, "needles": list, "shares": list,
}  # fmt: skip
MOST = 10_000  # trials of one length: a 95 % interval is then 2 points wide at the widest
SHOWN = 400  # characters of a text that a record keeps
MORE = "…"  # after them, where the text goes on
BETWEEN = ", "  # answers in a record
QUOTE = ' "\n'  # what may stand before an answer


def check_trials(trials: int, depths: int | None = None, *, tasks: int = 1) -> None:
    """Raise ValueError for no trials, or too many: of each depth, or of so many tasks."""
    most = MOST // tasks
    if depths is None and not 1 <= trials <= most:
        of = "" if tasks == 1 else f" of each of {tasks} tasks"
        raise ValueError(f"trials must be 1 or more, {most}{of} a length at the most, got {trials}")
    if depths is not None and (depths < 1 or trials < 1 or depths * trials > MOST):
        raise ValueError(
            f"depths and trials must be 1 or more, depths x trials {MOST} a length at the most,"
            f" got {depths} and {trials}"
        )


def grid(depths: int, trials: int) -> Iterator[tuple[float, int, str]]:
    """Yield every depth, the trial, and a name of its own; the depths are evenly spaced."""
    digits = max(2, len(str(depths)))
    for index in range(depths):
        depth = index / (depths - 1) if depths > 1 else 0.5
        for trial in range(trials):
            yield depth, trial, f"depth {depth:.{digits}f} trial {trial}"


def new_tokens(form: Form, new: int) -> int:
    """Return how many tokens are generated, 0 of targets; raise ValueError for a text of none."""
    if new < 1:
        raise ValueError(f"new={new} is not 1 or more")
    return new if form == "text" else 0


def room(length: int, frame: Frame, new: int, hidden: int = 0) -> int:
    """Return how many tokens a context has, beside its frame and ``new`` tokens or the answer.

    Raises ValueError, with the least length, where the ``hidden`` tokens do not fit.
    """
    around = frame.taken(new)
    if length <= around + hidden:
        least = around + hidden + 1
        raise ValueError(
            f"a prompt and room for the answer need at least {least} tokens, length is {length}"
        )
    return length - around


def question(
    unit: str,
    length: int,
    frame: Frame,
    context: Sequence[int],
    facts: Mapping[str, Fact],
    new: int,
) -> Request:
    """Return a question for a text of up to ``new`` tokens; of 0, for the answer as targets."""
    prompt = [*frame.head, *context, *frame.tail]
    whole = prompt if new else [*prompt, *frame.answer]
    return Request(unit, length, whole, len(prompt), facts, new=new)


def together(asked: Sequence[Request], facts: Mapping[str, Fact]) -> Request:
    """Return one question, or several prompts of one length as the parts of one."""
    return replace(asked[0], facts=facts, parts=tuple(asked) if len(asked) > 1 else ())


def answers(question: Request, source: TaskContext) -> list[str]:
    """Return the answers that count."""
    del source
    return str(question.facts["answer"]).split(BETWEEN)


def shown(text: str) -> str:
    """Return what a record keeps of a text: all of it, or its beginning and a mark."""
    return text if len(text) <= SHOWN else text[:SHOWN] + MORE


def grade(question: Request, answer: Response, source: TaskContext) -> Sample:
    """Return the share of the answers that occur in a text, or whether targets are the argmax.

    ``found`` of one answer is exact, where the text begins with it; format, where it comes later;
    or wrong. Case does not count, as in RULER. Prompts that are asked together are one sample, with
    the mean of their shares.
    """
    if question.parts:
        return _mean(question, answer, source)
    wanted = answers(question, source)
    if not question.new:
        return _targets(question, answer, source, wanted[0])
    said = answer.text.lower()
    hits = sum(one.lower() in said for one in wanted)
    facts = {**question.facts, "said": shown(answer.text)}
    if len(wanted) == 1:
        first = said.lstrip(QUOTE)
        begins = first.startswith(wanted[0].lower()) and not first[len(wanted[0]) :][:1].isalnum()
        facts["found"] = "exact" if begins else "format" if hits else "wrong"
    return Sample(question.unit, hits / len(wanted), 1, facts)


def _mean(question: Request, answer: Response, source: TaskContext) -> Sample:
    """Grade every prompt by itself; ``shares`` has the share of each, ``said`` a JSON list."""
    pairs = zip(question.parts, answer.parts, strict=True)
    graded = [grade(part, its, source) for part, its in pairs]
    shares = [sample.value for sample in graded]
    said = json.dumps([sample.facts["said"] for sample in graded], ensure_ascii=False)
    facts: dict[str, Fact] = {**question.facts, "said": said, "shares": shares}
    if not question.new:
        facts["logprob"] = -sum(loss for its in answer.parts for loss in its.nll)
    return Sample(question.unit, sum(shares) / len(shares), 1, facts)


def _targets(question: Request, answer: Response, source: TaskContext, wanted: str) -> Sample:
    """Score 1 when greedy decoding gives exactly the answer, and then ends the word."""
    said = source.decode(answer.argmax).lstrip(QUOTE)
    same = answer.argmax[:-1] == tuple(question.tokens[question.start :])
    found = same and not said[len(wanted) :][:1].isalnum()
    facts = {
        **question.facts,
        "said": shown(said),
        "found": "exact" if found else "wrong",
        "logprob": -sum(answer.nll),
    }
    return Sample(question.unit, float(found), 1, facts)


def score(samples: Sequence[Sample]) -> Score:
    """Return the mean share of answers found, with a 95 % interval over trials.

    It is Wilson's, of each part of a task with several, and then that of their mean.
    """
    parts: dict[Fact | None, list[float]] = {}
    for sample in samples:
        parts.setdefault(sample.facts.get("part"), []).append(sample.value)
    if len({*map(len, parts.values())}) > 1:  # some have lost trials: all trials count the same
        parts = {None: [sample.value for sample in samples]}
    shares = [
        (sum(values) / len(values), *proportion(sum(values), len(values)))
        for values in parts.values()
    ]
    return Score(*macro_average(shares), len(samples))
