"""Tasks of lm-evaluation-harness: the same samples, hashes and scores as its own evaluation."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ropewalk as rw
from harness.data.corpus import make_context
from harness.reports import retrieval
from harness.runs.frame import make_frame
from harness.stats.measure import LOWER
from tasks import lm_eval as lm_eval_task
from tests import ROOT
from tests.command_line import lines_of, samples, status
from tests.conftest import WORDS
from tests.tiny import save_tiny, tiny_tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

LENGTH, DOCUMENTS = 128, 8
MEAN = "metric_list:\n  - {metric: %s, aggregation: mean, higher_is_better: true}\n"
TASKS = {  # by name: documents, and the YAML less where they lie
    "own_text": """
output_type: generate_until
doc_to_text: "{{question}}\\nAnswer:"
doc_to_target: answer
generation_kwargs: {until: ["r"], max_gen_toks: 8, do_sample: false}
""" + MEAN % "exact_match",
    "own_choice": """
output_type: multiple_choice
doc_to_text: "{{question}}\\nAnswer:"
doc_to_target: gold
doc_to_choice: choices
num_fewshot: 1
fewshot_split: test
""" + MEAN % "acc" + "  - {metric: mcc}\n",
    "own_page": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: page
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "own_lengths": """
output_type: generate_until
doc_to_text: question
doc_to_target: answer
process_results: !function shares.of_length
generation_kwargs: {until: ["r"], max_gen_toks: 8, do_sample: false}
""" + MEAN % '"128"',
    "own_draws": """
output_type: generate_until
doc_to_text: question
doc_to_target: answer
generation_kwargs: {until: ["r"], max_gen_toks: 8, do_sample: true, temperature: 0.7}
""" + MEAN % "exact_match",
}  # fmt: skip
MINE = ("own_text", "own_choice", "own_page")


def document(draw: Random, number: int) -> dict[str, Any]:
    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    return {
        "question": words(5), "answer": words(1), "gold": draw.randrange(3),
        "choices": [words(1), words(2), words(1)], "page": words(20 + 15 * number),
    }  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a task of each kind, whose documents lie beside it."""
    folder = tmp_path_factory.mktemp("own")
    draw = Random("own")
    made = [document(draw, number) for number in range(DOCUMENTS)]
    (folder / "data.json").write_text(json.dumps(made))
    where = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/data.json}}}}\n"
    for name, text in TASKS.items():
        head = f"task: {name}\ntest_split: test\nmetadata: {{version: 2.0}}\n"
        (folder / f"{name}.yaml").write_text(head + where + text)
    code = "def of_length(doc, results):\n    return {'128': 0.5, '256': -1.0}\n"
    (folder / "shares.py").write_text(code)
    group = "group: own_both\ntask: [own_text, own_page]\n"
    (folder / "own_both.yaml").write_text(group)
    away = "task: own_away\ndataset_path: nobody/nothing\ntest_split: test\n"
    (folder / "own_away.yaml").write_text(away + TASKS["own_text"])
    return folder


