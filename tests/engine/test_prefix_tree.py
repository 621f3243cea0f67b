"""What sequences share, planned without a model: against brute force over all beginnings."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.prefix_tree import PrefixTree, build_tree, packs

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1)
wide = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(tuple)


def along(tree: PrefixTree, index: int) -> tuple[int, ...]:
    return tuple(token for node in tree.paths[index] for token in tree.nodes[node].tokens)


@settings(max_examples=15)
@given(asked=sequences, least=st.integers(1, 6))
def test_every_sequence_has_a_path(asked, least):
    """The nodes of a path hold the sequence's tokens from position 0, and none is superfluous."""
    tree = build_tree(asked, least)
    for index, tokens in enumerate(asked):
        held = along(tree, index)
        assert held[: len(tokens)] == tokens
        assert len(held) - len(tree.nodes[tree.paths[index][-1]].tokens) < len(tokens)
        position = 0
        for place, node in enumerate(tree.paths[index]):
            assert tree.nodes[node].first == position
            assert tree.nodes[node].above == tree.paths[index][:place]
            position = tree.nodes[node].end


@given(asked=sequences)
def test_no_beginning_is_computed_twice(asked):
    tree = build_tree(asked, 1)
    beginnings = {tokens[:end] for tokens in asked for end in range(1, len(tokens) + 1)}
    assert sum(len(node.tokens) for node in tree.nodes) == len(beginnings)


@settings(max_examples=15)
@given(asked=sequences, least=st.integers(1, 20))
def test_short_beginnings_are_not_shared(asked, least):
    tree = build_tree(asked, least)
    followed = {above for node in tree.nodes for above in node.above}
    roots_and_forks = [tree.nodes[index] for index in followed]
    assert all(len(n.tokens) >= least or n.above for n in roots_and_forks)


@settings(max_examples=15)
@given(asked=sequences, most=st.integers(1, 30))
def test_packs_hold_every_node_once_in_order(asked, most):
    tree = build_tree(asked, 2)
    found = packs(tree, most)
    assert [node for pack in found for node in pack] == list(range(len(tree.nodes)))
    for pack in found:
        assert sum(len(tree.nodes[i].tokens) for i in pack) <= most or len(pack) == 1


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, 32])
def test_many_nested_forks_are_no_recursion(least):
    """Sequences that fork at every token are planned, more than Python's calls may be nested."""
    count = 450
    asked = [(*range(10, 10 + n), 1) for n in range(count, 0, -1)]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        tree = build_tree(asked, least)
    finally:
        sys.setrecursionlimit(before)
    assert all(along(tree, i)[: len(asked[i])] == asked[i] for i in range(0, count, 100))


@given(asked=st.lists(wide, min_size=1))
def test_nodes_stand_in_the_order_of_the_questions(asked):
    apart = [(-index, *tokens) for index, tokens in enumerate(asked)]
    assert [node.tokens for node in build_tree(apart).nodes] == apart
