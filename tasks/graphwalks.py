"""Walks on a graph given as a list of edges: parents of a node, or breadth-first (OpenAI, 2025).

The nodes have random names of ten hexadecimal digits. The answer is a set of nodes in the last
line, ``Final Answer: [a, b]``, and the score is its F1. By default the prompt ends with ``Final
Answer: [``. With ``prefix=false`` a model may reason first; give it ``new=`` tokens enough.

Differs from OpenAI's data set: the instructions are in other words, and a prompt has its exact
length, so its last edge is cut. As in its revision of 2026, a search returns the nodes at exactly
its depth, and no node is its own parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Literal

from ropewalk.tasks._prompt import BETWEEN, around, check_new, collected, continued
from ropewalk.tasks._retrieval import sample, score, shown
from ropewalk.tasks.types import Count, Fact, Generate, Generated, Request, Sample, TaskContext

__all__ = ["METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "f1"
Edge = tuple[str, str]
MOST = 4  # parents of a node
BEFORE = (
    "The lines below are the directed edges of a graph. An operation on this graph follows them."
    " Carry it out, and list the nodes that it returns.\n"
    "The parents of a node are the nodes that have an edge to it, without the node itself. A"
    " breadth-first search returns the nodes that it first reaches at exactly the given depth.\n\n"
    "Here is an example.\n\nEdges:\nuvwx -> alke\nabcd -> uvwx\nabcd -> efgh\nefgh -> uvwx\n\n"
    "Operation: Find the parents of node uvwx.\nFinal Answer: [abcd, efgh]\n\n"
    "Operation: Perform a breadth-first search from node abcd with depth 1.\n"
    "Final Answer: [uvwx, efgh]\n\nHere is the graph of the question.\n\nEdges:\n"
)
AFTER = (
    "\nOperation: {operation}\nThe last line of the answer is `Final Answer: [node, node, ...]`."
)
LAST = "Final Answer: ["
FINAL = re.compile(r"Final Answer: ?\[([^\]\n]*)")


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    operation: Literal["parents", "bfs"] = "parents",
    depth: Count = 2,
    prefix: bool = True,
    new: Count = 128,
    trials: Count = 25,
    chat: bool = False,
) -> Iterator[Request]:
    """Yield ``trials`` prompts of every length, each of the exact length with its ``new`` tokens.

    ``depth`` is that of a breadth-first search. The question and its answer depend only on the
    operation, its depth, seed and trial; a longer prompt has more edges that do not matter. Raises
    ValueError where a prompt cannot fit, and where ``new`` tokens cannot hold the answer.
    """
    kind = f"{seed}/{operation}" + f"/{depth}" * (operation == "bfs")
    end = continued(context, "\n")
    for trial in range(trials):
        draw = Random(f"{kind}/{trial}")
        edges, asked, answer = parents(draw) if operation == "parents" else walk(draw, depth)
        check_new(context, new, [f"{node}," for node in answer])
        places = [draw.random() for _ in edges]
        others = collected((_line(context, edge) for edge in unrelated(draw)), max(lengths))
        after, reply = AFTER.format(operation=asked), f"\n{LAST}" if prefix else "\n"
        frame = around(context, BEFORE, after, reply, new=new, chat=chat)
        lines = [(place, _line(context, edge)) for place, edge in zip(places, edges, strict=True)]
        for length in lengths:
            tokens, starts = frame.hide(length, others, lines, end)
            facts: dict[str, Fact] = {"trial": trial, "answer": BETWEEN.join(answer)}
            facts["needles"] = [*map(float, starts)]
            yield frame.request(f"trial {trial}", tokens, facts, ("]",) if prefix else ())


def parents(draw: Random) -> tuple[list[Edge], str, list[str]]:
    """Return a node's edges, the operation, and the parents of the node; it has children too."""
    node, *others = (name(draw) for _ in range(MOST + 3))
    answer = others[: draw.randint(1, MOST)]
    edges = [(parent, node) for parent in answer] + [(node, child) for child in others[-2:]]
    return edges, f"Find the parents of node {node}.", answer


def walk(draw: Random, depth: int) -> tuple[list[Edge], str, list[str]]:
    """Return the edges around a node, the operation, and the nodes at the depth.

    The walk goes one step on, and at a depth of 2 or more one edge leads back, to a node that a
    search reaches earlier.
    """
    levels, edges = [[name(draw)]], list[Edge]()
    for _ in range(depth + 1):
        edges += [(node, name(draw)) for node in levels[-1] for _ in range(draw.randint(1, 2))]
        levels.append([child for node, child in edges if node in levels[-1]])
    if depth > 1:
        edges.append((levels[depth - 1][0], levels[depth - 2][0]))
    asked = f"Perform a breadth-first search from node {levels[0][0]} with depth {depth}."
    return edges, asked, levels[depth]


def unrelated(draw: Random) -> Iterator[Edge]:
    """Yield edges of other nodes without end; two edges bring about one new node."""
    nodes = [name(draw)]
    for number in count():
        nodes += [name(draw)] * (number % 2 == 0)
        one, other = draw.sample(nodes, 2)
        yield one, other


def name(draw: Random) -> str:
    """Draw a name of ten hexadecimal digits."""
    return f"{draw.getrandbits(40):010x}"


def _line(context: TaskContext, edge: Edge) -> list[int]:
    return continued(context, f"{edge[0]} -> {edge[1]}\n")


def grade(request: Generate, response: Generated, context: TaskContext) -> Sample:
    """Return the F1 of the nodes in the last list; an empty list is right where no node is.

    A text without a list scores 0.
    """
    lists = FINAL.findall(LAST * bool(request.stop) + response.text)
    right, said = (
        {node.strip() for node in text.split(",")} - {""}
        for text in (str(request.metadata["answer"]), lists[-1] if lists else "")
    )
    f1 = 2 * len(right & said) / (len(right) + len(said)) if right or said else 1.0
    return sample(request, f1 if lists else 0.0, said=shown(response.text))
