"""The same targets at every length, every token once, and values worked by hand."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.data.corpus import make_context
from tasks import perplexity
from tasks.types import Document, Loglikelihood, LoglikelihoodResponse, Sample, TaskContext
from tests.tiny import tiny_tokenizer

DRAW = Random(5)
TEXTS = {n: "".join(DRAW.choices("abcdefghij ", k=n)) for n in (300, 1200, 1600)}


@pytest.fixture(scope="module")
def source() -> TaskContext:
    return make_context(tiny_tokenizer(), lambda: [(str(n), t) for n, t in TEXTS.items()], 64)


def test_tail_scores_the_same_tokens_at_every_length(source: TaskContext) -> None:
    """Only the context grows: each longer window ends with the shorter one's text."""
    asked = list(perplexity.ask(source, [100, 200, 800], tail=50))
    for unit in ("1200", "1600"):
        short, middle, long = (q for q in asked if q.unit == unit)
        assert short.tokens[short.start :] == middle.tokens[middle.start :]
        assert short.tokens[short.start :] == long.tokens[long.start :]
        assert len(long.tokens) - long.start == 50
        assert middle.tokens[-99:] == short.tokens[1:]
        assert long.tokens[-199:] == middle.tokens[1:]
        text = source.documents()[1 if unit == "1200" else 2].tokens
        end = len(text) * 3 // 4
        assert long.tokens[1:] == text[end - 799 : end]


