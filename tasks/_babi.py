"""Stories by the grammar of bAbI's first five questions, drawn anew (arXiv:1502.05698)."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

Question = Literal["qa1", "qa2", "qa3", "qa4", "qa5"]
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS, GIVERS = ("apple", "football", "milk"), ("Bill", "Fred", "Jeff", "Mary")
MOVED = ("went to", "moved to", "travelled to", "journeyed to", "went back to")
TOOK, LEFT = ("took", "got", "grabbed", "picked up"), ("left", "dropped", "put down", "discarded")
GAVE = ("gave", "handed", "passed")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
EVENTS = {"qa1": 6, "qa2": 10, "qa3": 14, "qa5": 8}  # of a story


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
