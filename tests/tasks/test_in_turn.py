"""Several keys of one haystack, each asked for by a prompt of its own, are one trial."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoModelForCausalLM

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.engine import answers
from ropewalk.harness.engine.memory import ROWS
from ropewalk.tasks import niah
from ropewalk.tasks._intervals import proportion
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import (
    Generate,
    Generated,
    Group,
    GroupResponse,
    TaskContext,
)
from tests.asking import forwarded
from tests.tiny import BOS, tiny_tokenizer

TEXT = "".join(f"This is sentence {n} of a tale. Was there  one\nbefore it? " for n in range(300))
# RULER's template of one needle (scripts/data/synthetic/constants.py, niah.py), typed by hand.
HEAD = (
    "A special magic {v} is hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {v} afterwards.\n"
)
TAIL = (
    "What is the special magic {v} for {k} mentioned in the provided text?"
    " The special magic {v} for {k} mentioned in the provided text is"
)
NEEDLE = re.compile(r"One of the special magic \w+ for (\S+) is: ([\w-]+)\.")
VALUES = {"multikey_1": "number", "multikey_2": "number", "multikey_3": "uuid"}


@pytest.fixture(scope="module")
def source() -> TaskContext:
    return make_context(tiny_tokenizer(), lambda: [("tale", TEXT)], 512)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny).eval()


@pytest.mark.parametrize("form", ["text", "argmax"])
@pytest.mark.parametrize("preset", VALUES)
def test_each_prompt_is_rulers_for_its_key_after_one_haystack(source, preset, form):
    given: dict[str, Any] = {"preset": preset, "form": form, "in_turn": 4, "new": 50}
    for asked in niah.ask(source, [1800, 2503], depths=2, trials=2, **given):
        wanted = str(asked.metadata["answer"]).split(", ")
        assert [part.metadata["answer"] for part in asked.parts] == wanted
        assert len(set(wanted)) == 4
        haystacks = []
        for number, part in enumerate(asked.parts):
            assert part.length == asked.length == len(part.tokens) + (50 if form == "text" else 0)
            text = source.decode(part.tokens[: part.start]).removeprefix(BOS)
            keys = {value: key for key, value in NEEDLE.findall(text)}
            newline = "\n" if preset == "multikey_1" else ""  # before the question, of documents
            told = {"v": VALUES[preset], "k": keys[wanted[number]]}
            head, tail = HEAD.format(**told), newline + TAIL.format(**told)
            assert text.startswith(head)
            assert text.endswith(tail)
            haystacks.append(text[len(head) : len(text) - len(tail)])
            if form == "argmax":
                assert source.decode(part.tokens[part.start :]) == f" {wanted[number]}"
            place = int(cast(list[float], asked.metadata["needles"])[number])
            needle = source.decode(part.tokens[place:]).lstrip()
            assert needle.startswith("One of") == needle.partition(": ")[2].startswith(
                wanted[number]
            )
        shortest = min(map(len, haystacks))
        for one, other in pairwise(haystacks):  # a cut sentence of needles still ends its line
            assert one[: shortest - 1] == other[: shortest - 1]
        for filler in (NEEDLE.sub("#", haystack) for haystack in haystacks):
            if preset == "multikey_1":
                assert f" {' '.join(TEXT.split())}".startswith(filler.replace(" #", ""))
            else:
                assert set(filler.split("\n")[:-2]) == {"#"}


def test_one_key_in_turn_is_the_question_without_the_option(source):
    plain = list(niah.ask(source, [2000], preset="multikey_1", depths=0, trials=3))
    assert (
        list(niah.ask(source, [2000], preset="multikey_1", in_turn=1, depths=0, trials=3)) == plain
    )
    turns = niah.ask(source, [2000], preset="multikey_1", in_turn=4, depths=0, trials=3)
    for one, asked in zip(plain, turns, strict=True):
        assert asked.doc_id == one.doc_id
        assert str(asked.metadata["answer"]).split(", ")[0] == one.metadata["answer"]


@pytest.mark.parametrize("preset", ["multikey_1", "multikey_2"])
def test_one_prefill_answers_all_keys_of_a_haystack(source, model, preset):
    given: dict[str, Any] = {"preset": preset, "in_turn": 4, "depths": 1, "trials": 1}
    (asked,) = niah.ask(source, [1500], form="argmax", **given)
    parts = list(asked.parts)
    haystack = min(kept(parts[0].tokens).common(kept(part.tokens)) for part in parts[1:])
    assert haystack > 1200
    each = {p.tokens[:end] for p in parts for end in range(haystack + 1, p.length + 1)}
    least = haystack + len(each)  # two of the keys may begin alike
    assert least <= forwarded(model, parts) < least + ROWS  # rows of a pack are whole blocks
    (text,) = niah.ask(source, [1500], new=6, **given)
    for question in (asked, text):
        every = dict(answers(model, question.parts, decode=source.decode))
        alone = [next(answers(model, [p], decode=source.decode))[1] for p in question.parts]
        assert [every[index] for index in range(4)] == alone
        whole = niah.grade(question, GroupResponse(tuple(alone)), source)
        graded = [niah.grade(p, a, source) for p, a in zip(question.parts, alone, strict=True)]
        assert whole.value == sum(sample.value for sample in graded) / 4
        assert json.loads(str(whole.metadata["said"])) == [
            sample.metadata["said"] for sample in graded
        ]


def test_a_haystack_has_the_mean_of_its_answers(source):
    """Two texts of three have the value: a trial of two thirds, and one of the interval's n."""
    prompts = tuple(Generate([1] * 3, 10, doc_id="q", metadata={"answer": a}) for a in "abc")
    asked = Group(prompts, doc_id="q", metadata={"answer": "a, b, c"})
    said = tuple(Generated(text, (5,), (0.1,)) for text in (" a.", " x", " c, b"))
    sample = niah.grade(asked, GroupResponse(said), source)
    assert (sample.value, sample.weight) == (2 / 3, 1)
    assert sample.metadata["shares"] == [1, 0, 1]
    found = niah.score([sample, sample])
    assert (found.n, found.low, found.high) == (2, *proportion(4 / 3, 2))


def test_more_keys_than_are_hidden_are_refused(source):
    with pytest.raises(ValueError, match="in_turn=2 is more than the keys that are hidden, 1"):
        list(niah.ask(source, [2000], in_turn=2))
    given: dict[str, Any] = {"preset": "multikey_1", "in_turn": 4, "depths": 1, "trials": 1}
    with pytest.raises(ValueError, match=r"at least \d+ tokens; --length 400 is") as refused:
        list(niah.ask(source, [400], **given))
    least = int(str(refused.value).partition("at least ")[2].split()[0])
    assert len(list(niah.ask(source, [least], **given))) == 1
