"""``ropewalk recommend``: a race of methods on documents, its answer, and the run it leaves."""

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import as_served
from ropewalk.harness.recommend import losses, race
from ropewalk.harness.recommend.candidates import (
    ORDER,
    candidates_of,
    default_candidates,
    plan_race,
)
from ropewalk.harness.recommend.losses import FAR, NEAR, SLOWER, Budget, Losses, read_budget
from ropewalk.harness.runs.store import RUN, SAMPLES, read_samples
from ropewalk.harness.sweep.measure import Event, Started, Stored
from ropewalk.harness.sweep.plan import Plan
from ropewalk.harness.sweep.spec import parse
from ropewalk.harness.sweep.this_process import ThisProcess
from ropewalk.scaling.types import Rope
from tests.command_line import Outcome, Ropewalk

METHODS = ("pi:factor=4", "yarn:factor=4", "dynamic_ntk", "mr_rope:factor=4")


@pytest.fixture
def recommend(
    ropewalk: Ropewalk, tiny: Path, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Return the command on the tiny model and three documents, in rounds of two and three."""
    monkeypatch.setattr(race, "FIRST", 2)
    given = ["--model", tiny, "--docs", docs, "--scaling", *METHODS]
    return lambda *words: ropewalk("recommend", *given, *words)


@pytest.mark.slow
def test_a_race_answers_in_a_paragraph_a_table_and_a_line(recommend, tmp_path, ropewalk):
    done = recommend("--out", tmp_path / "race", "--budget", "all")
    assert done.status == 0, done.err
    assert "Next:  ropewalk export" in done.out
    assert "5 candidates at 256 tokens, in rounds of 2, 3 documents" in done.err
    assert done.err.count("After 2 documents: `") == 1
    table = pd.read_csv(tmp_path / "race" / "reports" / "recommend.csv")
    assert [*table][:4] == ["task", "metric", "scaling", "verdict"]
    table = table.set_index("scaling")
    assert set(table.index) == {*METHODS, "none", "truncation"}
    (use,) = table.index[table["verdict"].isin(["use", "best scaling"]) & (table["cost"] != 0)]
    assert use in done.out
    assert table.loc[use, "difference"] == 0
    rest = table[~table["verdict"].isin(["use", "best scaling", "too costly"])]["difference"]
    assert rest.is_monotonic_increasing
    raced = table[table["n"] > 0]
    assert raced[["score", "low", "difference", "truncation"]].notna().all(axis=None)
    assert raced.index[raced["cost"].isna()].tolist() == ["dynamic_ntk"]  # none on a server
    assert ropewalk("report", tmp_path / "race").status == 0


@pytest.mark.slow
def test_a_race_goes_on_where_it_stopped(recommend, tmp_path):
    short = recommend("--out", tmp_path / "short", "--budget", "42")
    assert short.status == 0, short.err
    text = " ".join(short.out.split())
    assert "The budget of 42 forwards ended the race" in text
    assert "Not reached: `" in text
    few = read_samples(tmp_path / "short")
    assert sum(one["length"] for one in few.values()) / 256 <= 42
    same = recommend("--out", tmp_path / "short", "--budget", "42")
    assert same.out == short.out
    assert read_samples(tmp_path / "short") == few
    recommend("--out", tmp_path / "short", "--budget", "all")
    whole = recommend("--out", tmp_path / "whole", "--budget", "all")
    tables = [pd.read_csv(tmp_path / at / "reports" / "recommend.csv") for at in ("short", "whole")]
    pd.testing.assert_frame_equal(*tables)
    assert whole.status == 0
    assert few.items() <= read_samples(tmp_path / "short").items()


def test_a_budget_that_is_too_small_names_the_least(recommend, tmp_path):
    done = recommend("--out", tmp_path / "race", "--budget", "3")
    assert done.status == 2
    assert "is too small: 2 candidates on 2 documents" in done.err
    least = done.err.rpartition("at least ")[2].split()[0]
    dry = recommend("--out", tmp_path / "race", "--budget", least, "--dry-run")
    assert dry.status == 0, dry.err
    assert "The first round has room for the first 2 candidates" in dry.err
    assert not (tmp_path / "race" / RUN).exists()
    assert not (tmp_path / "race" / SAMPLES).exists()


def test_fewer_documents_are_no_other_tasks(recommend):
    """Without --task, perplexity alone decides, whatever --limit is."""
    assert "in rounds of 2 documents." in recommend("--limit", "2", "--dry-run").err


def test_an_engine_has_the_candidates_that_it_expresses(ropewalk, tiny, docs):
    """If it expresses none, the plain model is not recommended: nobody asked about it."""
    asked = ["recommend", "--model", tiny, "--docs", docs, "--dry-run", "--scaling", "rerope"]
    done = ropewalk(*asked, "pi", "--to", "vllm")
    assert "Left out: 1 method. `rerope`: vllm cannot serve rerope" in done.err
    assert "2 candidates at 256 tokens" in done.err
    assert "3 candidates at 256 tokens" in ropewalk(*asked, "pi", "--to", "hf-code").err
    assert "`rerope`: only --to hf-code expresses it" in ropewalk(*asked, "pi").err
    assert ropewalk(*asked, "--to", "vlm").status == 2
    done = ropewalk(*asked, "--to", "vllm")
    assert (done.status, "--to vllm can express none of these" in done.err) == (2, True)


def test_a_method_is_measured_in_the_form_that_the_engine_serves(ropewalk, tiny, docs):
    """Every engine keeps YaRN's factor at all lengths, also that of YaRN under another method."""
    named = ["--scaling", "yarn", "resonance:on=yarn", "ntk:factor=4"]
    asked = ["recommend", "--model", tiny, "--docs", docs, *named, "--length", "4x", "--dry-run"]
    forms = (
        "keeps one factor for all lengths. Measured in this form: `yarn` as `yarn:factor=4`, "
        "`resonance:on=yarn` as `resonance:on=yarn:factor=4`."
    )
    for engine in ("vllm", "hf-code"):
        assert f"{engine} {forms}" in ropewalk(*asked, "--to", engine).err
    assert "Measured in this form" not in ropewalk(*asked).err


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ("yarn:beta_fast=16", "yarn:beta_fast=16,factor=4"),
        ("log_n:on=yarn", "log_n:on=yarn:factor=4"),
        ("resonance:on=yarn:beta_fast=16", "resonance:on=yarn:beta_fast=16+factor=4"),
        ("yarn:factor=8", "yarn:factor=8"),
        ("dynamic_ntk:factor=2", "dynamic_ntk:factor=2"),  # its base follows the length
        ("longrope:factors={}", "longrope:factors={}"),  # it has a list for short inputs
    ],
)
def test_a_factor_is_fixed_where_that_makes_a_method_the_same_at_all_lengths(
    tmp_path, given, served
):
    lists = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 4 + [2.0] * 4}
    file = tmp_path / "lists.json"
    file.write_text(json.dumps(lists))
    assert as_served(given.format(file), Rope(16, 10000.0, 256), 1024) == served.format(file)


