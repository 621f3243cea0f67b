"""BABILong: facts of bAbI's first five questions, hidden in your documents (arXiv:2406.10149).

``question`` is one of qa1 (one fact), qa2 (two), qa3 (three), qa4 (relations of two places) and qa5
(who gave what to whom). The facts lie in their order at drawn depths between ``first`` and
``last``. By default nothing is generated: the answer is the most likely of the question's labels,
six places or seven people and things. ``form=text`` generates ``new`` tokens, of which the first
line must name the answer and no other label that the question does not name.

Differs from BABILong: the facts are drawn anew by bAbI's grammar (arXiv:1502.05698), the
instructions are in other words, and the two examples are drawn too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from ropewalk.tasks._babi import Question, labels, story
from ropewalk.tasks._prompt import Form, around, check_counts, continued, sentences
from ropewalk.tasks._retrieval import score, shown
from ropewalk.tasks.types import (
    Fact,
    Generated,
    Group,
    GroupResponse,
    LoglikelihoodResponse,
    Request,
    Response,
    Sample,
    TaskContext,
)

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
RULES = {
    "qa1": "A person is where they went last.",
    "qa2": "A thing is where its carrier is, or where it was left.",
    "qa3": "A thing is where its carrier is, or where it was left. The last time counts.",
    "qa4": "Each fact says on which side of one place another place is.",
    "qa5": "If several facts answer the question, the last of them counts.",
}
BEFORE = (
    "Facts are hidden in the text below. {rule} Answer the question in one word.\n\n{shots}Text:\n"
)
ASKED = "Question: {question}\n"
REPLY = "Answer:"


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    question: Question = "qa1",
    first: float = 0.0,
    last: float = 1.0,
    form: Form = "argmax",
    new: int = 20,
    trials: int = 25,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``trials`` stories of every length, each in a prompt of the exact length.

    Stories and depths depend only on the question, seed and trial. Raises ValueError for depths out
    of order, where a prompt cannot fit, and where the documents are too short.
    """
    check_counts(trials=trials, new=new)
    if not 0 <= first <= last <= 1:
        raise ValueError(f"first={first:g} and last={last:g} are depths from 0 to 1, in this order")
    new = new if form == "text" else 0
    text = sentences(context, max(lengths))
    for trial in range(trials):
        draw = Random(f"{seed}/{question}/{trial}")
        shots = "".join(
            f"Facts: {' '.join(shot.facts)}\n{ASKED.format(question=shot.question)}"
            f"{REPLY} {shot.answer}\n\n"
            for shot in (story(question, draw), story(question, draw))
        )
        told = story(question, draw)
        depths = sorted(first + (last - first) * draw.random() for _ in told.facts)
        facts = [continued(context, f" {fact}") for fact in told.facts]
        frames = [
            around(
                context, BEFORE.format(rule=RULES[question], shots=shots),
                f"\n\n{ASKED.format(question=told.question)}", REPLY, f" {label}", new=new,
                chat=chat,
            )
            for label in labels(question)
        ]  # fmt: skip
        longest, doc_id = max(frames, key=lambda frame: frame.taken), f"trial {trial}"
        for length in lengths:
            tokens, places = longest.hide(length, text, list(zip(depths, facts, strict=True)))
            stored: dict[str, Fact] = {"trial": trial, "answer": told.answer}
            stored |= {"labels": " ".join(labels(question)), "question": told.question}
            stored["needles"] = [*map(float, places)]
            parts = tuple(frame.request(doc_id, tokens, stored) for frame in frames)
            yield parts[0] if new else Group(parts, doc_id=doc_id, metadata=stored)


def grade(request: Request, response: Response, context: TaskContext) -> Sample:
    """Return whether the most likely label, or the one that a text names, is the answer."""
    facts: dict[str, Fact] = {**request.metadata}
    names, answer = str(facts["labels"]).split(), facts["answer"]
    if isinstance(response, GroupResponse):
        parts = [part for part in response.parts if isinstance(part, LoglikelihoodResponse)]
        losses = [sum(part.nll) for part in parts]
        facts["said"] = names[losses.index(min(losses))]
        return Sample(request.doc_id, float(facts["said"] == answer), 1, facts)
    assert isinstance(response, Generated)
    facts["said"] = shown(response.text)
    line, asked = response.text.strip().partition("\n")[0].lower(), str(facts["question"]).lower()
    said = {name for name in names if name.lower() in line and name.lower() not in asked}
    return Sample(request.doc_id, float(said == {answer}), 1, facts)
