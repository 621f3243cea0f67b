"""MRCR: conversations in which one request has several answers, and how a repetition is graded."""

import re
from itertools import pairwise

import pytest

from ropewalk.harness.data.corpus import make_context
from ropewalk.tasks import mrcr
from ropewalk.tasks.types import Generate, Generated
from tests.tasks.conftest import TALE
from tests.tasks.test_chat import TEMPLATE, chatting

TURN = re.compile(r"User: (.*?)\nAssistant:(.*?)(?=\nUser: |\Z)", re.DOTALL)
ASKED = re.compile(r"Write (\w+) and directly after it repeat the (\w+) (.+) about (\S.*) in this")
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@pytest.mark.parametrize("needles", [2, 4, 8])
def test_the_answer_is_the_passage_that_the_conversation_has(source, needles):
    """Read turn by turn from the text of the prompt; a longer conversation has the same answer."""
    asked = list(mrcr.ask(source, [3000, 5001], needles=needles, passage=60, trials=4))
    answers = {}
    for one in asked:
        assert one.length in (3000, 5001)
        text = source.decode(one.tokens).removeprefix("<s>")
        turns = TURN.findall(text)
        prefix, place, kind, topic = ASKED.match(turns[-1][0]).groups()
        wanted = [said for request, said in turns if request == f"Write a {kind} about {topic}."]
        assert len(wanted) == needles
        answer = wanted[PLACES.index(place)].strip()
        assert (answer, prefix) == (one.metadata["answer"], one.metadata["prefix"])
        assert answers.setdefault(one.doc_id, answer) == answer
        assert len({request for request, _ in turns}) > 4
        assert all(len(source.encode(said)) >= 58 for _, said in turns[:-1])
        assert text.endswith("\nAssistant:")
        spot = source.decode(one.tokens[int(one.metadata["needle"]) :]).lstrip()
        assert spot.startswith(f"User: Write a {kind} about {topic}.")
    assert len({*answers.values()}) == 4


def test_a_conversation_has_the_turns_of_the_chat_template(source):
    tokenizer = chatting()
    chat = make_context(tokenizer, lambda: [("tale", TALE)], 512)
    (one,) = mrcr.ask(chat, [3000], trials=1, chat=True)
    assert one.length == 3000
    text = tokenizer.decode(one.tokens)
    turns = re.findall(r"<s>(user|assistant)[^\n]*\n(.*?)(?=</s>\n|\Z)", text, re.DOTALL)
    assert [role for role, _ in turns] == ["user", "assistant"] * (len(turns) // 2)
    messages = [{"role": role, "content": said} for role, said in turns[:-1]]
    fixed = TEMPLATE.replace("strftime_now('%d %b %Y')", "'26 Jul 2024'")
    whole = tokenizer.apply_chat_template(
        messages, chat_template=fixed, add_generation_prompt=True, tokenize=False
    )
    assert text == whole
    _, place, kind, topic = ASKED.match(messages[-1]["content"]).groups()
    request = f"Write a {kind} about {topic}."
    wanted = [b["content"] for a, b in pairwise(messages) if a["content"] == request]
    assert wanted[PLACES.index(place)].strip() == one.metadata["answer"]
    with pytest.raises(ValueError, match="no chat template"):
        list(mrcr.ask(source, [900], chat=True))


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Xy12 the grey cat", 1.0),
        ("\nXy12the grey cat", 1.0),
        ("the grey cat", 0.0),
        ("Xy1 the grey cat", 0.0),
        ("Xy12 the cat", 2 * 7 / (7 + 12)),  # "the " and "cat" match, 7 letters of 7 and of 12
        ("", 0.0),
    ],
)
def test_a_repetition_is_scored_by_its_ratio_behind_the_prefix(source, said, value):
    facts = {"prefix": "Xy12", "answer": "the grey cat"}
    sample = mrcr.grade(
        Generate([1], 9, doc_id="x", metadata=facts), Generated(said, (), ()), source
    )
    assert sample.value == pytest.approx(value)