def test_windows_end_evenly_over_the_third_quarter(source: TaskContext) -> None:
    """Five windows of a document of 1600 tokens end 80 apart, the last at three quarters of it."""
    asked = [q for q in perplexity.ask(source, [100, 800], tail=50, windows=5) if q.unit == "1600"]
    for length in (100, 800):
        ends = [int(str(q.facts["first"])) + 50 for q in asked if q.length == length]
        assert ends == [1200, 1120, 1040, 960, 880]
        numbers = [q.facts["window"] for q in asked if q.length == length]
        assert numbers == [0, 1, 2, 3, 4]
    text = source.documents()[2].tokens
    assert all(len(q.tokens) == q.length for q in asked)
    assert [tuple(q.tokens[q.start :]) for q in asked if q.length == 800] == [
        tuple(text[end - 50 : end]) for end in (1200, 1120, 1040, 960, 880)
    ]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(20, 900), min_size=1, max_size=4),
    lengths=st.lists(st.integers(12, 700), min_size=1, max_size=3, unique=True),
    tail=st.integers(1, 9),
    windows=st.integers(1, 30),
)
def test_windows_have_the_same_targets_at_every_length(
    sizes: list[int], lengths: list[int], tail: int, windows: int
) -> None:
    """As many as fit, no target twice, whole windows alone, and what one window has is kept."""
    passages = [Document(str(i), tuple(range(1, n + 1))) for i, n in enumerate(sizes)]
    source = TaskContext(lambda _: [], lambda _: "", 0, 64, lambda: passages)
    assume(max(sizes) * 3 // 4 + 1 >= max(lengths))
    asked = list(perplexity.ask(source, lengths, tail=tail, windows=windows))
    alone = list(perplexity.ask(source, lengths, tail=tail))
    assert {q.digest for q in alone} <= {q.digest for q in asked}
    by_length = {
        n: [(q.unit, tuple(q.tokens[q.start :])) for q in asked if q.length == n] for n in lengths
    }
    first = by_length[lengths[0]]
    assert all(found == first for found in by_length.values())
    for unit in {unit for unit, _ in first}:
        targets = [token for other, found in first if other == unit for token in found]
        assert len(targets) == len(set(targets))
        size = sizes[int(unit)]
        count = sum(other == unit for other, _ in first)
        assert count <= windows
        if size // 2 >= max(lengths):  # all of its third quarter holds the longest length
            assert count == max(1, min(windows, size // 4 // tail))


def test_windows_of_one_document_are_one_unit_of_the_interval(source: TaskContext) -> None:
    """With several windows n still counts documents, each with the weight of its targets."""
    samples = []
    for question in perplexity.ask(source, [200], tail=50, windows=4):
        n = len(question.tokens) - question.start
        loss = 1.0 + len(question.unit)
        samples.append(
            perplexity.grade(question, LoglikelihoodResponse((loss,) * n, (0,) * (n + 1)), source)
        )
    weights = {unit: sum(s.weight for s in samples if s.unit == unit) for unit in ("300", "1200")}
    assert weights == {"300": 50, "1200": 200}
    assert perplexity.score(samples).n == len({s.unit for s in samples}) == 3


def test_windows_below_one_are_refused(source: TaskContext) -> None:
    """Zero windows are no measurement."""
    with pytest.raises(ValueError, match="windows=0 is not 1 or more"):
        list(perplexity.ask(source, [200], windows=0))


def test_prefix_scores_every_token_of_the_first_window_once(source: TaskContext) -> None:
    """A window of L is the begin token and the first L - 1 tokens, all of them targets."""
    asked = list(perplexity.ask(source, [100, 200], protocol="prefix"))
    text = source.documents()[0].tokens
    assert [len(q.tokens) for q in asked] == [100] * 3 + [200] * 3
    assert asked[0].tokens == (source.bos, *text[:99])
    assert asked[0].start == 1


def test_all_windows_open_with_the_begin_token_where_there_is_one(source: TaskContext) -> None:
    """A tokenizer without one gives windows of text alone, of the same exact length."""
    without = TaskContext(source.encode, source.decode, None, 64, source.documents)
    for protocol in ("tail", "prefix"):
        asked = list(perplexity.ask(source, [200], protocol=protocol))
        assert all(q.tokens[0] == source.bos and source.bos not in q.tokens[1:] for q in asked)
        bare = list(perplexity.ask(without, [200], protocol=protocol))
        assert all(source.bos not in q.tokens and len(q.tokens) == 200 for q in bare)


def test_every_length_measures_the_same_documents(source: TaskContext) -> None:
    """A document too short for the longest length is left out of the shortest too."""
    asked = list(perplexity.ask(source, [200, 800]))
    assert {q.unit for q in asked if q.length == 200} == {"1200", "1600"}
    assert {q.unit for q in asked if q.length == 800} == {"1200", "1600"}


def test_a_longer_length_leaves_the_targets_of_the_others_as_they_are(source: TaskContext) -> None:
    """Adding a length to a sweep changes no question that was asked before."""
    few = {q.digest for q in perplexity.ask(source, [200, 400])}
    more = {q.digest for q in perplexity.ask(source, [200, 400, 880])}
    assert few < more


def test_documents_that_are_all_too_short_are_refused_with_the_longest(source: TaskContext) -> None:
    """The message says how long a window the longest document would fill, and that is true."""
    wanted = (
        "no document holds a window of 5000 tokens; the longest that fits is 1201: "
        "ask for shorter lengths or give longer documents"
    )
    with pytest.raises(ValueError, match=f"^{wanted}$"):
        list(perplexity.ask(source, [200, 5000]))
    assert len(list(perplexity.ask(source, [1201]))) == 1
    with pytest.raises(ValueError, match="^tail=128 leaves no context in a window of 64 tokens$"):
        list(perplexity.ask(source, [64]))


def test_perplexity_is_token_weighted() -> None:
    """Two documents of 1 and 3 nats a token over 300 and 100 tokens: e^1.5, not e^2."""
    score = perplexity.score([Sample("a", 300.0, 300), Sample("b", 300.0, 100)])
    assert score.value == pytest.approx(math.exp(1.5))
    assert score.n == 2
    alone = perplexity.score([Sample("a", 300.0, 300)])
    assert (alone.value, alone.low, alone.high, alone.n) == (pytest.approx(math.e), None, None, 1)


def test_a_uniform_model_has_the_vocabulary_as_perplexity(source: TaskContext) -> None:
    """ln(300) nats at every target is a perplexity of 300, with no spread between documents."""
    samples = []
    for question in perplexity.ask(source, [200]):
        n = len(question.tokens) - question.start
        answer = LoglikelihoodResponse((math.log(300),) * n, (0,) * (n + 1))
        samples.append(perplexity.grade(question, answer, source))
    score = perplexity.score(samples)
    assert score.value == pytest.approx(300)
    assert score.low == pytest.approx(300)
    assert score.high == pytest.approx(300)


def test_a_target_needs_context() -> None:
    with pytest.raises(ValueError, match=r"the first target 0 is outside 1\.\.2"):
        Loglikelihood((1, 2, 3), 0, doc_id="q")
