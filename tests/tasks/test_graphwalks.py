"""GraphWalks: prompts whose answers another implementation finds in their text, and the F1."""

import re

import networkx as nx
import pytest

from ropewalk.tasks import graphwalks
from ropewalk.tasks.types import Generate, Generated

EDGE = re.compile(r"^(\w{10}) -> (\w{10})$", re.MULTILINE)


@pytest.mark.parametrize(
    "options",
    [{}, {"operation": "bfs", "depth": 1}, {"operation": "bfs"}, {"operation": "bfs", "depth": 3}],
)
def test_the_answer_is_what_the_text_says(source, options):
    """Read from the prompt's edges by networkx; a longer prompt has the same answer."""
    lengths = [4000, 6001]
    asked = list(graphwalks.ask(source, lengths, trials=6, new=300, **options))
    answers = {}
    for one in asked:
        assert one.length in lengths
        text = source.decode(one.tokens)
        graph = nx.DiGraph(EDGE.findall(text.rpartition("Edges:\n")[2]))
        operation = text.rpartition("Operation: ")[2]
        node, *depth = re.findall(r"node (\w{10})|depth (\d)", operation)
        if depth:
            expected = nx.descendants_at_distance(graph, node[0], int(depth[0][1]))
        else:
            expected = set(graph.predecessors(node[0]))
        answer = str(one.metadata["answer"])
        assert set(answer.split(", ")) == expected
        assert node[0] not in expected
        assert not list(nx.selfloop_edges(graph))
        assert len(graph) < graph.number_of_edges()
        assert answers.setdefault(one.doc_id, answer) == answer
        assert text.endswith("Final Answer: [")
    assert len({*answers.values()}) == 6


@pytest.mark.parametrize(
    ("answer", "prefix", "said", "f1"),
    [
        ("aa, bb", True, "bb, aa", 1.0),
        ("aa, bb", True, "bb", 2 / 3),  # precision 1, recall 1/2
        ("aa, bb", True, "bb, cc, dd", 2 / 5),  # precision 1/3, recall 1/2
        ("aa", True, "", 0.0),
        ("", True, "", 1.0),
        ("", True, "aa", 0.0),
        ("aa, bb", False, "So b.\nFinal Answer: [cc]\nNo:\nFinal Answer: [bb, aa]", 1.0),
        ("aa", False, "It is aa.", 0.0),
        ("", False, "It is none.", 0.0),
        ("aa", True, "aa\nbb", 1.0),  # the list ends with its line
    ],
)
def test_a_list_is_scored_by_its_f1(source, answer, prefix, said, f1):
    request = Generate([1], 9, ("]",) * prefix, doc_id="x", metadata={"answer": answer})
    sample = graphwalks.grade(request, Generated(said, (), ()), source)
    assert sample.value == pytest.approx(f1)


def test_a_reasoning_model_has_no_prefix(source):
    (one,) = graphwalks.ask(source, [4000], trials=1, prefix=False, new=1000)
    assert source.decode(one.tokens).endswith("`Final Answer: [node, node, ...]`.\n")
    assert one.length == 4000
    assert not one.stop
