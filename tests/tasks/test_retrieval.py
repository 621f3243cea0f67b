"""Prompts of the retrieval tasks: exact lengths, shared seeds, RULER's own text, and scores."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.engine.memory import ROWS
from ropewalk.harness.plugins import load
from ropewalk.tasks import common_words, frequent_words, key_value, niah, ruler, variable_tracking
from ropewalk.tasks._intervals import proportion
from ropewalk.tasks._prompt import FILLER, around, continued
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.niah import PRESETS, Setting, framed, needles
from ropewalk.tasks.types import Generate, Generated, Group, GroupResponse, Sample
from tests import ROOT
from tests.asking import forwarded
from tests.tasks.conftest import TALE
from tests.tiny import tiny_tokenizer

RULER: dict[str, Any] = json.loads((Path(__file__).parent / "ruler_texts.json").read_text())
LINE = "".join(FILLER)
TASKS = (niah, key_value, variable_tracking, common_words, frequent_words)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_needle_prompt_is_exact_and_hides_what_it_asks_for(source, preset):
    several = PRESETS[preset].answers > 1
    asked = list(niah.ask(source, [1200, 2001], preset=preset, depths=3, trials=2, new=50))
    for one in asked:
        assert len(one.tokens) + 50 == one.length
        text = source.decode(one.tokens)
        wanted = str(one.metadata["answer"]).split(", ")
        assert len(wanted) == (4 if several else 1)
        assert all(text.count(f" is: {value}.") == 1 for value in wanted)
        places: Any = one.metadata["needles"] if several else [one.metadata["needle"]]
        for place, value in zip(places, wanted, strict=True):
            needle = source.decode(one.tokens[int(place) :]).lstrip()
            assert needle.startswith("One of the special magic")
            assert needle.partition(": ")[2].startswith(value)
    assert [q.metadata["answer"] for q in asked[:6]] == [q.metadata["answer"] for q in asked[6:]]
    assert len({q.doc_id for q in asked}) == 6
    if not several:
        depths = [q.metadata["needle"] for q in asked if q.length == 2001][::2]
        assert depths == sorted(depths)


@pytest.mark.parametrize(("preset", "values"), [("mk_basic", 1), ("mv_basic", 4)])
def test_needles_of_ruler_v2_are_like_their_haystack(source, preset, values):
    """Words have values of ten digits; every whole block of the haystack has four for each key."""
    (one,) = niah.ask(source, [30_000], preset=preset, depths=0, trials=1)
    text = source.decode(one.tokens)
    begin = "A special magic number is" if values == 1 else "Some special magic numbers are"
    assert text.removeprefix("<s>").startswith(f"{begin} hidden within the following text.")
    assert ("memorize them." in text) == (values == 4)
    pairs = re.findall(r"One of the special magic numbers for (\S+-\S+.*?) is: (\d{10})\.\n", text)
    asked = text.rpartition(" mentioned in")[0].rpartition(" for ")[2]
    found = [value for key, value in pairs if key == asked]
    assert sorted(found) == sorted(str(one.metadata["answer"]).split(", "))
    assert len(found) == values
    counts = Counter(Counter(key for key, _ in pairs).values())
    assert counts.most_common(1)[0][0] == values


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [3000, 3001])
def test_every_prompt_is_exact_and_the_same_again(source, task, length):
    one, same, other = (
        [q.digest for q in task.ask(source, [length], seed=seed, trials=2)] for seed in (1, 1, 2)
    )
    assert one == same
    assert not set(one) & set(other)
    for asked in task.ask(source, [length], trials=1):
        assert asked.length == length


@pytest.mark.parametrize("task", TASKS)
def test_a_length_that_is_too_short_names_the_least(source, task):
    with pytest.raises(ValueError, match=r"at least \d+ tokens; --length 60 is"):
        list(task.ask(source, [60], trials=1))
    with pytest.raises(ValueError, match=r"at least \d+ tokens; --length 480 is"):
        list(niah.ask(source, [480], depths=1, trials=1))  # room for the frame, none for a needle


def test_the_text_of_needles_is_rulers(source):
    """Of the same keys, values and places, to the letter: repeated filler, needles, two queries."""
    for name, setting in (
        ("repeat", Setting()),
        ("needles", Setting("needles", "uuids", "uuids")),
        ("multi", Setting(keys=2, queries=2)),
    ):
        text, wanted = RULER[name]["text"], RULER[name]["answers"]
        lines = text.split("\n")[1:-1]
        pairs = {value: key for key, value in re.findall(r"for (\S+) is: (\S+)\.", text)}
        places = [next(i for i, line in enumerate(lines) if v in line) for v in wanted]
        pieces = [continued(source, f"{s}\n") for i, s in enumerate(lines) if i not in places]
        hidden = [(pairs[value], [value]) for value in wanted]
        frame = framed(source, setting, hidden, new=128)
        space = sum(len(line) + 1 for line in lines)
        before = [sum(i not in places for i in range(place)) for place in places]
        depths = [count / len(pieces) for count in before]
        placed = needles(source, setting, hidden, depths)
        made, _ = frame.hide(frame.taken + space, pieces, placed, continued(source, "\n"))
        assert source.decode([*frame.head[1:], *made, *frame.tail]) == text


def test_the_text_of_a_chain_is_rulers(source):
    """Example, filler and chain, but for the second space before the example's answer."""
    text, wanted = RULER["variable_tracking"]["text"], RULER["variable_tracking"]["answers"]
    example, _, rest = text.rpartition(variable_tracking.BEFORE)
    lines = rest.partition("Question:")[0].split("\n")[:-1]
    names, value = wanted, re.findall(r"= (\d+)", rest)[0]
    every = [f"VAR {names[0]} = {value}"]
    every += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    assert [line for line in lines if line != LINE[:-1]] == every
    needles = [continued(source, f"{line}\n") for line in every]
    free = sum(len(line) + 1 for line in lines if line == LINE[:-1])
    where = [lines.index(line) for line in every]
    depths = [sum(line == LINE[:-1] for line in lines[:i]) * len(LINE) / free for i in where]
    space = free + sum(map(len, needles))
    told = {"value": value, "count": 5}
    frame = around(
        source, example + variable_tracking.BEFORE, variable_tracking.AFTER.format(**told),
        variable_tracking.REPLY.format(**told),
    )  # fmt: skip
    placed = list(zip(depths, needles, strict=True))
    made, _ = frame.hide(frame.taken + space, [continued(source, LINE)] * 99, placed)
    assert source.decode([*frame.head[1:], *made, *frame.tail]) == text
    own = variable_tracking.example(source, 4, Random(1))
    plain = re.compile(r"\b(?:[A-Z]{3}|\d{5})\b(?<!VAR)")
    parts = [set(plain.sub("#", each).split("\n")) for each in (own, example)]
    assert parts[0] == parts[1]


