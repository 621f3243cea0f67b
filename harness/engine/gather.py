"""Find which rows of which node are needed, and gather answers from the results of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.engine.prefix_tree import Node, NodePath, PrefixTree
from tasks._tokens import kept
from tasks.types import Generate, LoglikelihoodResponse, ModelRequest, ModelResponse

NOBODY = 0  # target of a row that needs the argmax only


class ResultCollector:
    """The requested rows of every node, and their results.

    A question needs the rows from the one before its first target to its last token; a text needs
    none, but the keys of its prompt. The target of a row is the next token: the node's own, or at
    its end the first one of the node that follows on the question's path.
    """

    def __init__(self, tree: PrefixTree, questions: Sequence[ModelRequest]) -> None:
        self.tree = tree
        self.questions = questions
        self.rows: dict[int, _Rows] = {}  # of nodes that unanswered questions wait for
        self.waiting = [len(path) for path in tree.paths]
        self.needs: dict[int, list[_Need]] = {}
        self.through: dict[int, list[int]] = {}
        for index, (question, path) in enumerate(zip(questions, tree.paths, strict=True)):
            for node, first, end, after in self._parts(question, path):
                self.needs.setdefault(node, []).append(_Need(first, end, after))
            for node in path:
                self.through.setdefault(node, []).append(index)
        self.unanswered = {node: len(indices) for node, indices in self.through.items()}

    def _parts(
        self, question: ModelRequest, path: NodePath
    ) -> Iterator[tuple[int, int, int, int | None]]:
        """Yield (node, first row, end row, target of the node's last row) along a path."""
        for node in path if not isinstance(question, Generate) else ():
            run = self.tree.nodes[node]
            first = max(question.start - 1 - run.first, 0)
            end = min(question.length, run.end) - run.first
            after = question.tokens[run.end] if question.length > run.end else None
            if first < end:
                yield node, first, end, after

    def wanted(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the requested rows of a node and the target of each; a row may occur twice."""
        return self._empty(node).wanted(self.tree.nodes[node])

    def _empty(self, node: int) -> _Rows:
        return _Rows.of(self.tree.nodes[node], self.needs.get(node, []))

    def enter(self, node: int, nll: NDArray[np.float32], argmax: NDArray[np.int64]) -> list[int]:
        """Store a node's results, in the order of ``wanted``; return the questions now complete."""
        self.rows[node] = self._empty(node)
        self.rows[node].enter(nll, argmax)
        whole = []
        for index in self.through[node]:
            self.waiting[index] -= 1
            if not self.waiting[index]:
                whole.append(index)
        return whole

    def answer(self, index: int) -> ModelResponse:
        """Assemble the answer to a complete question, once; free rows that no other needs."""
        nll: list[float] = []
        argmax: list[int] = []
        for node, first, end, after in self._parts(self.questions[index], self.tree.paths[index]):
            rows = self.rows[node]
            nll += rows.nll[first:end].tolist()
            argmax += rows.argmax[first:end].tolist()
            if after is not None:
                nll[-1] = rows.ends[after]
        for node in self.tree.paths[index]:
            self.unanswered[node] -= 1
            if not self.unanswered[node]:
                del self.rows[node]
        return LoglikelihoodResponse(tuple(nll[:-1]), tuple(argmax))


class _Need(NamedTuple):
    """The rows that a question needs of a node, and its target after the node's last one."""

    first: int
    end: int
    after: int | None


@dataclass
class _Rows:
    """One node's needed rows, with loss and argmax of each; the last row's loss by target."""

    needed: NDArray[np.bool_]
    nll: NDArray[np.float32]
    argmax: NDArray[np.int64]
    ends: dict[int, float]

    @classmethod
    def of(cls, node: Node, needs: Sequence[_Need]) -> _Rows:
        needed = np.zeros(len(node.tokens), np.bool_)
        for first, end, _ in needs:
            needed[first:end] = True
        ends = {after: float("nan") for _, _, after in needs if after is not None}
        return cls(needed, np.zeros(0, np.float32), np.zeros(0, np.int64), ends)

    def wanted(self, node: Node) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = np.flatnonzero(self.needed)
        targets = np.append(kept(node.tokens).numbers()[1:], NOBODY)[rows]
        more = np.full(len(self.ends), len(node.tokens) - 1)
        return np.append(rows, more), np.append(targets, np.array([*self.ends], np.int64))

    def enter(self, nll: NDArray[np.float32], argmax: NDArray[np.int64]) -> None:
        count = int(self.needed.sum())
        self.nll = np.full(len(self.needed), np.nan, np.float32)
        self.argmax = np.zeros(len(self.needed), np.int64)
        self.nll[self.needed], self.argmax[self.needed] = nll[:count], argmax[:count]
        self.ends = dict(zip(self.ends, nll[count:].tolist(), strict=True))
