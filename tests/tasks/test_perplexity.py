"""The same targets at every length, every token once, and values worked by hand."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.engine import answers
from ropewalk.harness.runs.frame import make_frame
from ropewalk.tasks import perplexity
from ropewalk.tasks._intervals import per_weight
from ropewalk.tasks.perplexity import Layout, Protocol, overlapping
from ropewalk.tasks.types import Document, Sample, TaskContext
from tests.command_line import status
from tests.tiny import tiny_tokenizer


@pytest.mark.slow
@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(20, 900), min_size=1, max_size=4),
    lengths=st.lists(st.integers(12, 700), min_size=1, max_size=3, unique=True),
    tail=st.integers(1, 9),
    windows=st.integers(1, 30),
)
def test_windows_have_the_same_targets_at_every_length(sizes, lengths, tail, windows):
    passages = [Document(str(i), tuple(range(1, n + 1))) for i, n in enumerate(sizes)]
    books = TaskContext(lambda _: [], lambda _: "", (0,), 64, lambda: passages, *3 * [None])
    assume(max(sizes) * 3 // 4 + 1 >= max(lengths))
    asked = list(perplexity.ask(books, lengths, tail=tail, windows=windows))
    alone = list(perplexity.ask(books, lengths, tail=tail))
    assert {q.digest for q in alone} <= {q.digest for q in asked}
    assert all(q.tokens[1:] == tuple(range(q.tokens[1], q.tokens[-1] + 1)) for q in asked)
    by_length = {
        n: [(q.doc_id, tuple(q.tokens[q.start :])) for q in asked if q.length == n] for n in lengths
    }
    first = by_length[lengths[0]]
    assert all(found == first for found in by_length.values())
    for unit in {unit for unit, _ in first}:
        targets = [token for other, found in first if other == unit for token in found]
        assert len(targets) == len(set(targets))
        size = sizes[int(unit)]
        assert max(targets) == size * 3 // 4  # the tokens are 1, 2, 3, …
        count = sum(other == unit for other, _ in first)
        assert count <= windows
        if size // 2 >= max(lengths):  # all of its third quarter holds the longest length
            assert count == max(1, min(windows, size // 4 // tail))


def test_perplexity_is_token_weighted():
    """Two documents of 1 and 3 nats a token over 300 and 100 tokens: e^1.5, not e^2."""
    score = perplexity.score([Sample("a", 300.0, 300), Sample("b", 300.0, 100)])
    assert score.value == pytest.approx(math.exp(1.5))
    assert score.n == 2
    alone = perplexity.score([Sample("a", 300.0, 300)])
    assert (alone.value, alone.low, alone.high, alone.n) == (pytest.approx(math.e), None, None, 1)


LENGTH, STRIDE = 48, 16
OPTIONS: dict[str, dict[str, Any]] = {  # by the protocols that read them
    "tail": {"tail": 9},
    "sliding": {"stride": STRIDE},
    "overlapping": {"stride": STRIDE},
}
DRAW = Random(3)
# 97 and 160 tokens; one is a window and whole strides, the other leaves a rest.
TEXTS = {name: "".join(DRAW.choices("abcdefghij ", k=k)) for name, k in (("a", 95), ("b", 161))}


@pytest.fixture(scope="module")
def source() -> TaskContext:
    return make_context(tiny_tokenizer(), TEXTS.items, 64)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny).eval()


Windows = list[tuple[list[int], int]]  # the input of the model, and how many last tokens count


@torch.inference_mode()
def loss(model: Any, tokens: Sequence[int], targets: int) -> tuple[float, int]:
    """Return the summed loss of the last ``targets`` tokens, by the model's own labels."""
    inputs = torch.tensor([tokens])
    labels = inputs.clone()
    labels[:, :-targets] = -100
    scored = int((labels[:, 1:] != -100).sum())
    return float(model(inputs, labels=labels).loss) * scored, scored


def mean(parts: list[tuple[float, int]]) -> float:
    return math.exp(sum(nll for nll, _ in parts) / sum(count for _, count in parts))


def first_windows(source: TaskContext) -> Windows:
    """Return the begin token and the first L - 1 tokens of each document, all scored."""
    texts = [list(passage.tokens) for passage in source.documents()]
    return [([*source.opening, *tokens[: LENGTH - 1]], LENGTH - 1) for tokens in texts]


