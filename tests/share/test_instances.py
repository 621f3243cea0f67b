"""Samples with the text of their questions: of the schema, and the scores again."""

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft7Validator

from harness.runs.store import RUN, SAMPLES
from tasks import passkey, qa, ruler
from tasks._retrieval import shown
from tasks.types import Loglikelihood
from tests import ROOT
from tests.command_line import Ropewalk, lines_of, put_lines, status
from tests.small_runs import PRIVATE, changed, private, sweep
from tests.tiny import tiny_tokenizer

LENGTHS = ("640", "700")
FILLED, TEXT, CHAT = (
    "passkey:depths=2,trials=1,filler=documents",
    "niah:depths=2,trials=2,new=8",
    "passkey:depths=1,trials=1,chat=true",
)
TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
WORDS = ("--to", "every-eval-ever", "--samples")
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def measured(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of a task of each kind, of a model with a chat template."""
    folder = tmp_path_factory.mktemp("runs")
    model = Path(shutil.copytree(tiny, folder / "model"))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    words = ["--length", *LENGTHS, "--scaling", "none", "pi", "pi:factor=1", "--docs", docs]
    words += ["--task", FILLED, TEXT, CHAT, "perplexity:tail=16", "--out", folder / "run"]
    assert status("run", "--model", model, *words) == 0
    return folder / "run"


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> Path:
    """Return a copy whose answers are right, wrong, or right in parts; the last has no number."""
    folder, draw = Path(shutil.copytree(measured, tmp_path / "run")), Random("values")
    lines = lines_of(folder)
    for line in lines:
        if not line["task"].startswith("perplexity"):
            line["value"] = draw.choice([0.0, 1.0, 1 / 3] if "niah" in line["task"] else [0.0, 1.0])
    last = [line for line in lines if line["task"] == TEXT][-1]
    last.update(status="not_finite", reason="the loss is inf", value=None, weight=0)
    put_lines(folder, lines)
    return folder


def schema(name: str) -> Draft7Validator:
    path = ROOT / f"tests/schemas/{name}-0.2.2.json"
    return Draft7Validator(json.loads(path.read_text()))


@pytest.fixture
def published(run: Path, tmp_path: Path, ropewalk: Ropewalk) -> Callable[..., tuple[Any, Lines]]:
    """Return a function that publishes a run with samples, and what it wrote."""

    def publish(*words: object, of: Path = run) -> tuple[Any, Lines]:
        done = ropewalk("publish", of, *WORDS, "--out", tmp_path / "out", *words)
        assert (done.status, done.err) == (0, "")
        lines = lines_of(tmp_path / "out/evaluation_samples.jsonl")
        return json.loads((tmp_path / "out/evaluation.json").read_text()), lines

    return publish


def of(lines: Lines, task: str) -> Lines:
    return [line for line in lines if line["evaluation_name"] == task]


def test_samples_are_of_the_schema_and_read_back_to_the_scores(published, tmp_path):
    """The mean of a cell's lines is its score to the last bit, their number its n."""
    whole, lines = published()
    schema("every_eval_ever").validate(whole)
    values: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        schema("every_eval_ever_instance").validate(line)
        assert line["evaluation_id"] == whole["evaluation_id"]
        assert line["model_id"] == whole["model_info"]["id"]
        assert line["evaluation"]["is_correct"] == (line["evaluation"]["score"] == 1)
        values[line["evaluation_result_id"]].append(line["evaluation"]["score"])
    scores = {
        one["evaluation_result_id"]: (
            one["score_details"]["score"], one["score_details"]["uncertainty"]["num_samples"]
        )
        for one in whole["evaluation_results"]
        if "perplexity" not in one["evaluation_name"]
    }  # fmt: skip
    assert {one: (sum(all_) / len(all_), len(all_)) for one, all_ in values.items()} == scores
    assert len(scores) == 3 * 3 * len(LENGTHS)
    assert {score for score, _ in scores.values()} - {0.0, 0.5, 1.0}
    file = (tmp_path / "out/evaluation_samples.jsonl").read_bytes()
    assert whole["detailed_evaluation_results"] == {
        "format": "jsonl", "file_path": "evaluation_samples.jsonl", "hash_algorithm": "sha256",
        "checksum": hashlib.sha256(file).hexdigest(), "total_rows": len(lines),
    }  # fmt: skip


def test_a_line_has_the_question_that_the_model_read(published, docs):
    """Its text has as many tokens as the prompt, the key twice, and the documents around it."""
    _, lines = published()
    texts = [file.read_text() for file in docs.iterdir()]
    hashes = defaultdict(set)
    for line in of(lines, FILLED):
        raw, (key,) = line["input"]["raw"], line["input"]["reference"]
        assert len(tiny_tokenizer()(raw)["input_ids"]) + 1 == line["token_usage"]["input_tokens"]
        assert line["token_usage"]["total_tokens"] == int(line["metadata"]["length"])
        assert raw.endswith("What is the pass key? The pass key is")
        assert raw.count(key) == 2
        filler = raw.partition("is the pass key.\n")[2].partition("\nWhat is")[0]
        assert any(filler in text for text in texts)
        assert "formatted" not in line["input"]
        told = json.dumps({"raw": raw, "reference": [key]}, sort_keys=True, separators=(",", ":"))
        assert line["sample_hash"] == hashlib.sha256(told.encode()).hexdigest()
        assert line["output"]["raw"] == [line["answer_attribution"][0]["extracted_value"]]
        assert line["metadata"]["output"].startswith("the most likely token")
        hashes[line["sample_id"]].add(line["sample_hash"])
    assert {len(found) for found in hashes.values()} == {1}
    assert set(hashes) == {f"depth {d} trial 0/{n}" for d in ("0.00", "1.00") for n in LENGTHS}


def test_a_generated_text_is_the_output(published, run):
    rows = lines_of(run)
    long = iter(row["facts"] for row in rows if row["task"] == TEXT)
    kept = ["x" * 399, "x" * 400, shown("x" * 401)]
    for facts, text in zip(long, kept, strict=False):
        facts["said"] = text
    put_lines(run, rows)
    said = {(row["question"], row["frequencies"]): row["facts"].get("said") for row in rows}
    lines = of(published()[1], TEXT)
    notes = {
        kept[1]: "the whole text or its first 400 characters",
        kept[2]: "the first 400 characters",
    }
    assert set(kept) <= {*said.values()}
    for line in lines:
        told = line["metadata"]
        text = said[told["question"], told["frequencies"]]
        assert line["output"]["raw"] == [text[:400]]
        assert told.get("output") == notes.get(text)
        assert "token_usage" not in line
        assert line["input"]["reference"][0] in line["input"]["raw"]
        (graded,) = line["answer_attribution"]
        assert (graded["source"], graded["extraction_method"]) == (
            "output.raw", "niah.grade, version 1",
        )  # fmt: skip


def test_in_a_chat_the_question_is_the_message(published):
    """``formatted`` is what the template makes of it, with the beginning of the reply."""
    for line in of(published()[1], CHAT):
        asked = line["input"]
        assert asked["formatted"] == (f"<s>user\n{asked['raw']}</s>\n<s>assistant\nThe pass key is")
        assert asked["raw"].startswith("There is an important info")
        assert line["metadata"]["chat_template"] == "applied"


def test_without_the_option_no_text_is_published(run, tmp_path, ropewalk):
    gone = changed(run, tmp_path / "gone", lambda r: r["asked"].update(model="gone", docs="gone"))
    assert ropewalk("publish", gone, "--to", "every-eval-ever", "--out", tmp_path / "a").status == 0
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["evaluation.json"]
    assert "detailed_evaluation_results" not in (tmp_path / "a/evaluation.json").read_text()


def test_a_question_that_is_another_now_is_an_error(run, docs, tmp_path, ropewalk, rejected):
    other = Path(shutil.copytree(docs, tmp_path / "other"))
    for file in other.iterdir():
        file.write_text(f"more {file.read_text()}")
    out = ("--out", tmp_path / "out")
    assert f"those of {FILLED} at 640 tokens are not" in rejected(
        "publish", run, *WORDS, *out, "--docs", other
    )
    done = ropewalk("publish", run, *WORDS, *out, "--model", tmp_path / "nowhere")
    assert (done.status, "nowhere does not exist" in done.err) == (2, True)
    assert "--model and --docs say where" in " ".join(done.err.split())
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_is_enough(published, run, docs, tmp_path):
    """Model and documents may lie elsewhere, and the model without its weights."""
    model = Path(json.loads((run / RUN).read_text())["asked"]["model"])
    left = shutil.ignore_patterns("*.safetensors")
    moved = shutil.copytree(model, tmp_path / "elsewhere", ignore=left)
    gone = changed(run, tmp_path / "gone", lambda r: r["asked"].update(model="gone", docs="gone"))
    assert published("--model", moved, "--docs", docs, of=gone)[1]


def test_names_of_the_machine_are_left_out(published, run, docs, tmp_path):
    secret = changed(run, tmp_path / "secret", private)
    lines = (secret / SAMPLES).read_text().replace('"said": "', '"said": "/home/jane/')
    (secret / SAMPLES).write_text(lines)
    published("--docs", docs, of=secret)
    for file in (tmp_path / "out").iterdir():
        for word in (*PRIVATE, str(tmp_path.parent)):
            assert word not in file.read_text()


def test_your_own_task_runs_when_it_is_named(tiny, tmp_path, ropewalk, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(Path(passkey.__file__).read_text())
    words = ("--task", "./mine.py:depths=1,trials=2", "--length", "640")
    run = sweep(tiny, Path("embedded"), tmp_path / "own", *words)
    out = ("--out", tmp_path / "out")
    assert "add --task" in ropewalk("publish", run, *WORDS, *out).err
    assert ropewalk("publish", run, *WORDS, *out, "--task", "./mine.py").status == 0
    lines = (tmp_path / "out/evaluation_samples.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for line in map(json.loads, lines):
        assert line["input"]["reference"] == [line["metadata"]["key"]]


def test_a_record_makes_no_code_run(run, tmp_path, rejected):
    coded = changed(run, tmp_path / "coded", lambda r: r["asked"].update(trust_remote_code=True))
    assert "add --run-code" in rejected("publish", coded, *WORDS, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_has_no_samples_to_publish_is_said(small, tmp_path, rejected):
    for words, told in (
        (("--to", "card", "--samples"), "by --to every-eval-ever alone, not by 'card'"),
        (("--to", "every-eval-ever", "--docs", "books"), "go with --samples"),
        (WORDS, "no samples of perplexity:tail=16 are right or wrong"),
    ):
        assert told in rejected("publish", small, *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_answers_of_ruler_are_those_of_its_parts():
    one = Loglikelihood([1, 2], 1, doc_id="unit", metadata={"answer": "a, b"})
    other = Loglikelihood([1, 2], 1, doc_id="unit", metadata={"answer": "a, b\nc", "query": "?"})
    source: Any = None
    assert ruler.answers(one, source) == ["a", "b"]
    assert ruler.answers(other, source) == qa.answers(other, source) == ["a, b", "c"]