def test_the_text_of_common_and_frequent_words_is_rulers(source):
    """Lists, examples and questions, of RULER's own words in its own order."""
    text, wanted = RULER["common_words"]["text"], RULER["common_words"]["answers"]
    lists = [re.findall(r"\d+\. (\S+)", part) for part in text.split(common_words.BEFORE)[1:]]
    shown, common = lists[0][:-10], lists[0][-10:]
    example = f"{common_words.BEFORE}{common_words.listed(shown)}{common_words.AFTER}"
    example += f"{common_words.REPLY} {common_words.listed(common)}\n"
    frame = around(source, example + common_words.BEFORE, common_words.AFTER, common_words.REPLY)
    listed = source.encode(common_words.listed(lists[1]))
    assert source.decode([*frame.head[1:], *listed, *frame.tail]) == text
    often, few, size = common_words.OFTEN[0]
    for every, first, (most, least) in ((shown, common, few), (lists[1], wanted, often)):
        counts = {word: every.count(word) for word in every}
        assert {counts[word] for word in first} == {most}
        assert set(counts.values()) == {most, least}
    assert len(set(shown)) == size
    text, wanted = RULER["frequent_words"]["text"], RULER["frequent_words"]["answers"]
    frame = around(source, frequent_words.BEFORE, frequent_words.AFTER, frequent_words.REPLY)
    body = text[len(frequent_words.BEFORE) : text.index(frequent_words.AFTER)]
    assert source.decode([*frame.head[1:], *source.encode(body), *frame.tail]) == text
    counts = {word: body.split(" ").count(word) for word in body.split(" ")}
    ranked = sorted(counts.values(), reverse=True)
    assert ranked == [n for n in frequent_words.counts(60, 8, 2.0) if n]
    assert [counts[word] for word in wanted] == ranked[1:4]


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_the_words_asked_for_are_the_most_frequent_of_the_text(source, alpha):
    """Each more often than any other, after the cut; a text too short for that is refused."""
    with pytest.raises(ValueError, match="give a longer length"):
        list(frequent_words.ask(source, [500], alpha=alpha))
    for asked in frequent_words.ask(source, [1500, 1540, 2900], alpha=alpha, trials=9):
        text = source.decode(asked.tokens).partition(frequent_words.BEFORE)[2]
        often = Counter(text.partition("\nQuestion")[0].split())
        wanted = str(asked.metadata["answer"]).split(", ")
        others = [n for word, n in often.items() if word not in (*wanted, "...")]
        assert min(often[word] for word in wanted) > max(others)