def slid(source: TaskContext, stride: int) -> Windows:
    """Slide a window as the published loops do, but leave the last one as long as the others."""
    windows = []
    for passage in source.documents():
        tokens, previous = list(passage.tokens), 0
        room = LENGTH - 1
        for begin in range(0, len(tokens), stride):
            end = min(begin + room, len(tokens))
            windows.append(([*source.opening, *tokens[end - room : end]], end - previous))
            previous = end
            if end == len(tokens):
                break
    return windows


def streamed(source: TaskContext, length: int, stride: int) -> Windows:
    """As published, without the last of several overlapping windows; side by side, with it.

    The stream has 258 tokens: 8 windows of 32 leave 2, 6 windows of 37 leave 36.
    """
    stream = [token for p in source.documents() for token in (*source.opening, *p.tokens)]
    starts = list(range(0, len(stream) - length, stride))
    if stride < length:
        starts.pop()
    return [(stream[start : start + length], length - 1) for start in starts]


def cut(source: TaskContext, length: int, targets: int) -> Windows:
    """Return the windows of a shorter length that score the targets, moved on by an eighth."""
    windows = []
    for passage in source.documents():
        end, step = len(passage.tokens) * 3 // 4, length // 8
        windows += [
            ([*source.opening, *passage.tokens[last - length + 1 : last]], step)
            for last in range(end - targets + step, end + 1, step)
        ]
    return windows


@pytest.mark.parametrize(
    ("options", "length", "naive", "units"),
    [
        ({"protocol": "prefix"}, LENGTH, first_windows, 2),
        ({"protocol": "sliding", "stride": STRIDE}, LENGTH, partial(slid, stride=STRIDE), 2),
        ({"protocol": "disjoint"}, LENGTH, partial(slid, stride=LENGTH - 1), 2),
        # Documents of fewer than four windows are one unit.
        *(
            (
                {"protocol": "overlapping", "stride": stride},
                length,
                partial(streamed, length=length, stride=stride),
                1,
            )
            for length, stride in ((LENGTH, STRIDE), (32, 32), (37, 37))
        ),
        ({"tail": 32, "slide": True}, 16, partial(cut, length=16, targets=32), 2),
    ],
)
def test_windows_are_those_of_the_published_loops(model, source, options, length, naive, units):
    lengths = [length, LENGTH] if "slide" in options else [length]
    requests = list(perplexity.ask(source, lengths, **options))
    samples = [
        perplexity.grade(requests[index], answer, source)
        for index, answer in answers(model, requests)
        if answer is not None and requests[index].length == length
    ]
    parts = [loss(model, *window) for window in naive(source)]
    score = perplexity.score(samples)
    assert (score.value, score.n) == (pytest.approx(mean(parts), rel=1e-5), units)
    assert len(samples) == len(parts)


def test_slide_leaves_the_longest_length_as_it_is(source):
    found = list(perplexity.ask(source, [16, LENGTH], tail=32, slide=True))
    plain = list(perplexity.ask(source, [LENGTH], tail=32))
    assert [q.digest for q in found if q.length == LENGTH] == [q.digest for q in plain]


@pytest.mark.parametrize(
    ("sizes", "units"),
    [((80, 80), "ab"), ((79, 80, 80), "ac"), ((30, 60, 30, 30, 30, 30), "acf")],
)
def test_documents_that_share_overlapping_windows_are_one_unit(sizes, units):
    """A unit fills four windows of 20 tokens: then few of its tokens are in windows of another."""
    names = "abcdef"[: len(sizes)]
    documents = [Document(n, range(size)) for n, size in zip(names, sizes, strict=True)]
    every = list(overlapping(documents, 20, Layout("overlapping", (), stride=4)))
    assert "".join(dict.fromkeys(window.doc_id for window in every)) == units
    assert len(every) == len(range(0, sum(sizes) - 20, 4)) - 1


