"""What is given out together: questions that share a beginning, in groups of a fair size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.engine.prefix_tree import common, in_order
from harness.sweep.plan import Cell
from tasks._types import Question

Item = tuple[Cell, Question]
ROUNDS = 4  # groups a worker gets, so that the last to end is not far behind


@dataclass
class Group:
    """Questions of one fingerprint that share their beginnings, by index, until they are answered.

    ``losses`` counts the workers lost over it without one answer.
    """

    fingerprint: str
    left: dict[int, Item]
    losses: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of all inputs."""
        return sum(question.length for _, question in self.left.values())


def groups(work: dict[str, list[Item]], workers: int) -> list[Group]:
    """Return the work in groups, the longest first; questions that share a beginning stay together.

    No group is larger than it must be for every worker to get several.
    """
    total = sum(question.length for items in work.values() for _, question in items)
    fair = total / (ROUNDS * workers)
    found: list[Group] = []
    for fingerprint, items in work.items():
        for family in _families(items):
            group = Group(fingerprint, dict(enumerate(family)))
            last = found[-1] if found else None
            if last and last.fingerprint == fingerprint and last.tokens + group.tokens <= fair:
                last.left = dict(enumerate([*last.left.values(), *family]))
            else:
                found.append(group)
    return sorted(found, key=lambda group: -group.tokens)


def _families(items: Sequence[Item]) -> list[list[Item]]:
    """Put together what shares half of its tokens or more: the engine computes that once."""
    families: list[list[Item]] = []
    for item in sorted(items, key=lambda item: in_order(item[1].tokens)):
        if families:
            before, tokens = families[-1][-1][1].tokens, item[1].tokens
            if 2 * common(before, tokens) >= min(len(before), len(tokens)):
                families[-1].append(item)
                continue
        families.append([item])
    return families
