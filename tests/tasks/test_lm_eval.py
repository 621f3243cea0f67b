"""Tasks of lm-evaluation-harness: the same samples and scores as its own evaluation."""

import json
import re
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.harness.reports import retrieval
from ropewalk.harness.stats.measure import LOWER
from ropewalk.tasks import lm_eval as lm_eval_task
from tests import ROOT
from tests.command_line import lines_of
from tests.conftest import WORDS

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra lm-eval")
HFLM = pytest.importorskip("lm_eval.models.huggingface").HFLM
TaskManager = partial(pytest.importorskip("lm_eval.tasks").TaskManager, include_defaults=False)

LENGTH, DOCUMENTS = 128, 8
TEXT = """
output_type: generate_until
doc_to_text: "{{question}}\\nAnswer:"
doc_to_target: answer
generation_kwargs: {until: ["r"], max_gen_toks: 8, do_sample: %s}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
TASKS = {  # by name: the metric, and the YAML less where the documents lie
    "own_text": ("exact_match", TEXT % "false"),
    "own_choice": ("acc", """
output_type: multiple_choice
doc_to_text: "{{question}}\\nAnswer:"
doc_to_target: gold
doc_to_choice: choices
num_fewshot: 1
fewshot_split: test
metric_list: [{metric: acc}, {metric: mcc}]
"""),
    "own_page": ("word_perplexity", """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: page
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""),
    "own_word": ("perplexity", """
output_type: loglikelihood
doc_to_text: question
doc_to_target: " {{answer}}"
metric_list: [{metric: perplexity}, {metric: acc}]
"""),
}  # fmt: skip
NAMES = "+".join(TASKS)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a task of each kind, whose documents lie beside it."""
    folder = tmp_path_factory.mktemp("own")
    draw = Random("own")

    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    documents = [
        {
            "question": words(5), "answer": words(1), "gold": draw.randrange(3),
            "choices": [words(1), words(2), words(1)], "page": words(20 + 15 * number),
        }
        for number in range(DOCUMENTS)
    ]  # fmt: skip
    (folder / "data.json").write_text(json.dumps(documents))
    head = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/data.json}}}}\n"
    drawn = {"own_draws": ("", TEXT % "true, temperature: 0.7")}
    for name, (_, text) in (TASKS | drawn).items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\ntest_split: test\n{head}{text}")
    (folder / "own_both.yaml").write_text("group: own_both\ntask: [own_text, own_page]\n")
    return folder


def measured(
    reference: tuple[Any, Any], tasks: str, folder: Path, out: Path, length: int = LENGTH,
    scaling: str = "none",
) -> rw.Run:  # fmt: skip
    checkpoint, model = reference
    task = f"lm_eval:tasks={tasks},include={folder}"
    given = {"task": task, "length": length, "scaling": scaling, "out": out}
    return rw.run(model, tokenizer=checkpoint.tokenizer, **given)


def evaluated(
    reference: tuple[Any, Any], tasks: str, folder: Path, length: int = LENGTH, *,
    metadata: dict[str, Any] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return what lm-eval's own evaluation gives of the tasks of a folder."""
    checkpoint, model = reference
    # lm-eval's windows end before the last target, ours after it.
    lm = HFLM(pretrained=model, tokenizer=checkpoint.tokenizer, max_length=length - 1, batch_size=1)
    manager = TaskManager(include_path=str(folder), metadata=metadata)
    return lm_eval.simple_evaluate(
        lm, tasks=tasks.split("+"), task_manager=manager, bootstrap_iters=0, **options
    )


def test_none_is_the_plain_evaluation(own, reference, tmp_path):
    plain = evaluated(reference, NAMES, own)
    frame = measured(reference, NAMES, own, tmp_path).frame()
    for name, (metric, _) in TASKS.items():
        rows = frame[frame["task"].str.contains(name)].set_index("doc")
        assert set(rows["metric"]) == {metric}
        assert len(rows) == len(plain["samples"][name]) == DOCUMENTS
        for sample in plain["samples"][name]:
            row = rows.loc[sample["doc_id"]]
            assert row["doc_hash"] == sample["doc_hash"]
            said = [reply[0] if isinstance(reply, tuple) else reply for (reply,) in sample["resps"]]
            text = name == "own_text"
            assert row["said"] == (said[0] if text else pytest.approx(said, rel=1e-5, abs=2e-5))
        score = plain["results"][name][f"{metric},none"]
        assert rows["score"].iloc[0] == pytest.approx(score, rel=1e-5)
        assert rows["low"].iloc[0] < score < rows["high"].iloc[0] or score in (0, 1)


