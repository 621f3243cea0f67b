"""Every protocol against a loop that measures as published code does, window by window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from harness.cli.app import main
from harness.data.corpus import make_context
from harness.data.tokenize import tokenize
from harness.engine import answers
from harness.runs.store import read_run
from harness.sweep.plan import make_plan
from harness.sweep.spec import parse
from tasks import perplexity
from tasks._protocols import PROTOCOLS, Layout
from tasks.types import Document, LoglikelihoodResponse, Sample, TaskContext
from tests.tiny import tiny_tokenizer

LENGTH, STRIDE = 48, 16
DRAW = Random(3)
# 97 and 160 tokens; one is a window and whole strides, the other leaves a rest.
TEXTS = {name: "".join(DRAW.choices("abcdefghij ", k=k)) for name, k in (("a", 95), ("b", 161))}


@pytest.fixture(scope="module")
def source() -> TaskContext:
    return make_context(tiny_tokenizer(), TEXTS.items, 64)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny).eval()


def measured(model: Any, source: TaskContext, protocol: str, length: int = LENGTH) -> list[Sample]:
    """Return the samples of a protocol, by the engine."""
    questions = list(
        perplexity.ask(source, [length], protocol=protocol, stride=STRIDE)  # type: ignore[arg-type]
    )
    samples = []
    for index, answer in answers(model, questions):
        assert answer is not None
        samples.append(perplexity.grade(questions[index], answer, source))
    return samples


@torch.inference_mode()
def loss(model: Any, tokens: Sequence[int], targets: int) -> tuple[float, int]:
    """Return the summed loss of the last ``targets`` tokens, by the model's own labels."""
    inputs = torch.tensor([tokens])
    labels = inputs.clone()
    labels[:, :-targets] = -100
    scored = int((labels[:, 1:] != -100).sum())
    return float(model(inputs, labels=labels).loss) * scored, scored


def perplexity_of(parts: list[tuple[float, int]]) -> float:
    return math.exp(sum(nll for nll, _ in parts) / sum(n for _, n in parts))


def slid(model: Any, source: TaskContext, stride: int) -> list[tuple[float, int]]:
    """Slide a window as the published loops do, but leave the last one as long as the others."""
    parts = []
    for passage in source.documents():
        tokens, previous = list(passage.tokens), 0
        room = LENGTH - 1
        for begin in range(0, len(tokens), stride):
            end = min(begin + room, len(tokens))
            window = [source.bos, *tokens[end - room : end]]
            parts.append(loss(model, window, end - previous))  # type: ignore[arg-type]
            previous = end
            if end == len(tokens):
                break
    return parts


def test_press_is_the_sliding_loop(model: Any, source: TaskContext) -> None:
    """A window of L moves by S, opens with the begin token, and scores what is new."""
    score = perplexity.score(measured(model, source, "press"))
    assert score.value == pytest.approx(perplexity_of(slid(model, source, STRIDE)), rel=1e-5)
    assert score.n == 2


def test_disjoint_is_the_loop_that_moves_a_whole_window(model: Any, source: TaskContext) -> None:
    """Windows side by side, each with its begin token, every token once."""
    score = perplexity.score(measured(model, source, "disjoint"))
    assert score.value == pytest.approx(perplexity_of(slid(model, source, LENGTH - 1)), rel=1e-5)


def test_overlap_is_the_loop_over_one_stream(model: Any, source: TaskContext) -> None:
    """All documents in a row, windows S apart, every position, the last window dropped."""
    stream = [token for p in source.documents() for token in (source.bos, *p.tokens)]
    starts = list(range(0, len(stream) - LENGTH, STRIDE))
    starts.pop()
    losses = []
    for start in starts:
        inputs = torch.tensor([stream[start : start + LENGTH]])
        with torch.inference_mode():
            losses.append(float(model(inputs, labels=inputs).loss))
    naive = math.exp(sum(losses) / len(losses))
    samples = measured(model, source, "overlap")
    assert len(samples) == len(starts)
    assert perplexity.score(samples).value == pytest.approx(naive, rel=1e-5)
    assert {sample.unit for sample in samples} == {"a", "b"}


