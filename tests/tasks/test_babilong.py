"""BABILong: stories whose answers an independent reader finds, and how answers are graded."""

import re

import pytest

from ropewalk.tasks import babilong
from ropewalk.tasks.types import (
    Generate,
    Generated,
    Group,
    GroupResponse,
    Loglikelihood,
    LoglikelihoodResponse,
)

SIDES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
FACT = re.compile(
    r"(?P<who>[A-Z]\w+) (?:(?P<to>went to|moved to|travelled to|journeyed to|went back to)"
    r"|(?P<took>took|got|grabbed|picked up)|(?P<left>left|dropped|put down|discarded)"
    r"|(?P<gave>gave|handed|passed)) the (?P<what>\w+)(?: to (?P<taker>\w+))?(?: there)?\."
    r"|The (?P<one>\w+) is (?P<side>\w+) of the (?P<other>\w+)\."
)


def replayed(text: str) -> tuple[dict, dict, list, dict]:
    """Return where each person is, where each thing was, who gave what, and a map of places."""
    where, owner, path, gifts, at = {}, {}, {}, [], {}
    for fact in FACT.finditer(text):
        who, what = fact["who"], fact["what"]
        if fact["to"]:
            where[who] = what
            for thing in (thing for thing, by in owner.items() if by == who):
                path[thing].append(what)
        elif fact["took"]:
            owner[what] = who
            if what not in path:
                path[what] = [where[who]]
            assert path[what][-1] == where[who]  # a thing is taken where it lies
        elif fact["left"]:
            assert owner.pop(what) == who
        elif fact["gave"]:
            assert owner[what] == who
            assert where[who] == where[fact["taker"]]
            owner[what] = fact["taker"]
            gifts.append((who, what, fact["taker"]))
        else:
            dx, dy = SIDES[fact["side"]]
            if not at:
                at[fact["other"]] = (0, 0)
            if fact["other"] in at:
                x, y = at[fact["other"]]
                at[fact["one"]] = (x + dx, y + dy)
            else:
                x, y = at[fact["one"]]
                at[fact["other"]] = (x - dx, y - dy)
    return where, path, gifts, at


def read(text: str, question: str) -> str:
    """Answer a question by the facts of a text, replayed one by one."""
    where, path, gifts, at = replayed(text)
    if m := re.fullmatch(r"Where was the (\w+) before the (\w+)\?", question):
        last = max(n for n, place in enumerate(path[m[1]]) if place == m[2])
        return path[m[1]][last - 1]
    if m := re.fullmatch(r"Where is the (\w+)\?", question):
        return path[m[1]][-1]
    if m := re.fullmatch(r"Where is (\w+)\?", question):
        return where[m[1]]
    if m := re.fullmatch(r"What is (\w+) of the (\w+)\?", question):
        (x, y), (dx, dy) = at[m[2]], SIDES[m[1]]
        return next(name for name, place in at.items() if place == (x + dx, y + dy))
    if m := re.fullmatch(r"What is the (\w+) (\w+) of\?", question):
        (x, y), (dx, dy) = at[m[1]], SIDES[m[2]]
        return next(name for name, place in at.items() if place == (x - dx, y - dy))
    for pattern, known, place in (
        (r"Who gave the (\w+) to (\w+)\?", (1, 2), 0),
        (r"Who gave the (\w+)\?", (1,), 0),
        (r"What did (\w+) give to (\w+)\?", (0, 2), 1),
        (r"Who received the (\w+)\?", (1,), 2),
        (r"Who did (\w+) give the (\w+) to\?", (0, 1), 2),
    ):
        if m := re.fullmatch(pattern, question):
            fits = [gift for gift in gifts if tuple(gift[k] for k in known) == m.groups()]
            return fits[-1][place]
    raise AssertionError(question)


@pytest.mark.parametrize("question", ["qa1", "qa2", "qa3", "qa4", "qa5"])
def test_the_answer_is_what_the_facts_say(source, question):
    """The two examples too; the facts lie between the depths, and a longer prompt has the same."""
    options = {"question": question, "first": 0.5, "last": 0.75, "trials": 12, "form": "text"}
    asked = list(babilong.ask(source, [3001, 5000], **options))
    told = {}
    for one in asked:
        assert isinstance(one, Generate)
        assert one.length in (3001, 5000)
        text = source.decode(one.tokens)
        *shots, (facts, last) = re.findall(
            r"(?:Facts|Text):(.*?)Question: (.*?)\n", text, re.DOTALL
        )
        assert read(facts, last) == one.metadata["answer"]
        answers = re.findall(r"Answer: (\w+)\n\n", text)
        assert [read(*shot) for shot in shots] == answers
        assert told.setdefault(one.doc_id, (last, one.metadata["answer"])) == (
            last, one.metadata["answer"],
        )  # fmt: skip
        places = [place / len(one.tokens) for place in one.metadata["needles"]]
        assert sorted(places) == places
        assert 0.4 < places[0] < places[-1] < 0.9
        if question in ("qa1", "qa2", "qa3"):
            assert {"Daniel", "John", "Mary", "Sandra"} & set(re.findall(r"\w+", facts))
    assert len({answer for _, answer in told.values()}) > 2


def test_the_most_likely_label_is_the_answer_without_generation(source):
    """Worked by hand: the losses of the labels, in their order, in nats."""
    (one,) = babilong.ask(source, [3000], trials=1)
    assert isinstance(one, Group)
    assert one.length == 3000
    stems = {tuple(part.tokens[: part.start]) for part in one.parts}
    assert len(stems) == 1
    said = [source.decode(part.tokens[part.start :]).strip() for part in one.parts]
    assert said == ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office"]
    answer = said.index(one.metadata["answer"])
    for best in range(6):
        parts = tuple(
            LoglikelihoodResponse((0.5, 0.5) if at == best else (0.0, 1.5), (1, 1, 1))
            for at in range(6)
        )
        sample = babilong.grade(one, GroupResponse(parts), source)
        assert (sample.value, sample.metadata["said"]) == (float(best == answer), said[best])
    assert all(isinstance(part, Loglikelihood) for part in one.parts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" kitchen", 1.0),
        (" The Kitchen.\n\nQuestion: Where is the garden?", 1.0),
        (" kitchen or garden", 0.0),
        (" garden", 0.0),
        (" before the office, it was in the kitchen", 1.0),  # the question names the office
        ("", 0.0),
    ],
)
def test_a_text_names_the_answer_and_no_other_label(source, text, value):
    facts = {
        "answer": "kitchen",
        "labels": "garden kitchen office",
        "question": "Where was the milk before the office?",
    }
    request = Generate([1], 9, doc_id="x", metadata=facts)
    assert babilong.grade(request, Generated(text, (), ()), source).value == value
