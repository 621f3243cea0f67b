"""Build the prefix tree of a list of sequences, and cut it into packs for one forward each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ropewalk.tasks._tokens import Tokens, kept

NodePath = tuple[int, ...]
LEAST_SHARED = 32  # tokens; a fork costs more than computing a shorter common beginning twice


@dataclass(frozen=True)
class Node:
    """A run of tokens that all sequences through it share, from position ``first`` on.

    ``above`` has the indices of the nodes before it, from position 0.
    """

    first: int
    tokens: Tokens
    above: NodePath

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.first + len(self.tokens)


@dataclass(frozen=True)
class PrefixTree:
    """Nodes, parents before children, and the path of every sequence through them.

    A path has the indices of the nodes that together contain all of its tokens, from position 0;
    a sequence that is the beginning of another ends inside a node.
    """

    nodes: tuple[Node, ...]
    paths: tuple[NodePath, ...]

    def rows(self, pack: NodePath) -> int:
        """Return how many tokens the nodes of a pack have."""
        return sum(len(self.nodes[node].tokens) for node in pack)

    def spans(self, pack: NodePath) -> dict[int, tuple[int, int]]:
        """Return the rows of each node in a pack."""
        ends = [*accumulate(len(self.nodes[node].tokens) for node in pack)]
        return dict(zip(pack, pairwise([0, *ends]), strict=True))


def build_tree(requested: Sequence[Sequence[int]], least: int = LEAST_SHARED) -> PrefixTree:
    """Share every common beginning of at least ``least`` tokens.

    Equal sequences are one, and a sequence that is the beginning of another has no own tokens.
    Nodes are in the order in which the sequences first need them, and copy no tokens.
    """
    sequences = [kept(tokens) for tokens in requested]
    turn = {tokens: index for index, tokens in reversed([*enumerate(sequences)])}
    order = sorted(turn, key=in_order)
    # In sorted order a sequence is directly before those whose beginning it is.
    shared = [a.common(b) for a, b in pairwise(order)]
    ends = [*(count < len(tokens) for count, tokens in zip(shared, order, strict=False)), True]
    whole = [tokens for tokens, end in zip(order, ends, strict=True) if end]
    nodes, paths = _grow(whole, [turn[tokens] for tokens in whole], least)
    path_of = {}
    place = 0  # of the first sequence whose beginning it is, or its own
    for tokens, end in zip(order, ends, strict=True):
        path_of[tokens] = tuple(i for i in paths[place] if nodes[i].first < len(tokens))
        place += end
    return PrefixTree(tuple(nodes), tuple(path_of[tokens] for tokens in sequences))


def _grow(
    whole: Sequence[Tokens], turns: Sequence[int], least: int
) -> tuple[list[Node], list[NodePath]]:
    """Return nodes and paths; ``whole`` is sorted, and none is the beginning of another."""
    shared = [0, *(a.common(b) for a, b in pairwise(whole))]
    nodes: list[Node] = []
    paths: list[NodePath] = [()] * len(whole)
    waiting: list[tuple[int, int, int, NodePath]] = [(0, len(whole), 0, ())]
    while waiting:
        low, high, first, path = waiting.pop()
        alone = high - low == 1
        end = len(whole[low]) if alone else min(shared[low + 1 : high])
        apart = first + least
        if alone or end >= apart:
            nodes.append(Node(first, whole[low][first:end], path))
            first, apart, path = end, end + 1, (*path, len(nodes) - 1)
        if alone:
            paths[low] = path
            continue
        cuts = [low, *(i for i in range(low + 1, high) if shared[i] < apart), high]
        forks = sorted(pairwise(cuts), key=lambda fork: -min(turns[slice(*fork)]))
        waiting += [(a, b, first, path) for a, b in forks]  # what is needed first is taken first
    return nodes, paths


def in_order(tokens: Sequence[int]) -> tuple[tuple[int, ...], Tokens]:
    """Return a quick key in the order of the tokens: most differ in their first few."""
    return tuple(tokens[:LEAST_SHARED]), kept(tokens)


def last_reads(
    tree: PrefixTree, cut: Sequence[NodePath], texts: Sequence[NodePath] = ()
) -> dict[int, int]:
    """Return when the keys of each node are read for the last time.

    The time is 2 n if pack n reads them, and 2 n + 1 if the texts after it do. ``texts`` are the
    paths of their prompts.
    """
    place = {node: number for number, pack in enumerate(cut) for node in pack}
    last: dict[int, int] = {}
    for node, number in place.items():
        for above in (*tree.nodes[node].above, node):
            last[above] = 2 * number
    for path in texts:
        for node in path:
            last[node] = max(last[node], 2 * place[path[-1]] + 1)
    return last


def packs(tree: PrefixTree, most: int) -> list[NodePath]:
    """Cut the nodes, in their order, into packs of ``most`` tokens; a longer node is alone."""
    cut: list[list[int]] = []
    held = most
    for index, node in enumerate(tree.nodes):
        if held + len(node.tokens) > most:
            cut.append([])
            held = 0
        cut[-1].append(index)
        held += len(node.tokens)
    return [tuple(pack) for pack in cut]