@pytest.mark.slow
def test_needles_of_a_length_are_those_of_lm_eval(reference, tmp_path):
    """RULER's tasks make their documents by the tokenizer and name their metrics for lengths."""
    folder, tokenizer = Path(lm_eval.__file__).parent / "tasks/ruler", tmp_path / "tokenizer"
    reference[0].tokenizer.save_pretrained(tokenizer)
    metadata = {"max_seq_lengths": [512], "tokenizer": str(tokenizer)}
    theirs = evaluated(reference, "niah_single_1", folder, 2048, metadata=metadata, limit=3)
    frame = measured(reference, "niah_single_1,limit=3", folder, tmp_path / "run", 512).frame()
    for sample in theirs["samples"]["niah_single_1"]:
        row = frame.set_index("doc").loc[sample["doc_id"]]
        assert row["doc_hash"] == sample["doc_hash"]
        assert row["said"] == sample["resps"][0][0]
        assert row["value"] == sample["512"]
    assert set(retrieval.make(frame)["metric"]) == {"recall"}


def test_a_penalty_and_a_chat_template_apply_as_in_lm_eval(own, reference, tmp_path, monkeypatch):
    checkpoint, model = reference
    template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.5)
    monkeypatch.setattr(checkpoint.tokenizer, "chat_template", template)
    frame = measured(reference, "own_text,chat=true", own, tmp_path).frame()
    theirs = evaluated(reference, "own_text", own, apply_chat_template=True)
    for sample in theirs["samples"]["own_text"]:
        assert sample["arguments"][0][0].startswith("[")
        assert frame.set_index("doc")["said"].loc[sample["doc_id"]] == sample["resps"][0][0]


def test_samples_are_kept_until_the_code_of_their_task_changes(own, reference, tmp_path):
    for code, count in (("", 1), ("", 1), ("grade = 1\n", 2)):
        (own / "grades.py").write_text(code)
        measured(reference, "own_word", own, tmp_path)
        assert len(lines_of(tmp_path)) == count * DOCUMENTS


def test_a_prompt_that_does_not_fit_is_a_status(own, reference, tmp_path):
    measured(reference, "own_text+own_word", own, tmp_path, 20)
    records = lines_of(tmp_path)
    assert {record["status"] for record in records} == {"ok", "too_long"}
    for record in records:
        assert (record["status"] == "too_long") == (record["facts"].get("needs", 0) > 20)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("own_both", "no single task 'own_both'"),
        ("own_draws", "not greedy: do_sample=True, temperature=0.7"),
        ("own_choice,metric=mcc", "mcc cannot be the score of own_choice; choose metric=acc"),
        ("own_choice,filter=strict", "no filter strict; it has none"),
    ],
)
def test_what_cannot_be_asked_is_refused(tasks, message, own, reference, tmp_path):
    with pytest.raises(rw.UserError, match=message):
        measured(reference, tasks, own, tmp_path)


def test_reports_know_the_direction_of_every_metric_that_may_be_asked():
    assert lm_eval_task.LOWER <= LOWER


def test_the_loop_of_lm_eval_under_a_method_gives_the_same_score(own, reference, tmp_path):
    text = (ROOT / "docs/how-to/lm-eval.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    mine = TaskManager(include_path=str(own))
    names = {"model": reference[1], "tokenizer": reference[0].tokenizer, "mine": mine}
    exec(lines.replace('["wikitext"]', '["own_page"], task_manager=mine'), names)
    task = "own_page,metric=bits_per_byte"
    frame = measured(reference, task, own, tmp_path, 1024, "yarn:factor=4").frame()
    theirs = names["results"]["own_page"]["bits_per_byte,none"]
    assert frame["score"].iloc[0] == pytest.approx(theirs, rel=1e-5)