def words(own: Path, out: Path, tasks: str, *more: str, length: int = LENGTH) -> list[str]:
    return [
        "run", "--model", "reference", "--dtype", "float32", "--device", "cpu",
        "--scaling", "none", "yarn:factor=4", "--length", str(length), "--out", str(out),
        "--task", f"lm_eval:{tasks and 'tasks='}{tasks},include={own}", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "lm_eval"
    assert status(*words(own, folder, "+".join(MINE))) == 0
    return folder


def evaluated(own: Path, reference: tuple[Any, Any], tasks: list[str]) -> dict[str, Any]:
    """Return what lm-eval's own evaluation gives of tasks on the unscaled model."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    checkpoint, model = reference
    # lm-eval's windows end before the last target, ours after it.
    lm = HFLM(pretrained=model, tokenizer=checkpoint.tokenizer, max_length=LENGTH - 1, batch_size=1)
    found: dict[str, Any] = lm_eval.simple_evaluate(
        lm, tasks=tasks, bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(own), include_defaults=False),
    )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def plain(own: Path, reference: tuple[Any, Any]) -> dict[str, Any]:
    return evaluated(own, reference, list(MINE))


@pytest.mark.parametrize("name", MINE)
def test_none_is_the_plain_evaluation(name, run, plain):
    frame = make_frame([run])
    rows = frame[(frame["scaling"] == "none") & frame["task"].str.contains(name)].set_index("doc")
    metric = {"own_text": "exact_match", "own_choice": "acc", "own_page": "word_perplexity"}[name]
    assert set(rows["metric"]) == {metric}
    assert len(rows) == len(plain["samples"][name]) == DOCUMENTS
    for sample in plain["samples"][name]:
        row = rows.loc[sample["doc_id"]]
        for kind in ("doc_hash", "prompt_hash", "target_hash"):
            assert row[kind] == sample[kind]
        said = [
            given[0][0] if isinstance(given[0], tuple) else given[0] for given in sample["resps"]
        ]
        assert row["said"] == (
            said[0] if name == "own_text" else pytest.approx(said, rel=1e-5, abs=2e-5)
        )
        graded = sample[metric]
        assert row[f"{metric},none"] == (
            pytest.approx(graded, rel=1e-5) if isinstance(graded, tuple) else graded
        )
    score = plain["results"][name][f"{metric},none"]
    assert rows["score"].iloc[0] == pytest.approx(score, rel=1e-5)
    assert rows["n"].iloc[0] == DOCUMENTS
    assert rows["low"].iloc[0] < score < rows["high"].iloc[0] or score in (0, 1)


def test_a_repetition_penalty_of_the_checkpoint_is_applied(own, reference, tmp_path, monkeypatch):
    checkpoint, model = reference
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.5)
    task = f"lm_eval:tasks=own_text,include={own}"
    own_run = rw.run(
        model, tokenizer=checkpoint.tokenizer, task=task, length=LENGTH, scaling="none",
        out=tmp_path / "run",
    )  # fmt: skip
    said = own_run.frame().set_index("doc")["said"]
    for sample in evaluated(own, reference, ["own_text"])["samples"]["own_text"]:
        assert said[sample["doc_id"]] == sample["resps"][0][0]


def test_the_record_names_versions_and_hashes(run, plain):
    record = json.loads((run / "run.json").read_text())
    (task,) = (found for label, found in record["tasks"].items() if "own_choice" in label)
    about = task["lm_eval"]
    assert about["version"] == lm_eval.__version__ == record["sessions"][0]["versions"]["lm_eval"]
    assert (about["task_version"], about["num_fewshot"]) == (2.0, 1)
    assert about["chat_template_sha"] is None
    kinds = ("doc_hash", "prompt_hash", "target_hash")
    every = "".join(sample[kind] for sample in plain["samples"]["own_choice"] for kind in kinds)
    assert about["task_hashes"] == {str(LENGTH): lm_eval.utils.hash_string(every)}


def test_a_metric_named_for_a_length_is_recall(own, tmp_path, ropewalk):
    ropewalk(*words(own, tmp_path / "run", "own_lengths,limit=2"))
    table = retrieval.make(make_frame([tmp_path / "run"]))
    assert set(table["metric"]) == {"recall"}
    assert set(table["score"]) == {0.5}


def test_what_is_measured_is_not_measured_again(own, run, ropewalk, monkeypatch):
    before = samples(run)
    assert len(before) == 2 * len(MINE) * DOCUMENTS
    ended = ropewalk(*words(own, run, "+".join(MINE)))
    assert "nothing to measure" in ended.err
    assert samples(run) == before
    monkeypatch.setattr("tasks.lm_eval.code_digest", lambda _: "another")
    ended = ropewalk(*words(own, run, "own_page", "--dry-run"))
    assert f"{2 * DOCUMENTS} samples" in ended.out


def test_a_prompt_that_does_not_fit_is_a_status(own, tmp_path, ropewalk):
    task = words(own, tmp_path / "run", "own_text+own_choice", length=20)
    ended = ropewalk(*task)
    assert (ended.status, "too long" in ended.err) == (1, True)
    for record in samples_of(tmp_path / "run"):
        fits = record["status"] == "ok"
        assert fits or record["facts"]["needs"] > 20
        assert fits or f"{record['facts']['needs']} tokens" in record["reason"]
    assert "too_long" in {record["status"] for record in samples_of(tmp_path / "run")}
    again = ropewalk(*task)
    assert "nothing to measure" in again.err
    assert again.status == 1


def samples_of(folder: Path) -> list[dict[str, Any]]:
    return lines_of(folder)


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ("", ["lm_eval:tasks=NAME"]),
        ("own_texts", ["no task 'own_texts'", "lm-eval ls tasks"]),
        ("own_both", ["several tasks", "tasks=own_page+own_text"]),
        ("own_draws", ["not greedy", "temperature=0.7"]),
        ("own_away", ["own_away", "load the data"]),
        ("own_choice,metric=mcc", ["mcc", "metric=acc"]),
        ("own_choice,metric=f2", ["no metric f2", "acc"]),
        ("own_choice,limit=-1", ["limit=-1 is not 0 or more"]),
        ("own_choice,num_fewshot=-1", ["num_fewshot=-1 is not 0 or more"]),
        ("own_choice,chat=true", ["the tokenizer has no chat template; leave out chat=true"]),
        ("own_choice,filter=strict", ["no filter strict", "none"]),
    ],
)
def test_what_cannot_be_asked_is_refused_when_planned(tasks, told, own, tmp_path, ropewalk):
    """One sentence, status 2, and no folder."""
    ended = ropewalk(*words(own, tmp_path / "run", tasks, "--offline", "--dry-run"))
    assert ended.status == 2
    sentence = " ".join(ended.err.split())
    assert all(part in sentence for part in told), sentence
    assert "Traceback" not in sentence


def test_a_record_that_names_a_folder_of_tasks_names_code(run, tmp_path, ropewalk):
    ended = ropewalk("reproduce", run, "--out", tmp_path / "again")
    assert (ended.status, "--run-code" in ended.err) == (2, True)


def test_reports_know_the_direction_of_every_metric_that_may_be_asked():
    assert lm_eval_task.LOWER <= LOWER


def test_the_loop_of_another_program_in_ten_lines(own, reference, plain):
    text = (ROOT / "docs/how-to/lm-eval.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(lines.splitlines()) <= 10
    from lm_eval.tasks import TaskManager

    checkpoint, model = reference
    manager = TaskManager(include_path=str(own), include_defaults=False)
    given = {"model": model, "tokenizer": checkpoint.tokenizer, "manager": manager}
    mine = 'tasks=["own_page"], task_manager=manager'
    assert 'tasks=["wikitext"]' in lines
    exec(lines.replace('tasks=["wikitext"]', mine), given)
    without = plain["results"]["own_page"]["bits_per_byte,none"]
    found = given["results"]["own_page"]["bits_per_byte,none"]
    assert found != without
    assert found == pytest.approx(without, rel=0.5)


@pytest.mark.parametrize("bos", ["<s>", None])
def test_a_tokenizer_needs_no_end_token(own, bos):
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = bos
    tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    source = make_context(tokenizer, tuple, LENGTH)
    asked = {
        (name, chat): list(lm_eval_task.ask(source, [512], tasks=name, include=own, chat=chat))
        for name in ("own_text", "own_choice")
        for chat in (False, True)
    }
    question = json.loads((own / "data.json").read_text())[0]["question"]
    plain, chat = (asked["own_text", chat][0] for chat in (False, True))
    assert plain.parts[0].stop == chat.parts[0].stop == ("r",)
    assert tokenizer.decode(list(plain.tokens)) == f"{question}\nAnswer:"
    assert tokenizer.decode(list(chat.tokens)) == f"[{question}\nAnswer:]"
    page = lm_eval_task.ask(source, [512], tasks="own_page", include=own)
    if bos:
        assert {question.tokens[0] for question in page} == {tokenizer.bos_token_id}
        return
    with pytest.raises(ValueError, match="needs a begin or an end token before it"):
        next(page)


def test_published_samples_have_choices_and_the_right_one(run, tmp_path, ropewalk):
    words = ("publish", run, "--to", "every-eval-ever", "--samples", "--out", tmp_path / "out")
    assert "add --run-code" in " ".join(ropewalk(*words).err.split())
    assert ropewalk(*words, "--run-code").status == 0
    lines = lines_of(tmp_path / "out/evaluation_samples.jsonl")
    assert len(lines) == 2 * 2 * DOCUMENTS
    draw = Random("own")
    documents = [document(draw, number) for number in range(DOCUMENTS)]
    for line in lines:
        doc, asked = documents[int(line["metadata"]["doc"])], line["input"]
        assert asked["raw"].endswith(f"{doc['question']}\nAnswer:")
        if "own_choice" not in line["evaluation_name"]:
            assert asked["reference"] == [doc["answer"]]
            continue
        assert asked["choices"] == doc["choices"]
        assert asked["reference"] == [doc["choices"][doc["gold"]]]
        odds = [float(said) for said in line["output"]["raw"]]
        assert line["evaluation"]["is_correct"] == (odds.index(max(odds)) == doc["gold"])


def test_a_published_chat_has_all_turns_of_the_user_and_the_right_choice(own, tmp_path, ropewalk):
    model = save_tiny(tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<s>"
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + '\n' + m['content'] + '</s>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
    )
    tokenizer.save_pretrained(model)
    asked = words(own, tmp_path / "run", "own_choice", length=512)
    asked[asked.index("--model") + 1] = str(model)
    asked[asked.index("--task") + 1] += ",chat=true,limit=2"
    assert ropewalk(*asked).status == 0
    out = ("--out", tmp_path / "out", "--run-code")
    assert not ropewalk(
        "publish", tmp_path / "run", "--to", "every-eval-ever", "--samples", *out
    ).status
    draw = Random("own")
    documents = [document(draw, number) for number in range(DOCUMENTS)]
    for line in lines_of(tmp_path / "out/evaluation_samples.jsonl"):
        doc, told = documents[int(line["metadata"]["doc"])], line["input"]
        assert told["raw"].endswith(f"</s>\nuser\n{doc['question']}\nAnswer:")
        assert told["formatted"] == f"user\n{told['raw']}</s>\nassistant"
        assert told["reference"] == [doc["choices"][doc["gold"]]]
