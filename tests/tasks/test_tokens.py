"""Tokens behave as a tuple does, and windows on a text hold no copy of it."""

import pickle
import tracemalloc
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.engine.forward import ResultCollector
from ropewalk.harness.engine.prefix_tree import build_tree, in_order
from ropewalk.tasks import perplexity
from ropewalk.tasks._tokens import Tokens
from tests.tiny import tiny_tokenizer

token = st.integers(0, 3)
bounds = st.integers(-9, 9)


@given(head=st.lists(token, max_size=3), body=st.lists(token, max_size=9), a=bounds, b=bounds)
def test_tokens_are_as_their_tuple(head, body, a, b):
    tokens, same = Tokens(Tokens(body), head), (*head, *body)
    assert tokens == same
    assert same == tokens
    assert tokens == Tokens(same)
    assert hash(tokens) == hash(same)
    assert len(tokens) == len(same)
    for part in (slice(a, b), slice(a, None), slice(None, b), slice(None, None, -1)):
        assert tuple(tokens[part]) == same[part]
        assert tokens[part] == Tokens(same[part])
        assert tuple(tokens[part][1:]) == same[part][1:]
    assert [tokens[i] for i in range(-len(same), len(same))] == [*same, *same]
    assert pickle.loads(pickle.dumps(tokens)) == tokens
    assert tokens.numbers().tolist() == list(same)
    assert torch.tensor([tokens]).tolist() == [list(same)]
    with pytest.raises(IndexError):
        tokens[len(same)]


@given(st.lists(token, max_size=200), st.lists(token, max_size=200), st.integers(0, 2500))
def test_tokens_are_ordered_as_their_tuples(one, other, same):
    first, second = (1,) * same + tuple(one), (1,) * same + tuple(other)
    assert (Tokens(first) < Tokens(second[1:], second[:1])) == (first < second)
    differ = (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    alike = next(differ, min(len(first), len(second)))
    for head in (0, 1):
        assert Tokens(first).common(Tokens(second[head:], second[:head])) == alike
        assert Tokens(first[head:], first[:head]).common(Tokens(second)) == alike
        assert Tokens(first[1:], first[:1]).common(Tokens(second[1:], second[:1])) == alike
    assert (in_order(first) < in_order(second)) == (first < second)


@pytest.mark.slow
def test_windows_hold_no_copy_of_the_text():
    """2500 windows of a thousand tokens, planned and entered in the gather: no copies of tokens."""
    draw = Random(3)
    text = "".join(draw.choices("abcdefghij ", k=41_000))
    source = make_context(tiny_tokenizer(), lambda: [("text", text)], 64)
    source.documents()
    tracemalloc.start()
    asked = list(perplexity.ask(source, [1024], protocol="sliding", stride=16))
    tree = build_tree([question.tokens for question in asked])
    gather = ResultCollector(tree, asked)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(asked) >= 2_490
    assert sum(map(len, gather.complete.values())) == len(asked)
    assert peak < 7.5e6