def test_the_least_length_of_a_list_is_enough_for_every_trial(source):
    with pytest.raises(ValueError, match=r"at least \d+ tokens; --length 400 is") as refused:
        list(common_words.ask(source, [400]))
    least = int(str(refused.value).partition("at least ")[2].split()[0])
    assert len(list(common_words.ask(source, [least]))) == 25
    with pytest.raises(ValueError, match=f"at least {least} tokens"):
        list(common_words.ask(source, [least - 1]))


def test_a_list_has_its_common_words_as_often_as_it_says(source):
    """Whole but for the last words: the same ten six times at 3000 bytes, thirty times at 9000."""
    both = list(common_words.ask(source, [3000, 9000], trials=1))
    assert both[0].metadata["answer"] == both[1].metadata["answer"]
    for asked, (most, least) in zip(both, ((6, 1), (30, 3)), strict=True):
        text = source.decode(asked.tokens).split(common_words.BEFORE)[-1]
        entries = re.findall(r"\d+\. (\S+)", text.partition("\nQuestion")[0])
        counts = {word: entries.count(word) for word in entries}
        common = str(asked.metadata["answer"]).split(", ")
        assert all(most - 2 <= counts[word] <= most for word in common)
        assert max(n for word, n in counts.items() if word not in common) == least


@pytest.mark.parametrize(("text", "value", "found"), [
    (" 1234567.", 1.0, "exact"), (' "1234567"', 1.0, "exact"),
    (" the number 1234567", 1.0, "format"), (" 12345678", 1.0, "format"),
    (" 1234568", 0.0, "wrong"),
])  # fmt: skip
def test_a_text_is_scored_by_what_it_contains(source, text, value, found):
    """As RULER does; how the answer stands there is a fact."""
    asked = Generate([1] * 3, 10, doc_id="q", metadata={"answer": "1234567"})
    sample = niah.grade(asked, Generated(text, (5,), (0.1,)), source)
    assert (sample.value, sample.metadata["found"], sample.metadata["said"]) == (value, found, text)


def test_several_answers_are_scored_by_their_share(source):
    """Two of four, whatever their case and order; the interval is Wilson's of that share."""
    asked = Generate([1] * 3, 10, doc_id="q", metadata={"answer": "Ab, cd, ef, gh"})
    sample = niah.grade(asked, Generated("cd and ab", (5,), (0.1,)), source)
    assert (sample.value, sample.weight) == (0.5, 1)
    found = niah.score([sample, Sample("r", 1.0, 1)])
    assert (found.value, found.low, found.high, found.n) == (0.75, *proportion(1.5, 2), 2)


@pytest.mark.parametrize(
    ("task", "options"), [(variable_tracking, {"hops": 10}), (niah, {"values": 30})]
)
def test_a_text_has_room_for_all_answers(source, task, options):
    """A model that knows them all is not scored by how many of them fit into the text."""
    with pytest.raises(ValueError, match=r"new=\d+ tokens cannot hold \d+ answers"):
        next(task.ask(source, [4000], **options))
    (one, *_) = task.ask(source, [4000], trials=1, new=300, **options)
    said = " " + one.metadata["answer"].replace(", ", " ")
    text = source.decode(source.encode(said)[: one.max_new_tokens])
    assert task.grade(one, Generated(text, (0,), (0.0,)), source).value == 1


def test_ruler_draws_where_a_needle_stands(source):
    """As RULER does, at all depths; `niah` alone has it on a grid, unless its depths are 0."""
    drawn = list(niah.ask(source, [3500], depths=0, trials=20))
    places = [int(str(one.metadata["needle"])) / 3500 for one in drawn]
    assert min(places) < 0.25 < 0.75 < max(places)
    single = [one for one in ruler.ask(source, [3500], trials=3) if "single_1" in one.doc_id]
    assert [one.tokens for one in single] == [one.tokens for one in drawn[:3]]


