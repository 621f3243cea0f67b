"""Prompts of exact length, a fair grid, and a score that is what greedy decoding gives."""

from dataclasses import replace
from random import Random

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from ropewalk.harness.engine import answers
from ropewalk.harness.reports.cells import cells
from ropewalk.tasks import niah, passkey
from ropewalk.tasks.passkey import INTRODUCTION, NEEDLE, QUESTION, REPLY, prompt
from ropewalk.tasks.types import (
    Loglikelihood,
    LoglikelihoodResponse,
)
from tests.asking import generated
from tests.frames import asked as asked_of
from tests.tiny import tiny_config


@pytest.mark.slow
@settings(max_examples=20)
@given(
    length=st.integers(330, 2000),
    depth=st.floats(0, 1),
    key=st.integers(10_000, 99_999),
    filler=st.sampled_from(["standard", "documents"]),
)
def test_a_prompt_has_the_exact_length_and_the_key_at_its_depth(source, length, depth, key, filler):
    made = prompt(source, length, key, depth, filler=filler, draw=Random(1))
    tokens, start = made.tokens, made.start
    text = source.decode(tokens)
    needle = NEEDLE.format(key=key)
    assert len(tokens) == length
    assert tuple(tokens[:1]) == source.opening
    assert text.count(needle) == 1
    assert source.decode(tokens[int(made.metadata["needle"]) :]).startswith(needle)
    assert source.decode(tokens[start:]).strip() == str(key)
    before = text.index(needle) - text.index(INTRODUCTION) - len(INTRODUCTION)
    after = text.index(QUESTION) - text.index(needle) - len(needle)
    assert abs(before - depth * (before + after)) <= 30  # half of the filler's longest sentence
    assert text.endswith(f"{QUESTION}{REPLY} {key}")


def test_the_grid_is_whole_and_its_keys_are_the_same_at_every_length(source):
    asked = list(passkey.ask(source, [400, 800], seed=3, depths=3, trials=4))
    assert len(asked) == 2 * 3 * 4
    keys = {n: [q.metadata["key"] for q in asked if q.length == n] for n in (400, 800)}
    assert keys[400] == keys[800]
    assert all(len(str(key)) == 5 for key in keys[400])
    assert len(set(keys[400])) == 12
    assert {q.metadata["depth"] for q in asked} == {0.0, 0.5, 1.0}
    assert [q.digest for q in asked] == [
        q.digest for q in passkey.ask(source, [400, 800], seed=3, depths=3, trials=4)
    ]
    other = list(passkey.ask(source, [400, 800], seed=4, depths=3, trials=4))
    assert keys[400] != [q.metadata["key"] for q in other if q.length == 400]


def test_a_prompt_that_cannot_fit_names_the_least_length(source):
    with pytest.raises(ValueError, match=r"at least \d+ tokens; --length 100 is") as caught:
        list(passkey.ask(source, [100]))
    least = int(str(caught.value).partition("at least ")[2].split()[0])
    assert len(list(passkey.ask(source, [least], trials=1, depths=2))) == 2
    with pytest.raises(ValueError, match=f"at least {least} tokens"):
        list(passkey.ask(source, [least - 1]))


@pytest.mark.parametrize(
    ("said", "after", "kind"),
    [
        (" 12345", ".", "exact"),
        (" 12345", " ", "exact"),
        ("\n12345", ".", "format"),
        (":12345", " ", "format"),
        ("112345", ".", "format"),  # the number begun without the space, and gone on with behind it
        ("712345", ".", "wrong"),
        (" 12745", ".", "wrong"),
        ("\n12345", "6", "wrong"),
        (" 12345", "6", "wrong"),
    ],
)
def test_the_grade_says_what_was_wrong_in_kind(source, said, after, kind):
    before = source.encode("The pass key is")
    tokens = (*before, *source.encode(" 12345"))
    asked = Loglikelihood(tokens, len(before), doc_id="a")
    answer = LoglikelihoodResponse((0.1,) * 6, (*source.encode(said), *source.encode(after)))
    sample = passkey.grade(asked, answer, source)
    assert (sample.metadata["found"], sample.value) == (kind, float(kind == "exact"))
    assert sample.metadata["logprob"] == pytest.approx(-0.6)


def test_a_lenient_score_stands_beside_the_strict_one():
    rows = [row for name in ("none", "yarn") for row in asked_of("passkey", name, 512, [1, 1, 0])]
    found = ["exact", "exact", "wrong", "exact", "exact", "format"]
    table = cells(pd.DataFrame(rows).assign(metric="accuracy", found=found))
    assert table["lenient"].tolist() == pytest.approx([2 / 3, 1])
    assert table["score"].tolist() == pytest.approx([2 / 3, 2 / 3])


@pytest.mark.parametrize("seed", range(8))
def test_the_score_is_what_greedy_generate_gives(source, seed):
    """A trial is a hit exactly when the library's greedy decoding says the key and stops there.

    Random models never find a key, so half of them are asked for the key they do say.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config("llama")).eval()
    (asked,) = passkey.ask(source, [400], seed=seed, depths=1, trials=1)
    before = asked.tokens[: asked.start]
    new = len(asked.tokens) - asked.start + 1
    said = generated(model, before, new, min_new_tokens=new)
    if seed % 2:
        asked = Loglikelihood((*before, *said[:-1]), asked.start, doc_id="said")
    ((_, answer),) = answers(model, [asked])
    key = list(asked.tokens[asked.start :])
    extends = source.decode([*key, said[-1]])[len(source.decode(key)) :][:1].isdigit()
    hit = said[:-1] == key and not extends
    assert passkey.grade(asked, answer, source).value == float(hit)
    after = source.decode([*key, said[-1]])[len(source.decode(key)) :]
    named = replace(asked, metadata={"answer": source.decode(key).lstrip(' "\n')})
    whole = said[:-1] == key and not after[:1].isalnum()
    assert niah.grade(named, answer, source).value == float(whole)
    assert hit == (bool(seed % 2) and not extends)