@pytest.mark.parametrize("length", [32, 37])
def test_overlap_by_its_own_length_is_the_loop_over_windows_side_by_side(
    model: Any, source: TaskContext, length: int
) -> None:
    """Windows [kL, (k + 1)L) of one stream, the last whole one included, each but its first token.

    The stream has 258 tokens: 8 windows of 32 leave 2, 6 windows of 37 leave 36.
    """
    stream = [token for p in source.documents() for token in (source.bos, *p.tokens)]
    losses = []
    for number in range(len(stream) // length):
        inputs = torch.tensor([stream[number * length : (number + 1) * length]])
        with torch.inference_mode():
            losses.append(float(model(inputs, labels=inputs).loss))
    asked = list(perplexity.ask(source, [length], protocol="overlap", stride=length))
    samples = [
        perplexity.grade(asked[index], answer, source)
        for index, answer in answers(model, asked)
        if answer is not None
    ]
    assert len(samples) == len(losses) == len(stream) // length
    naive = math.exp(sum(losses) / len(losses))
    assert perplexity.score(samples).value == pytest.approx(naive, rel=1e-5)


def test_one_whole_stream_is_a_window(source: TaskContext) -> None:
    """The last window is kept where it is the only one, and one token more is refused."""
    assert len(list(perplexity.ask(source, [258], protocol="overlap", stride=258))) == 1
    with pytest.raises(ValueError, match="the longest that fits is 258"):
        list(perplexity.ask(source, [259], protocol="overlap", stride=259))


def test_prefix_is_one_window_a_document(model: Any, source: TaskContext) -> None:
    """The begin token and the first L - 1 tokens of each document, all scored."""
    parts = [
        loss(model, [source.bos, *p.tokens[: LENGTH - 1]], LENGTH - 1)  # type: ignore[list-item]
        for p in source.documents()
    ]
    score = perplexity.score(measured(model, source, "prefix"))
    assert score.value == pytest.approx(perplexity_of(parts), rel=1e-5)


def test_slide_is_the_loop_over_windows_cut_to_the_shorter_length(
    model: Any, source: TaskContext
) -> None:
    """The targets of the longest length, by windows of 16 tokens moved on by 2, as by the model."""
    length, longest, targets = 16, LENGTH, 32
    requests = list(perplexity.ask(source, [length, longest], tail=targets, slide=True))
    samples = {
        index: perplexity.grade(requests[index], answer, source)
        for index, answer in answers(model, requests)
        if answer is not None
    }
    assert len(samples) == 2 * (targets // (length // 8) + 1)
    parts = []
    for passage in source.documents():
        end = len(passage.tokens) * 3 // 4
        for last in range(end - targets + 2, end + 1, 2):
            window = [source.bos, *passage.tokens[last - length + 1 : last]]
            parts.append(loss(model, window, 2))  # type: ignore[arg-type]
    cut = [samples[place] for place, one in enumerate(requests) if one.length == length]
    assert perplexity.score(cut).value == pytest.approx(perplexity_of(parts), rel=1e-5)
    plain = perplexity.ask(source, [longest], tail=targets)
    whole = [one for one in requests if one.length == longest]
    assert [one.digest for one in plain] == [one.digest for one in whole]


@pytest.mark.parametrize(("length", "tail"), [(16, 32), (16, 40), (40, 32), (17, 45)])
def test_slide_scores_each_target_once_after_most_of_a_window(
    source: TaskContext, length: int, tail: int
) -> None:
    """Whatever the sizes: the same targets at both lengths, with 7/8 of a window before each."""
    scored: dict[int, list[tuple[str, int]]] = {}
    for one in perplexity.ask(source, [length, LENGTH], tail=tail, slide=True):
        first = int(one.facts["first"])  # type: ignore[arg-type]
        count = len(one.tokens) - one.start
        places = [(one.unit, first + place) for place in range(count)]
        scored.setdefault(one.length, []).extend(places)
        assert len(one.tokens) == one.length
        if one.length == length:
            assert one.start >= min(length - length // 8, first + 1)
    assert scored[length] == scored[LENGTH]


passages = st.lists(
    st.lists(st.integers(1, 99), min_size=20, max_size=70).map(tuple), min_size=1, max_size=4
).map(lambda texts: [Document(str(i), t, tuple(range(len(t) + 1))) for i, t in enumerate(texts)])


@pytest.mark.slow
@settings(max_examples=20)
@given(passages, st.integers(2, 20), st.integers(1, 19), st.booleans())
def test_press_and_disjoint_score_every_token_once(
    texts: list[Document], length: int, stride: int, begin: bool
) -> None:
    """Whatever the sizes: all windows are whole, and targets and bytes add up to the document."""
    opening = (0,) if begin else ()
    for name in ("press", "disjoint"):
        layout = Layout(opening, 1, min(stride, length - 1))
        for text in texts:
            windows = list(PROTOCOLS[name]([text], length, layout))  # type: ignore[index]
            assert all(len(window.tokens) == length for window in windows)
            targets = [t for window in windows for t in window.tokens[window.start :]]
            places = [w.first + i for w in windows for i in range(length - w.start)]
            unscored = 0 if begin else 1  # no context, nothing to predict it from
            assert targets == list(text.tokens[unscored:])
            assert places == list(range(unscored, len(text.tokens)))
            assert sum(window.bytes or 0 for window in windows) == len(text.tokens) - unscored


@settings(max_examples=20)
@given(st.text(max_size=200))
def test_bytes_before_tokens_add_up_to_the_text(text: str) -> None:
    """The bytes before each token never fall, begin at 0 and end at the whole text in UTF-8."""
    tokens, ends = tokenize(tiny_tokenizer(), text)
    assert ends is not None
    assert len(ends) == len(tokens) + 1
    assert list(ends) == sorted(ends)
    assert (ends[0], ends[-1]) == (0, len(text.encode()))
    if text.isascii():
        assert list(ends) == [*range(len(text) + 1)]  # this tokenizer has one token a byte


def test_a_window_knows_the_bytes_it_scores(source: TaskContext) -> None:
    """In ASCII and one token a byte, the bytes of a sample are its targets."""
    for protocol in PROTOCOLS:
        for question in perplexity.ask(source, [LENGTH], protocol=protocol, tail=9, stride=STRIDE):
            scored = question.tokens[question.start :]
            assert question.facts["bytes"] == len(scored) - scored.count(source.bos or 0)


def test_an_empty_row_takes_no_bytes_from_the_stream() -> None:
    """Beside a document without text, windows over the stream of all know their bytes too."""
    texts = {"empty": "", **TEXTS}
    beside: TaskContext = make_context(tiny_tokenizer(), texts.items, 64)  # type: ignore[arg-type]
    for question in perplexity.ask(beside, [LENGTH], protocol="overlap", stride=STRIDE):
        scored = question.tokens[question.start :]
        assert question.facts["bytes"] == len(scored) - scored.count(beside.bos or 0)


@pytest.mark.slow
def test_a_new_switch_of_perplexity_keeps_the_keys_of_committed_samples() -> None:
    """The reference run, planned again, has the cells and the questions of its record."""
    folder = Path("results/reference")
    record, places = read_run(folder), {}
    asked = {name: value for name, value in record["asked"].items() if name != "out"}
    plan = make_plan(parse(None, {**asked, "scaling": ["none", "yarn"], **places}))
    keys = {(c["scaling"], c["task"], c["length"]): c["key"] for c in record["cells"]}
    assert {keys[c.scaling, c.task, c.length] for c in plan.cells} == {c.key for c in plan.cells}
    for cell in plan.cells:
        known = record["tasks"][cell.task]["questions"][str(cell.length)]
        assert [question.digest for question in cell.questions] == known


def test_documents_are_the_unit_of_the_interval() -> None:
    """Windows of one document are one unit: n counts documents, and their sums are resampled."""
    windows = [Sample("a", 10.0, 10), Sample("b", 60.0, 20), Sample("a", 30.0, 10)]
    whole = [Sample("a", 40.0, 20), Sample("b", 60.0, 20)]
    assert perplexity.score(windows) == perplexity.score(whole)
    assert perplexity.score(windows).n == 2


@pytest.mark.parametrize(
    ("options", "length", "message"),
    [
        ({"protocol": "disjoint"}, 1, "a window of 1 token has no target"),
        (
            {"protocol": "press", "stride": 48},
            48,
            "stride=48 is not 1 to 47, for a window of 48 tokens",
        ),
        (
            {"protocol": "overlap", "stride": 0},
            48,
            "stride=0 is not 1 to 48, for a window of 48 tokens",
        ),
        (
            {"protocol": "overlap", "stride": 16},
            250,
            "no document holds a window of 250 tokens; the longest that fits is 241: "
            "ask for shorter lengths or give longer documents",
        ),
        (
            {"protocol": "press", "slide": True},
            48,
            "slide is an option of protocol=tail; protocol=press has none",
        ),
        (
            {"tail": 47, "slide": True},
            48,
            "tail=47 leaves no context in a window of 48 tokens",
        ),
    ],
)
def test_what_cannot_be_slid_is_refused(
    options: dict[str, Any], length: int, message: str, source: TaskContext
) -> None:
    """A stride that leaves tokens out, or a stream too short, is one sentence."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        list(perplexity.ask(source, [length], **options))


def test_the_longest_stream_that_fits_is_told_right(source: TaskContext) -> None:
    """The length named by the refusal does have a window."""
    assert len(list(perplexity.ask(source, [241], protocol="overlap", stride=16))) == 1


@pytest.mark.slow
def test_a_stream_leaves_no_document_out(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short last document in which no window begins is read, and not said to be left out."""
    for name, text in {**TEXTS, "c": "short"}.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    words = ["run", "--model", str(tiny), "--docs", str(tmp_path), "--length", "1x", "--dry-run"]
    for protocol, told in (("overlap", 0), ("press", 1)):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--task", f"perplexity:protocol={protocol},stride=16"])
        assert not ended.value.code
        assert capsys.readouterr().out.count("are left out: c.txt") == told


def test_a_uniform_model_scores_the_vocabulary_in_every_protocol(source: TaskContext) -> None:
    """ln(300) nats a token is a perplexity of 300, however tokens are counted."""
    for protocol in PROTOCOLS:
        samples = []
        for question in perplexity.ask(source, [LENGTH], protocol=protocol, tail=9, stride=STRIDE):
            n = LENGTH - question.start
            answer = LoglikelihoodResponse((math.log(300),) * n, (0,) * (n + 1))
            samples.append(perplexity.grade(question, answer, source))
        assert perplexity.score(samples).value == pytest.approx(300)