def test_ruler_asks_every_part_as_often_and_no_two_share_a_draw(source):
    """Prompts of one trial in several parts are as independent as those of several trials."""
    asked = list(ruler.ask(source, [3500], trials=2))
    parts = Counter(question.metadata["part"] for question in asked)
    assert parts == dict.fromkeys(ruler.PARTS, 2)
    assert len({question.doc_id for question in asked}) == 22
    assert all(question.length == 3500 for question in asked)
    needles = [str(q.metadata["answer"]) for q in asked if "niah" in q.doc_id]
    answers = [value for answer in needles for value in answer.split(", ")]
    assert len(set(answers)) == len(answers) == 2 * (6 + 4 + 4)
    other = {question.digest for question in ruler.ask(source, [3500], trials=2, seed=1)}
    assert not {question.digest for question in asked} & other
    with pytest.raises(ValueError, match="niah_single_1: .* at least"):
        list(ruler.ask(source, [100]))


@pytest.mark.parametrize("name", ["passkey", "ruler"])
def test_a_truncated_prompt_is_the_end_of_the_whole_one(name):
    """Of the study of SmolLM2: beyond the window the begin token and the last tokens that fit."""
    context = make_context(tiny_tokenizer(), lambda: [("tale", TALE)], 2600)
    file = ROOT / "results" / "smollm2" / "truncated" / f"truncated_{name}.py"
    plugins = (load("task", f"{given}:trials=1,chat=false") for given in (name, file))
    whole, cut = (list(p.module.ask(context, [2600, 3500], **p.arguments)) for p in plugins)
    assert {one.cell or one.length for one in cut} == {2600, 3500}
    for one, short in zip(whole, cut, strict=True):
        assert (short.length, short.doc_id) == (2600, one.doc_id)
        kept = len(short.tokens) - 1
        assert list(short.tokens) == [one.tokens[0], *one.tokens[-kept:]]
        assert one.length - one.start == short.length - short.start


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny).eval()


@pytest.mark.parametrize("form", ["text", "argmax"])
@pytest.mark.parametrize("preset", ["multikey_1", "multikey_2", "multikey_3"])
def test_each_prompt_in_turn_asks_for_its_key_after_one_haystack(source, preset, form):
    options: dict[str, Any] = {"preset": preset, "form": form, "in_turn": 4, "new": 50}
    for asked in niah.ask(source, [1800, 2503], depths=2, trials=2, **options):
        wanted, places = str(asked.metadata["answer"]).split(", "), asked.metadata["needles"]
        texts = [source.decode(part.tokens[: part.start]) for part in asked.parts]
        for part, text, answer, place in zip(asked.parts, texts, wanted, places, strict=True):
            assert part.length == asked.length == len(part.tokens) + 50 * (form == "text")
            (key,) = re.findall(r"What is the special magic \w+ for (\S+) mentioned in", text)
            assert text.count(f" for {key} is: {answer}.") == 1
            needle = source.decode(part.tokens[int(place) :]).lstrip()
            assert re.match(rf"One of the special magic \w+ for {key} is: {answer}\.", needle)
            if form == "argmax":
                assert source.decode(part.tokens[part.start :]) == f" {answer}"
        end = min(text.rindex("What is the special") for text in texts) - 2
        assert len({text[:end] for text in texts}) == 1  # a cut sentence still ends its line
        assert len(set(wanted)) == 4


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


def test_a_haystack_has_the_mean_of_its_answers(source):
    """Two texts of three have the value: a trial of two thirds."""
    prompts = tuple(Generate([1] * 3, 10, doc_id="q", metadata={"answer": a}) for a in "abc")
    asked = Group(prompts, doc_id="q", metadata={"answer": "a, b, c"})
    said = tuple(Generated(text, (5,), (0.1,)) for text in (" a.", " x", " c, b"))
    sample = niah.grade(asked, GroupResponse(said), source)
    assert (sample.value, sample.weight) == (2 / 3, 1)
    assert sample.metadata["shares"] == [1, 0, 1]
    assert json.loads(str(sample.metadata["said"])) == [" a.", " x", " c, b"]


def test_more_keys_than_are_hidden_are_refused(source):
    with pytest.raises(ValueError, match="in_turn=2 is more than the keys that are hidden, 1"):
        list(niah.ask(source, [2000], in_turn=2))
    given: dict[str, Any] = {"preset": "multikey_1", "in_turn": 4, "depths": 1, "trials": 1}
    with pytest.raises(ValueError, match=r"at least \d+ tokens; --length 400 is") as refused:
        list(niah.ask(source, [400], **given))
    least = int(str(refused.value).partition("at least ")[2].split()[0])
    assert len(list(niah.ask(source, [least], **given))) == 1
