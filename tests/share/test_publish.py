"""What is published reads back to the same numbers, and says nothing of the machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from harness.api.share import TARGETS
from harness.reports.plots.style import Paper
from harness.runs.frame import make_frame
from harness.runs.store import read_run, read_samples
from harness.share import card, every_eval_ever
from harness.share.clean import (
    LEFT_OUT,
    base,
    clean_record,
    clean_samples,
    documents,
    entry,
    fact,
    sentence,
)
from harness.share.public import PublicRun
from harness.stats.cells import CELL, SCORE, cells
from tests import ROOT
from tests.command_line import lines_of, put_lines
from tests.frames import PASSKEY, PERPLEXITY, sweep
from tests.small_runs import PRIVATE, changed, private

COLUMNS = [*CELL, "relative_length", "metric", *SCORE, "status"]


def table(run: Path) -> pd.DataFrame:
    return cells(make_frame([run]))[COLUMNS]


@pytest.mark.slow
def test_a_card_reads_back_to_the_table(small, tmp_path):
    """Every score, interval, n and status of the metadata is that of the table, to the last bit."""
    frame = sweep(scalings=("none", "pi", "mine"))
    card.write(PublicRun(read_run(small), [], frame, Paper(), ""), tmp_path)
    read_card = ModelCard.load(tmp_path / "README.md")
    assert "](curves.png)" in read_card.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "curves.png"]
    data = read_card.data
    index = eval_results_to_model_index(data.model_name, data.eval_results)
    _, results = model_index_to_eval_results(index)
    read = pd.DataFrame(
        {"model": "toy-7m", "task": one.task_name, "metric": one.metric_type,
         "score": one.metric_value, **one.metric_args}
        for one in results
    )  # fmt: skip
    scored = cells(frame).dropna(subset="score")[COLUMNS].reset_index(drop=True)
    assert len(scored) == 23
    pd.testing.assert_frame_equal(read[COLUMNS], scored, check_dtype=False, check_exact=True)


def test_every_eval_ever_reads_back_to_the_table(small, tmp_path):
    """The JSON is of the published schema, and has every score and interval to the last bit."""
    frame = sweep(scalings=("none", "pi", "mine"))
    every_eval_ever.write(PublicRun(read_run(small), [], frame, Paper(), ""), tmp_path)
    made = json.loads((tmp_path / "evaluation.json").read_text())
    schema = json.loads((ROOT / "tests/schemas/every_eval_ever-0.2.2.json").read_text())
    Draft7Validator(schema).validate(made)
    read = []
    for one in made["evaluation_results"]:
        score, details = one["score_details"], one["score_details"]["details"]
        known = score["uncertainty"].get("confidence_interval", {})
        read.append([one["evaluation_name"], details["scaling"], int(details["length"]),
                     score["score"], known.get("lower"), known.get("upper"),
                     score["uncertainty"]["num_samples"], details["status"]])  # fmt: skip
    columns = ["task", "scaling", "length", *SCORE, "status"]
    scored = cells(frame).dropna(subset="score")[columns].reset_index(drop=True)
    table = pd.DataFrame(read, columns=columns)
    pd.testing.assert_frame_equal(table, scored, check_dtype=False, check_exact=True)


@pytest.mark.parametrize(
    ("given", "passkey"),
    [("books", ("passkey", [])), ({PERPLEXITY: "books", "passkey": "essays"}, ("essays", ["c"]))],
)
def test_a_task_has_the_documents_that_it_read(given, passkey):
    read = [{"name": "document 0", "sha256": "a"}, {"name": "not asked", "sha256": "b"}]
    if isinstance(given, dict):
        read = [{**one, "docs": "books"} for one in read]
        read.append({"name": "an essay", "sha256": "c", "docs": "essays"})
    record = {"tasks": {PERPLEXITY: {}, PASSKEY: {}}, "documents": {"given": given, "read": read}}
    source = PublicRun(record, [], sweep(), Paper(), "")
    assert card.data_set(PERPLEXITY, source) == ("books", ["a"])
    assert card.data_set(PASSKEY, source) == passkey
    stream = replace(source, frame=sweep().assign(protocol="overlapping"))  # of all that was read
    assert card.data_set(PERPLEXITY, stream) == ("books", ["a", "b"])


def test_a_metric_of_your_own_that_is_an_exponential_is_lower_better(small, tmp_path):
    """Where reports take the lowest as the best, the JSON says so too."""
    frame = sweep().replace({"metric": {"perplexity": "surprise"}})
    every_eval_ever.write(PublicRun(read_run(small), [], frame, Paper(), ""), tmp_path)
    made = json.loads((tmp_path / "evaluation.json").read_text())["evaluation_results"]
    told = {(one["evaluation_name"], one["metric_config"]["lower_is_better"]) for one in made}
    assert told == {(PERPLEXITY, True), (PASSKEY, False)}


@pytest.mark.slow
@pytest.mark.usefixtures("scored")
@pytest.mark.usefixtures("real_page")
def test_a_folder_is_a_run_with_a_page(small, tmp_path, ropewalk):
    """Its CSV, and the reports that anyone makes of its files, have the numbers of the run."""
    out = tmp_path / "site"
    assert ropewalk("publish", small, "--to", "folder", "--out", out).status == 0
    assert (out / "index.html").read_text().startswith("<!doctype html>")
    pd.testing.assert_frame_equal(table(out), table(small), check_exact=True)
    read = pd.read_csv(out / "reports/scores.csv")
    pd.testing.assert_frame_equal(read[COLUMNS], table(small), check_dtype=False, check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
def test_nothing_of_machine_or_user_is_published(small, tmp_path, ropewalk, to):
    run, out = changed(small, tmp_path / "run", private), tmp_path / "public"
    assert ropewalk("publish", run, "--to", to, "--out", out).status == 0
    for file in out.rglob("*.*"):
        content = file.read_bytes()
        for word in (*PRIVATE, str(tmp_path.parent)):
            assert word.encode() not in content, f"{word} in {file}"


@pytest.mark.parametrize(("kind", "given", "left"), [
    (entry, "./mine.py:factor=2", "mine.py:factor=2"),
    (entry, "../../jane/mine.py", "mine.py"),
    (entry, "qa:file=/home/jane/squad.json,shots=2", "qa:file=squad.json,shots=2"),
    (entry, "log_n:on=yarn:factor=4+ramp=paper", "log_n:on=yarn:factor=4+ramp=paper"),
    (documents, "/home/jane doe/books/a.txt", "a.txt"),
    (documents, "/home/it's jane: a=b, c/books/", "books"),
    (documents, "books:limit=3", "books:limit=3"),
    (documents, "emozilla/pg19:split=test", "emozilla/pg19:split=test"),
    (documents, "tests/data:split=test", "data:split=test"),
    (documents, "jane/books", "books"),
    (base, "~/books", "books"),
    (base, "~jane", "…"),
    (base, "C:\\Users\\jane\\a.txt", "a.txt"),
    (base, "jane@node17:a.txt", "…"),
    (sentence, "it needs 300 tokens, the cell has 256", "it needs 300 tokens, the cell has 256"),
    (sentence, "open('/home/jane/x') failed", LEFT_OUT),
    (sentence, "ValueError: no jane\\a.txt", LEFT_OUT),
    (fact, "n / 3 and/or more", "n / 3 and/or more"),
    (fact, "42</s> [/INST]", "42</s> [/INST]"),
    (fact, "x=/home/jane/x", LEFT_OUT),
    (fact, 1.5, 1.5),
])  # fmt: skip
def test_a_name_is_published_and_no_place(kind, given, left, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert kind(given) == left


signs = st.text("ab '\",:=;(){}[]<>|&é\\#+-.", max_size=4)
places = st.builds("{}{}jane{}{}{}.txt".format, st.sampled_from(
    ["/home/", "~/", "./", "../", "/", "C:\\Users\\", "jane@node17:/data/", "file:///", "x=/home/"]
), signs, signs, st.sampled_from("/\\"), signs)  # fmt: skip


@given(places, st.data())
def test_no_place_in_any_field_is_published(small, place, data):
    record, (sample, *_) = read_run(small), read_samples(small).values()
    told = f"it failed: {place}"
    mine = f"mine:file={place.replace(',', '')}"
    record["asked"] |= {"model": place, "docs": place, "adapter": place, "scaling": [mine]}
    record["asked"] |= {"task": [mine], "out": place, "new": place}
    record["model"] |= {"adapter": {"base": place}, "encoding": place}
    record["documents"] |= {"given": {mine: place}, "left_out": {told: 1}, "new": place}
    record["documents"]["read"][0] |= {"name": place, "docs": place}
    record["cells"][0] |= {"failed": told, "scaling": mine, "task": mine}
    record["methods"][mine] = {"given": place, "file": None, "options": {"file": place}}
    (task,) = record["tasks"].values()
    record["tasks"][mine] = task | {"given": mine, "data": {"file": [place]}}
    record |= {"chat_template": f"applied in {mine}", "new": place}
    record["sessions"][0] |= {"host": "node17", "cwd": place, "workers": [{"host": "jane"}]}
    sample |= {
        "task": mine,
        "unit": place,
        "reason": told,
        "new": place,
        "facts": {"said": f"x='/home/{place}"},
    }
    sample["unit"] = data.draw(st.sampled_from([place, record["documents"]["read"][0]["name"]]))
    public = json.dumps([clean_record(record), clean_samples([sample], record)])
    assert not [word for word in ("jane", "node17") if word in public]


def test_documents_that_differ_by_folder_alone_are_not_merged(run, tmp_path, rejected):
    lines = lines_of(run)
    moved = [{**line, "unit": f"/{place}/same.txt"} for place, line in enumerate(lines)]
    put_lines(run, moved)
    assert "same name" in rejected("publish", run, "--to", "folder", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_methods_whose_files_differ_by_folder_alone_are_not_merged(run, tmp_path, rejected):
    """The sentence is about publishing, and not about two runs that were never given."""

    def two(record: dict[str, Any]) -> None:
        (method,) = record["methods"].values()
        record["methods"] = {f"longrope:factors=/{at}/f.json": method for at in "ab"}
        record["cells"] = [
            {**cell, "scaling": name} for cell in record["cells"] for name in record["methods"]
        ]

    told = rejected("publish", changed(run, tmp_path / "two", two), "--to", "card")
    assert "cannot be published: without their folders, files that it names have the same" in told


def test_what_cannot_be_published_is_said_first(run, rejected):
    for words, told in (
        ([run, "--to", "cards"], "did you mean 'card'?"),
        ([run, "--to", "card", "--out", run], "exists"),
        ([run / "nothing", "--to", "card"], "is not a run folder"),
    ):
        assert told in rejected("publish", *words)