@pytest.mark.slow
def test_the_interval_of_overlapping_windows_holds_for_short_documents():
    """Of 400 streams of 60 documents, half a window each: 80 % with one unit per document."""
    draw, documents = np.random.default_rng(0), [Document(str(i), range(50)) for i in range(60)]
    layout = Layout("overlapping", (), stride=10)
    windows = list(overlapping(documents, 100, layout))
    places = [np.arange(100) + window.metadata["first"] - window.start for window in windows]
    held = 0
    for _ in range(400):
        losses = np.exp(0.5 * draw.standard_normal(60)) - math.exp(0.125)
        sums = [losses[place // 50].sum() for place in places]
        samples = [Sample(w.doc_id, s, 100) for w, s in zip(windows, sums, strict=True)]
        low, high = per_weight(samples)[0].interval()
        held += low <= 0 <= high
    assert held / 400 >= 0.95


passages = st.lists(
    st.lists(st.integers(1, 99), min_size=20, max_size=70).map(tuple), min_size=1, max_size=4
).map(lambda texts: [Document(str(i), t, tuple(range(len(t) + 1))) for i, t in enumerate(texts)])


@pytest.mark.slow
@settings(max_examples=20)
@given(passages, st.integers(2, 20), st.integers(1, 19), st.booleans())
def test_press_and_disjoint_score_every_token_once(texts, length, stride, begin):
    opening = (0,) if begin else ()
    for name in ("sliding", "disjoint"):
        layout = Layout(name, opening, 1, min(stride, length - 1))
        for text in texts:
            windows = list(perplexity.slid([text], length, layout))
            assert all(len(window.tokens) == length for window in windows)
            targets = [t for window in windows for t in window.tokens[window.start :]]
            places = [w.metadata["first"] + i for w in windows for i in range(length - w.start)]
            unscored = 0 if begin else 1  # no context, nothing to predict it from
            assert targets == list(text.tokens[unscored:])
            assert places == list(range(unscored, len(text.tokens)))
            scored = sum(window.metadata["bytes"] for window in windows)
            assert scored == len(text.tokens) - unscored


def test_a_window_knows_the_bytes_it_scores(source):
    """In ASCII and one token a byte, the bytes are its targets; an empty row has none."""
    beside: TaskContext = make_context(tiny_tokenizer(), {"empty": "", **TEXTS}.items, 64)
    for protocol, context in (
        *((one, source) for one in get_args(Protocol)),
        ("overlapping", beside),
    ):
        for question in perplexity.ask(
            context, [LENGTH], protocol=protocol, **OPTIONS.get(protocol, {})
        ):
            scored = question.tokens[question.start :]
            assert question.metadata["bytes"] == len(scored) - scored.count(source.opening[0])


@pytest.mark.parametrize(
    ("options", "length", "words"),
    [
        ({"protocol": "sliding", "stride": 48}, 48, "stride=48 is not 1 to 47"),
        ({}, 250, "of 250 tokens in its first three quarters; the longest that fits is 121"),
        ({"protocol": "prefix"}, 250, "the longest that fits is 162"),
        ({"protocol": "overlapping", "stride": 16}, 250, "the longest that fits is 241"),
        ({"stride": 16}, 48, "stride is an option of protocol=sliding and overlapping; leave it"),
    ],
)
def test_what_cannot_be_slid_is_refused(options, length, words, source):
    with pytest.raises(ValueError, match=words):
        list(perplexity.ask(source, [length], **options))


@pytest.mark.slow
def test_equal_windows_of_a_document_all_count(model, tiny, tmp_path):
    """A refrain of 32 tokens under windows 32 apart: the score is that of the plain loop."""
    verse = "the rope is long and tar is old"
    text = f"{verse}\n" * 9 + "then the strand was cut, and none of it was ever seen again."
    (tmp_path / "song.txt").write_text(text)
    words = ["--model", tiny, "--docs", tmp_path / "song.txt", "--out", tmp_path / "run"]
    task = ("--task", "perplexity:protocol=sliding,stride=32", "--length", LENGTH)
    assert status("run", *words, *task, "--scaling", "none") == 0
    song = make_context(tiny_tokenizer(), lambda: [("song", text)], 64)
    parts = [loss(model, *window) for window in slid(song, 32)]
    frame = make_frame([tmp_path / "run"])
    assert (len(frame), frame["weight"].sum()) == (len(parts), len(song.documents()[0].tokens))
    assert frame["score"].iloc[0] == pytest.approx(mean(parts), rel=1e-5)