@pytest.fixture
def plan(tiny: Path, docs: Path, tmp_path: Path) -> Callable[..., Plan]:
    """Return what makes the plan of a race on the tiny model."""
    given = {"model": str(tiny), "docs": str(docs), "length": "4x", "task": "perplexity"}
    given["out"] = str(tmp_path)
    return lambda *scaling: plan_race(parse(None, {**given, "scaling": list(scaling)}))


def test_equal_methods_are_one_candidate_under_the_plainest_name(plan):
    """A base that follows the length is, at the target, the NTK-aware one, which a server keeps."""
    names = ("none", "dynamic_ntk", "layerwise:factor=4", "ntk:factor=4", "pi:factor=4")
    assert candidates_of(plan(*names), None) == {
        "none": ["none"],
        "ntk:factor=4": ["ntk:factor=4", "dynamic_ntk"],
        "pi:factor=4": ["pi:factor=4", "layerwise:factor=4"],
    }


def test_only_documents_of_both_lengths_count(plan):
    made = plan("none")
    lost = [replace(c, questions=c.questions[c.length > 64 :]) for c in made.cells]
    data = Losses(replace(made, cells=tuple(lost)), ThisProcess())
    assert data.size == 2
    assert [len(data.keys((kind, "none", 9))) for kind in (FAR, NEAR)] == [2, 2]


def test_samples_that_are_computed_together_cost_the_time_of_all(plan, monkeypatch):
    """The first of them has it, the others have none."""

    def measure(part: Plan, *_: Any) -> Generator[Event]:
        yield Started(tuple(part.left(set())))
        for place, item in enumerate(part.left(set())):
            cell, question = item.key
            sample = {"cell": cell, "question": question, "status": "ok"}
            yield Stored(item, sample | {"seconds": 0.0 if place else 8.0})

    monkeypatch.setattr(losses, "measure", measure)
    data = Losses(plan("none", "yarn:factor=4"), ThisProcess())
    data.budget = Budget(60.0, timed=True)
    for count in (1, 3):
        data.measure([(FAR, "none", count)])
    assert data.cost([(FAR, "yarn:factor=4", 2)]) == pytest.approx(8 * SLOWER)


