"""A served model is measured as the same weights are here, through each engine's own API."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.harness.plugins import ROOT
from ropewalk.harness.sweep import server
from tests.served import Engine, serving


@pytest.fixture
def few_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request be sent again at once, three times."""
    monkeypatch.setattr(server, "WAITS", (0.01, 0.01, 0.01))


def samples(folder: Path) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the samples of a run by task, length and question; none is there twice."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    kept = [one for one in lines if one["status"] == "ok"]
    keys = Counter((one["task"], one["length"], one["question"]) for one in kept)
    assert set(keys.values()) <= {1}
    return {(one["task"], one["length"], one["question"]): one for one in lines}


@pytest.fixture(scope="module")
def settings(tiny, docs, tmp_path_factory):
    """Return the words of a sweep, with a task of the user's that requests texts of few tokens."""
    file = tmp_path_factory.mktemp("tasks") / "words.py"
    file.write_text('''"""Count the words of a greedy text."""
from ropewalk.tasks.types import Generate, Sample, Score
VERSION, METRIC = 1, "accuracy"
def ask(context, lengths, *, seed=0):
    for length in lengths:
        for document in context.documents():
            prompt = [*context.opening, *document.tokens[: length - 6 - len(context.opening)]]
            yield Generate(prompt, 6, ("e",), doc_id=document.name, cell=length)
def grade(request, response, context):
    return Sample(request.doc_id, 1.0, 1, {"said": response.text, "tokens": len(response.tokens)})
def score(samples):
    return Score(1.0, None, None, len(samples))
''')
    return (
        "run", "--model", tiny, "--docs", docs, "--scaling", "yarn:factor=5", "--length", "4.5x",
        "5x", "--limit", "2", "--task", "perplexity:tail=32", "passkey:depths=2", file,
    )  # fmt: skip


@pytest.fixture(scope="module")
def local(settings, tmp_path_factory):
    """Return the folder of the same sweep on the weights."""
    from tests.command_line import status

    out = tmp_path_factory.mktemp("local") / "run"
    assert status(*settings, "--out", out) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize("style", ["vllm", "sglang", "llamacpp", "server"])
def test_a_served_model_has_the_numbers_of_its_weights(
    style, tiny, settings, local, ropewalk, tmp_path
):
    with serving(Engine(tiny, style)) as url:
        done = ropewalk(*settings, "--server", url, "--out", tmp_path / "run")
    assert done.status == int(style == "llamacpp"), done.err
    ours, theirs = samples(local), samples(tmp_path / "run")
    assert ours.keys() == theirs.keys()
    for key, one in theirs.items():
        mine = ours[key]
        assert one["cell"] != mine["cell"]  # they never mix
        if style == "llamacpp" and key[0].startswith("perplexity"):
            assert "gives no losses of a prompt" in one["reason"]
            continue
        assert one["status"] == "ok", one
        assert one["value"] / one["weight"] == pytest.approx(
            mine["value"] / mine["weight"], abs=1e-4
        )
        for fact in ("found",) if style == "server" else ("said", "argmax", "found"):
            assert one["facts"].get(fact) == mine["facts"].get(fact)
        if "logprob" in one["facts"]:
            assert one["facts"]["logprob"] == pytest.approx(mine["facts"]["logprob"], abs=1e-3)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert (record["model"]["name"], record["model"]["served"]) == (f"{tiny.name}-{style}", style)
    assert record["asked"]["server"] == "URL"
    if style == "vllm":
        session = record["sessions"][0]
        assert session["device"] == "vLLM 0.99"
        assert session["server"]["cache_dtype"] == "fp8"


@pytest.mark.slow
@pytest.mark.usefixtures("few_waits")
def test_a_busy_server_and_one_that_dies_lose_nothing(
    tiny, settings, local, ropewalk, rejected, tmp_path
):
    """Of the first run some requests get 429, 503 or no reply, until all do; the next goes on.

    A server that says another thing of itself is another one, and its samples are not joined.
    """
    words = (*settings, "--concurrency", 2, "--out", tmp_path / "run", "--server")
    engine, dead, fault = Engine(tiny, "vllm"), threading.Event(), 0

    def change(number: int, *_: Any) -> tuple[int, Any] | None:
        if number > 14:
            dead.set()
        if dead.is_set():
            return fault, "out of memory"
        return {2: (429, "busy"), 5: (503, "busy"), 8: (0, None)}.get(number)

    with serving(engine, change) as url:
        said = rejected(*words, url)
    assert "does not answer any more" in said
    before = samples(tmp_path / "run")
    assert before
    assert {one["status"] for one in before.values()} == {"ok"}
    dead.clear()
    fault = 500
    with serving(engine, change) as url:  # it replies, and only with errors
        assert "replies 500 to every attempt: out of memory. What was" in rejected(*words, url)
    with serving(Engine(tiny, "vllm", cache="auto")) as url:
        said = rejected(*words, url)
    assert "was measured on a server with the cache_dtype fp8, and this one has auto" in said
    with serving(engine) as url:
        assert ropewalk(*words, url).status == 0
    after = samples(tmp_path / "run")
    assert after.keys() == samples(local).keys()
    assert {key: after[key] for key in before} == before


