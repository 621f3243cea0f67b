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
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ropewalk.tasks._prompt import Form, around, continued, sentences
from ropewalk.tasks._retrieval import sample, score, shown
from ropewalk.tasks.types import (
    Count,
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
Question = Literal["qa1", "qa2", "qa3", "qa4", "qa5"]
Depth = Annotated[float, Field(ge=0, le=1)]
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS, GIVERS = ("apple", "football", "milk"), ("Bill", "Fred", "Jeff", "Mary")
MOVED = ("went to", "moved to", "travelled to", "journeyed to", "went back to")
TOOK, LEFT = ("took", "got", "grabbed", "picked up"), ("left", "dropped", "put down", "discarded")
GAVE = ("gave", "handed", "passed")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
EVENTS = {"qa1": 6, "qa2": 10, "qa3": 14, "qa5": 8}  # of a story
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
    first: Depth = 0.0,
    last: Depth = 1.0,
    form: Form = "argmax",
    new: Count = 20,
    trials: Count = 25,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``trials`` stories of every length, each in a prompt of the exact length.

    Stories and depths depend only on the question, seed and trial. Raises ValueError for depths out
    of order, where a prompt cannot fit, and where the documents are too short.
    """
    if first > last:
        raise ValueError(f"first={first:g} is deeper than last={last:g}, where the facts end")
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
    names, answer = str(request.metadata["labels"]).split(), request.metadata["answer"]
    if isinstance(response, GroupResponse):
        parts = [part for part in response.parts if isinstance(part, LoglikelihoodResponse)]
        losses = [sum(part.nll) for part in parts]
        label = names[losses.index(min(losses))]
        return sample(request, label == answer, said=label)
    assert isinstance(response, Generated)
    line = response.text.strip().partition("\n")[0].lower()
    asked = str(request.metadata["question"]).lower()
    said = {name for name in names if name.lower() in line and name.lower() not in asked}
    return sample(request, said == {answer}, said=shown(response.text))


class Story(NamedTuple):
    """Facts in their order, a question and its answer."""

    facts: list[str]
    question: str
    answer: str


def labels(question: Question) -> tuple[str, ...]:
    """Return what a question can be answered by."""
    return (*GIVERS, *THINGS) if question == "qa5" else PLACES


def story(question: Question, draw: Random) -> Story:
    """Draw a story that answers its question."""
    if question == "qa4":
        return relations(draw)
    while True:
        facts, places, paths, gifts = events(question, draw)
        if question == "qa1":
            person = draw.choice(sorted(places))
            return Story(facts, f"Where is {person}?", places[person])
        if question == "qa5" and gifts:
            giver, thing, taker = gifts[-1]
            asked = draw.choice([
                (f"Who gave the {thing} to {taker}?", giver), (f"Who gave the {thing}?", giver),
                (f"Who did {giver} give the {thing} to?", taker),
                (f"Who received the {thing}?", taker),
                (f"What did {giver} give to {taker}?", thing),
            ])  # fmt: skip
            return Story(facts, *asked)
        known = sorted(thing for thing, path in paths.items() if len(path) > (question == "qa3"))
        if question in ("qa2", "qa3") and known:
            thing = draw.choice(known)
            if question == "qa2":
                return Story(facts, f"Where is the {thing}?", paths[thing][-1])
            *_, answer, place = paths[thing]
            return Story(facts, f"Where was the {thing} before the {place}?", answer)


def events(
    question: Question, draw: Random
) -> tuple[list[str], dict[str, str], dict[str, list[str]], list[tuple[str, str, str]]]:
    """Draw what people do: the facts, where each is, where each thing was, and who gave what."""
    people = GIVERS if question == "qa5" else ("Daniel", "John", "Mary", "Sandra")
    lying = {} if question == "qa1" else {thing: draw.choice(PLACES) for thing in THINGS}
    facts, places, held = list[str](), dict[str, str](), dict[str, str]()
    paths, gifts = dict[str, list[str]](), list[tuple[str, str, str]]()
    while len(facts) < EVENTS[question]:
        person, thing, drops = draw.choice(people), draw.choice(THINGS), draw.random() < 0.5
        here, has = places.get(person), held.get(thing) == person
        near = [other for other in people if other != person and places.get(other) == here]
        if has and question == "qa5" and near:
            held[thing] = draw.choice(near)
            gifts.append((person, thing, held[thing]))
            facts.append(f"{person} {draw.choice(GAVE)} the {thing} to {held[thing]}.")
        elif has and question != "qa5" and drops:
            lying[thing] = places[held.pop(thing)]
            facts.append(f"{person} {draw.choice(LEFT)} the {thing}.")
        elif here is not None and lying.get(thing) == here:
            held[thing] = person
            paths.setdefault(thing, [lying.pop(thing)])
            facts.append(f"{person} {draw.choice(TOOK)} the {thing} there.")
        else:
            places[person] = draw.choice([place for place in PLACES if place != here])
            for own in (own for own, by in held.items() if by == person):
                paths[own].append(places[person])
            facts.append(f"{person} {draw.choice(MOVED)} the {places[person]}.")
    return facts, places, paths, gifts


def relations(draw: Random) -> Story:
    """Draw on which sides of each other three places are; the second is not on the first's line."""
    one, middle, other = draw.sample(PLACES, 3)
    side = draw.choice(sorted(OPPOSITE))
    second = draw.choice(sorted(OPPOSITE.keys() - {side, OPPOSITE[side]}))
    known = [(one, side, middle), (middle, second, other)]
    facts = [f"The {a} is {where} of the {b}." for a, where, b in known]
    a, where, b = draw.choice(known)
    asked = draw.choice([(f"What is {where} of the {b}?", a), (f"What is the {a} {where} of?", b)])
    return Story(facts, *asked)
