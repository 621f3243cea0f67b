"""The digests of requests are the keys of stored samples: they are those of earlier versions."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import ropewalk
import tasks
from harness.data.corpus import make_context
from harness.plugins import load
from harness.runs.store import read_samples
from tasks.types import Divergence, Generate, Group, Loglikelihood, Request, Sample
from tests.tiny import tiny_tokenizer

TOKENS = tuple(range(1, 41))
SHORT = Loglikelihood(TOKENS[:20], 18, doc_id="request")
LONG = Loglikelihood(TOKENS[:22], 18, doc_id="request")
CHOICES = Group((SHORT, LONG), doc_id="document 0", cell=64, graded_by="0.4.13 x acc none 0")
TURNS = Group(
    tuple(Generate(TOKENS[i:] + TOKENS[:i], 10, doc_id=f"{i}") for i in range(3)), doc_id="set 0"
)
LOSS = Loglikelihood(TOKENS, 30, doc_id="q")
STOP = Generate(TOKENS, 8, ("\n",), doc_id="q", repeat=1, graded_by="hemp")
KNOWN: dict[str, tuple[Request, list[str]]] = {
    "ccc5478b39c2c572": (LOSS, []),
    "f1f96ab1e03c6176": (replace(LOSS, repeat=2), []),
    "775c7eb17edf5ae4": (replace(LOSS, cell=64, graded_by="made mean"), []),
    "56dcc2b4d90d4600": (Generate(TOKENS, 8, doc_id="q"), []),
    "3d92d7c868858481": (Generate(TOKENS, 8, ("\n", "END"), doc_id="q"), []),
    "23ef9392a5c6da42": (STOP, []),
    "650f4ecb5bfc48af": (Divergence(TOKENS, 30, doc_id="q"), []),
    "714fa21ad32cc43f": (Divergence(TOKENS, 30, doc_id="q", repeat=3), []),
    "a6fdc8ef52c4eef6": (CHOICES, ["587f15cee8f5aa2d", "ea37a640da4c4826"]),
    "6dc249526b1e87fa": (replace(CHOICES, repeat=1), ["851ffcced19d6109", "4c070850b6a01f0f"]),
    "7b8fee47e40b7fcb": (
        Group((SHORT,), doc_id="document 0", cell=64, graded_by="by"), ["f20e643261ae43ee"],
    ),
    "5cc70f15166825ef": (TURNS, ["17d5f81b74cfab0f", "95c2b12921ebf390", "1963b7662ffb0653"]),
}  # fmt: skip


PROMPTS = {
    "common_words:trials=1": (2, "dc42eabc926f9225"),
    "frequent_words:trials=1": (2, "1002b6b46f284efe"),
    "key_value:trials=1": (1, "9c05182810951791"),
    "niah": (2, "d517414fed036259"),
    "niah:in_turn=3,keys=4": (2, "30f41d98cb65755d"),
    "passkey": (1, "b1c28c6ae79feee2"),
    "passkey:filler=documents": (1, "9e9150d0e90332a2"),
    "perplexity": (1, "b194e5ba802796ba"),
    "perplexity:protocol=sliding": (1, "6333992202da2f9b"),
    "qa:data=DATA,trials=2": (1, "108e77318a202f35"),
    "ruler": (5, "25cb3f2e235886eb"),
    "variable_tracking:trials=1": (1, "ac4e1eb701901d83"),
    "window_kl": (1, "ae0b6e64f454a341"),
}


@pytest.mark.parametrize("digest", KNOWN)
def test_a_request_has_the_digest_of_earlier_versions(digest):
    request, parts = KNOWN[digest]
    assert request.digest == digest
    assert [part.digest for part in request.model_requests] == (parts or [digest])
    assert replace(request, doc_id="other", metadata={"a": 1}).digest == digest


@pytest.mark.parametrize("task", PROMPTS)
def test_a_task_whose_prompts_change_has_another_version(task, tmp_path):
    """Samples of one VERSION are compared: raise it, and write the new digest here."""
    texts = json.loads((Path(__file__).parent / "ruler_texts.json").read_text())
    (tmp_path / "qa.json").write_text(json.dumps(texts["qa_1"]["data"]))
    plugin = load("task", task.replace("DATA", str(tmp_path / "qa.json")))
    text = "".join(f"Sentence {n} of a tale. Was there one before it? " for n in range(300))
    context = make_context(tiny_tokenizer(), lambda: [("tale", text)], 2048)
    digest = sha256()
    for request in plugin.module.ask(context, [2000, 3500], **plugin.arguments):
        digest.update(request.digest.encode())
    assert (plugin.module.VERSION, digest.hexdigest()[:16]) == PROMPTS[task]


def test_a_penalized_text_is_another_request():
    """It is no repeat of the unpenalized one, whose digest is above."""
    assert replace(STOP, penalized=True).digest != STOP.digest
    parts = tuple(replace(part, penalized=True) for part in TURNS.parts)
    assert replace(TURNS, parts=parts).digest != TURNS.digest


def deprecated(name: str) -> Callable[..., Any]:
    with pytest.warns(DeprecationWarning, match=f"tasks.{name} is deprecated"):
        found: Callable[..., Any] = getattr(tasks, name)
    with pytest.warns(DeprecationWarning, match=name):
        assert getattr(ropewalk, name) is found
    return found


@pytest.mark.parametrize(
    ("request_", "given"),
    [
        (replace(LOSS, repeat=2), ("q", 40, TOKENS, 30, {}, 2)),
        (STOP, ("q", 48, TOKENS, 40, {}, 1, 8, ("\n",), 0, (), "hemp")),
        (Divergence(TOKENS, 30, doc_id="q"), ("q", 40, TOKENS, 30, {}, 0, 0, (), 0, (), "", True)),
        (TURNS, ("set 0", 50, TOKENS, 40, {}, 0, 10, (), 0, TURNS.parts)),
    ],
)
def test_a_question_of_earlier_versions_is_the_same_request(request_, given):
    old: Any = deprecated("Question")(*given)
    assert old == request_
    assert (old.unit, old.length, tuple(old.tokens), old.start) == (*given[:2], TOKENS, given[3])
    assert (old.facts, old.turn) == ({}, request_.repeat)
    assert replace(old, unit="a", facts={"b": 1}).doc_id == "a"
    kinds = {"new": Generate, "parts": Group, "divergence": Divergence}
    for name, kind in kinds.items():
        assert bool(getattr(old, name)) is isinstance(old, kind)


def test_an_answer_of_earlier_versions_has_its_attributes():
    answer = deprecated("Answer")
    assert answer((0.5,), (1, 2)).text == ""
    text = answer((0.5,), (7,), " yes")
    assert (text.nll, text.argmax, text.text) == ((0.5,), (7,), " yes")
    assert answer((), (), divergence=(0.1,)).divergence == (0.1,)
    assert answer((), (), parts=(text,)).parts == (text,)
    assert (text.parts, text.divergence) == ((), ())
    sample: Any = Sample(unit="a", value=1.0, weight=1, facts={"b": 2})
    assert (sample.doc_id, sample.unit, sample.facts) == ("a", "a", {"b": 2})


OLD_TASK = """
from tasks import Answer, Passage, Question, Sample, Score, Source