@pytest.mark.slow
@pytest.mark.usefixtures("few_waits")
def test_a_request_that_a_server_cannot_answer_is_one_sample(
    tiny, settings, local, ropewalk, tmp_path
):
    """It has failed, all others are measured."""
    prompts = list[Any]()

    def change(_: int, __: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        prompts.append(body["prompt"])
        return (500, "out of memory") if body["prompt"] in prompts[3:4] else None

    with serving(Engine(tiny, "vllm"), change) as url:
        done = ropewalk(*settings, "--out", tmp_path / "run", "--server", url)
    statuses = Counter(one["status"] for one in samples(tmp_path / "run").values())
    assert statuses == {"ok": len(samples(local)) - 1, "failed": 1}
    assert done.status == 1
    assert "the server replies 500 to every attempt: out of memory" in done.out


@pytest.mark.slow
def test_a_reply_of_another_number_of_tokens_is_no_number(tiny, docs, rejected, tmp_path):
    engine = Engine(tiny, "vllm")

    def cut(_: int, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        status, reply = engine(path, body)
        reply["choices"][0]["prompt_logprobs"] = reply["choices"][0]["prompt_logprobs"][1:]
        return status, reply

    with serving(engine, cut) as url:
        said = rejected(
            "run", "--model", tiny, "--docs", docs, "--task", "perplexity:tail=32", "--length",
            "2x", "--scaling", "yarn:factor=5", "--server", url, "--out", tmp_path / "run",
        )  # fmt: skip
    assert "the server gives losses of 63 tokens where 64 were sent" in said


@pytest.mark.slow
def test_a_server_that_ignores_its_scaling_is_not_measured_under_its_name(
    tiny, docs, rejected, ropewalk, tmp_path
):
    words = ("run", "--model", tiny, "--docs", docs, "--task", "perplexity:tail=32", "--length",
             "2x", "--out", tmp_path / "run", "--server")  # fmt: skip
    with serving(Engine(tiny, "vllm", "none")) as url:
        said = rejected(*words, url, "--scaling", "yarn:factor=5")
        assert "vLLM does not compute yarn:factor=5" in said
        assert "they match those of none" in said
        assert not samples(tmp_path / "run")
        assert ropewalk(*words, url).status == 0  # native, which is none here
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert "the losses of 63 tokens" in record["sessions"][-1]["server"]["computes"]["native"]


@pytest.mark.slow
def test_a_length_above_the_limit_is_a_status(tiny, docs, ropewalk, tmp_path):
    with serving(Engine(tiny, "vllm", limit=128)) as url:
        done = ropewalk(
            "run", "--model", tiny, "--docs", docs, "--task", "perplexity:tail=32", "--length",
            "1x", "2x", "--scaling", "yarn:factor=5", "--server", url, "--out", tmp_path / "run",
        )  # fmt: skip
    assert done.status == 1
    assert "the server admits 128 tokens, and this needs 129" in done.out
    statuses = {key[1]: one["status"] for key, one in samples(tmp_path / "run").items()}
    assert statuses == {64: "ok", 128: "failed"}


def test_a_mistake_is_one_sentence(tiny, rejected):
    with serving(lambda *_: (200, {"data": []})) as url:
        assert "unexpected reply" in rejected("run", "--model", tiny, "--server", url)
    gone = ("--model", tiny, "--server", "http://127.0.0.1:9")
    for words, said in (
        (gone, "does not answer"),
        ((*gone, "--workers", "2"), "--workers is a setting of weights"),
        ((*gone, "--scaling", "pi", "yarn"), "one model with one scaling"),
        (("--model", tiny, "--concurrency", "4"), "name --server or --engine"),
    ):
        assert said in rejected("run", *words)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "said"), [
    (("--task", "window_kl:tail=16", "--length", "1x", "--scaling", "pi:factor=5"), "the weights"),
    (("--scaling", "yarn", "--length", "2x", "4x"), "has one scaling for all lengths"),
    (("--scaling", "dynamic_ntk:mode=transformers", "--length", "4x"), "changes with the longest"),
])  # fmt: skip
def test_what_no_server_measures(words, said, tiny, docs, rejected, tmp_path):
    with serving(Engine(tiny, "vllm")) as url:
        out = ("--docs", docs, "--out", tmp_path / "run", "--limit", "1")
        words = ("--length", "4x", "--task", "perplexity:tail=16", *words)
        assert said in rejected("run", "--model", tiny, "--server", url, *out, *words)


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a command on the path that serves an exported folder as vLLM does, and notes its id."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "vllm"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.served import command\ncommand({str(folder / 'ids')!r})\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder / "ids"


@pytest.mark.slow
def test_an_engine_is_started_for_each_scaling_and_none_is_left(
    vllm, tiny, docs, ropewalk, rejected, tmp_path
):
    words = ("run", "--model", tiny, "--docs", docs, "--task", "perplexity:tail=32", "--length",
             "2x", "--scaling", "none", "yarn:factor=4", "--out")  # fmt: skip
    assert ropewalk(*words, tmp_path / "local").status == 0
    engine = ("--engine", "vllm")
    assert "cannot --fail" in rejected(*words, tmp_path / "run", *engine, "--engine-args", "--fail")
    assert not samples(tmp_path / "run")
    done = ropewalk(*words, tmp_path / "run", *engine, "--engine-args", "--enforce-eager")
    assert done.status == 0, done.err
    assert "vllm serve" in done.err
    assert "--max-model-len 129" in done.err
    ids = [int(line) for line in vllm.read_text().split()]
    assert len(ids) == 3
    for process in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    record = json.loads((tmp_path / "run/run.json").read_text())
    (session,) = record["sessions"]  # none of the engine that failed
    assert session["server"]["computes"].keys() == {"none", "yarn:factor=4"}
    texts = rw.compare(tmp_path / "local", tmp_path / "run").notes
    for label in ("none", "yarn:factor=4"):
        (text,) = (text for text in texts if f", {label}: its losses" in text)
        assert f"nearest to those of {label} of" in text
    # Its options may change what it computes: samples of others are not taken for new ones.
    said = rejected(*words, tmp_path / "run", *engine, "--engine-args", "--kv-cache-dtype fp8")
    assert "another model (served: vllm --enforce-eager, now vllm --kv-cache-dtype fp8)" in said