@pytest.mark.slow
def test_a_method_without_a_number_is_left_out(ropewalk, tiny, docs, tmp_path):
    """Its reason is printed, and in the table, and the others race."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        '"""Broken."""\n\nfrom scaling import Frequencies\n\n\ndef frequencies(rope, length):\n'
        "    if length > 100:\n        raise ValueError('too long for it')\n"
        "    return Frequencies(rope.inv_freq())\n"
    )
    words = f"--model {tiny} --docs {docs} --scaling yarn:factor=4 {broken} --out {tmp_path}/race"
    done = ropewalk("recommend", *words.split())
    assert done.status == 1, done.err
    assert "too long for it" in done.out
    table = pd.read_csv(tmp_path / "race" / "reports" / "recommend.csv").set_index("scaling")
    assert table.loc["broken", "verdict"] == "failed"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--length", "1x"], "beyond the trained window"),
        (["--task", "perplexity:tail=8"], "sets the options of perplexity itself"),
        (["--tolerance", "nan"], "--tolerance nan is invalid"),
        (["--margin", "0"], "--margin 0 is invalid: it is a percentage, above 0"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(recommend, words, text):
    """Before any weight is read, with exit status 2."""
    done = recommend(*words)
    assert (done.status, text in done.err) == (2, True)


def test_retrieval_that_the_model_itself_fails_ends_a_race(recommend, tmp_path):
    """Nobody can choose by it; only the plain model's prompts inside the window are measured."""
    words = ["--task", "passkey:trials=1", "--trained-length", "256", "--length", "2x", "--out"]
    done = recommend(*words, tmp_path / "race")
    text = (
        "none scores 0 on all 5 trials of passkey:trials=1 inside the trained window (256 tokens)"
    )
    assert (done.status, text in done.err) == (2, True)
    assert {one["length"] for one in read_samples(tmp_path / "race").values()} == {256}


@pytest.mark.slow
def test_one_method_for_texts_and_retrieval(ropewalk, tmp_path):
    """The demo model recovers passkeys at twice its window under YaRN, and none without it."""
    words = "recommend reference --length 2x --scaling yarn:factor=2 --limit 3 --task perplexity"
    done = ropewalk(*words.split(), "passkey:trials=1", "--budget", "all", "--out", tmp_path)
    assert done.status == 0, done.err
    assert "At 512 tokens: use yarn:factor=2 for all tasks, at most " in done.out
    assert "passkey:trials=1: use yarn:factor=2 100 % [57, 100], " in done.out
    _, retrieval = done.out.split("\npasskey:trials=1\n")
    assert "truncation" not in retrieval  # no column that is always empty
    table = pd.read_csv(tmp_path / "reports" / "recommend.csv").set_index(["task", "scaling"])
    assert table.loc[("passkey:trials=1", "none"), "difference"] < 0


def test_a_budget_is_a_time_or_a_number():
    """In words it is rounded up, so that what is named as the least suffices."""
    assert read_budget("2h", 300) == Budget(7200, timed=True)
    assert read_budget("1.5min", 300) == Budget(90, timed=True)
    assert read_budget("300", 900) == Budget(300)
    assert read_budget(None, 299.2).text(299.2) == "300 forwards"
    assert read_budget("all", 900) == Budget()
    assert read_budget("15min", 900).text(61.2) == "0:01:02"
    for text in ("soon", "0", "-2h", "1.5"):
        with pytest.raises(UserError, match="invalid"):
            read_budget(text, 900)


def test_the_usual_candidates_have_the_factor_of_the_target():
    assert default_candidates(4, ships=True)[:2] == ("none", "native")
    result = default_candidates(4)
    assert result[0] == "none"
    assert result[1] == "yarn:factor=4"
    assert [name.partition(":")[0] for name in result][:5] == [ORDER[0], *ORDER[2:6]]
    assert {"yarn:factor=4", "self_extend", "log_n:on=yarn:factor=4"} <= set(result)
    assert not {"native", "abf", "p_rope"} & {name.partition(":")[0] for name in result}
