"""The digests of requests are the keys of stored samples, and prompts change with a version."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.plugins import load
from ropewalk.tasks.types import Divergence, Generate, Group, Loglikelihood, Request
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
def test_a_request_has_its_digest(digest):
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