VERSION, METRIC = 1, "accuracy"


def ask(source: Source, lengths, *, seed: int = 0):
    for length in lengths:
        for passage in source.passages():
            tokens = (*source.opening, *passage.tokens[: length - len(source.opening)])
            yield Question(passage.name, length, tokens, length - 1, facts={"a": 1})


def grade(question: Question, answer: Answer, source: Source) -> Sample:
    hit = answer.argmax[0] == question.tokens[question.start] and not question.new
    return Sample(unit=question.unit, value=float(hit), weight=1, facts={**question.facts})


def score(samples) -> Score:
    return Score(sum(sample.value for sample in samples), None, None, len(samples))
"""


@pytest.mark.filterwarnings("ignore:tasks:DeprecationWarning")
@pytest.mark.slow
def test_a_task_file_of_earlier_versions_runs(ropewalk, tiny, docs, tmp_path):
    (tmp_path / "mine.py").write_text(OLD_TASK)
    done = ropewalk(
        "run", "--model", tiny, "--docs", docs, "--task", tmp_path / "mine.py",
        "--length", "48", "--scaling", "none", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.status == 0, done.err
    samples = read_samples(tmp_path / "run").values()
    assert {sample["status"] for sample in samples} == {"ok"}
    assert all(sample["facts"] == {"a": 1} for sample in samples)
