"""What sequences share, planned without a model: against brute force over all beginnings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.harness.engine.prefix_tree import PrefixTree, build_tree

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1)


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
