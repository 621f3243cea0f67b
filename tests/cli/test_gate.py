"""Conditions of --fail-if: what they may name, when they hold, and that no failure is a pass."""

import json
import math
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml

import ropewalk as rw
from harness.api.gate import Names, Verdict, check, evaluate, names_of, parse
from harness.cli.app import app
from harness.errors import UserError
from tests import ROOT, frames
from tests.command_line import sweep

NAMES = Names(
    ("none", "yarn", "yarn:factor=4,beta_fast=8"),
    {"perplexity": "perplexity", "passkey:depths=2,trials=2": "accuracy"},
    (256, 512, 1024),
    256,
)
RAISES = """
from scaling.types import Frequencies

def frequencies(rope, length):
    if length > 300:
        raise ValueError("too long for me")
    return Frequencies(rope.inv_freq())
"""


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return frames.sweep()


def one(condition: str, frame: pd.DataFrame) -> Verdict:
    (verdict,) = evaluate([parse(condition)], frame)
    return verdict


def test_a_score_is_that_of_the_cell(frame):
    """It holds on the one side of the bound alone, and has the interval of the cell."""
    cell = frame[(frame["scaling"] == "pi") & (frame["length"] == 512)]
    score = float(cell.loc[cell["metric"] == "perplexity", "score"].iloc[0])
    for sign, bound, holds in (
        ("<", score + 1, True), ("<", score, False), ("<=", score, True), (">", score, False),
        (">=", score, True), (">", score - 1, True),
    ):  # fmt: skip
        verdict = one(f"score(pi, perplexity, 2x) {sign} {bound!r}", frame)
        assert (verdict.holds, verdict.value) == (holds, score)
        assert verdict.low is not None
        assert verdict.low < score


def test_a_reach_and_a_regret_are_those_of_the_reports(frame):
    """Both are the numbers that ropewalk report prints."""
    from harness.reports import effective_length, regret

    reaches = effective_length.make(frame).set_index(["task", "scaling"])["effective_length"]
    verdicts = evaluate([parse("effective_length(pi) < 1k")], frame)
    assert {v.task: v.value for v in verdicts} == {v.task: reaches[v.task, "pi"] for v in verdicts}
    assert len(verdicts) == 2
    table = regret.make(frame)
    (row,) = table[
        (table["scaling"] == "ntk")
        & (table["length"] == 1024)
        & (table["task"] == "passkey:trials=4")
    ].to_dict("records")
    verdict = one("regret(ntk, passkey, 4x) > 5%", frame)
    assert verdict.value == row["regret"]
    assert verdict.holds == (row["regret"] > 0.05)


def test_a_change_is_paired_with_truncation(frame):
    """The exponential of the mean difference of losses on the same documents, less one."""
    own = frame[frame["task"] == frames.PERPLEXITY].assign(protocol="tail")
    rest = frame[frame["task"] != frames.PERPLEXITY]
    losses = own.pivot_table("value", "unit", ["scaling", "length"], aggfunc="sum")
    weight = own["weight"].dropna().iloc[0]
    expected = math.expm1(float((losses["yarn", 1024] - losses["none", 256]).mean() / weight))
    verdict = one("change(yarn, 4x) > 0%", pd.concat([own, rest]))
    assert verdict.value == pytest.approx(expected, rel=1e-9)
    assert verdict.holds == (expected > 0)


def test_a_number_that_is_not_known_is_no_pass(frame):
    """A method that ran out of memory has no reach and no score, whatever the bound is."""
    raised = frame.assign(status="failed", reason="bad at 512: too long for me.")
    assert one("score(yarn, passkey, 2x) < 1", raised).text.endswith("too long for me)")
    for sign in ("<", ">="):
        for number in ("effective_length(mine, perplexity)", "score(mine, perplexity, 8x)"):
            verdict = one(f"{number} {sign} 512", frame)
            assert (verdict.holds, verdict.value) == (None, None)
            assert "out of memory" in verdict.text
    assert one("score(mine, perplexity, 4x) < 1000", frame).holds


@pytest.mark.parametrize(
    ("status", "known"), [("out_of_memory", False), ("not_measured", False), ("failed", True)]
)
def test_a_regret_is_not_known_while_another_method_may_be_the_best(frame, status, known):
    """YaRN is the best here: without it NTK would be within its bound. What fails is not best."""
    here = (frame["task"] == frames.PERPLEXITY) & (frame["length"] == 1024)
    of_all = one("regret(ntk, perplexity, 4x) > 5%", frame)
    assert of_all.holds
    best = here & frame["scaling"].isin(["yarn", "mine"])
    lost = {"status": status, "value": math.nan, "score": math.nan}
    verdict = one(
        "regret(ntk, perplexity, 4x) > 5%",
        frame.assign(**{name: frame[name].where(~best, value) for name, value in lost.items()}),
    )
    assert verdict.holds is (False if known else None), verdict.text


def test_a_bound_that_two_documents_do_not_give_is_said_to_need_three(frame):
    """Both methods have them: what lacks is documents, and no method."""
    few = frame[
        (frame["task"] != frames.PERPLEXITY) | frame["unit"].isin(["document 0", "document 1"])
    ]
    verdict = one("regret(yarn, perplexity, 4x) > 5%", few)
    assert verdict.holds is None
    assert "no bound: it needs another method on the same trials, or on the same 3" in verdict.text


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("__import__('os')", "where NUMBER is one of effective_length(METHOD[, TASK]), score("),
        ("score(yarn, 512) < 3", "score takes (METHOD, TASK, LENGTH)"),
        ("effective_length() < 512", "effective_length takes (METHOD[, TASK])"),
        ("regret(yarn) > 5%", "regret takes (METHOD[, TASK], LENGTH)"),
        ("effective_length(yran) < 512", "did you mean 'yarn'?"),
        ("effective_length(yarn:factor=8) < 512", "no method of this sweep is 'yarn:factor=8'"),
        ("score(yarn, niah, 512) < 1", "no task of this sweep is 'niah'"),
        ("score(yarn, passkey, 3x) < 1", "3x (768 tokens) is no length of this sweep"),
        ("score(yarn, passkey, long) < 1", "is not a length"),
        ("score(yarn, passkey, 2x) < 90", "write 90% or"),
        ("score(yarn, perplexity, 2x) < 90%", "leave out %"),
        ("score(yarn, perplexity, 2x) < nan", "is not a number such as"),
        ("effective_length(yarn) < 2k", "the longest length of this sweep is 1,024 tokens"),
        ("effective_length(yarn) > 4x", "the longest length of this sweep is 1,024 tokens"),
        ("change(yarn, passkey, 2x) > 0%", "only perplexity is compared"),
    ],
)
def test_what_no_run_can_answer_is_an_error(condition, told):
    """One sentence that quotes the condition."""
    with pytest.raises(UserError) as error:
        check([parse(condition)], NAMES)
    assert told in str(error.value)
    assert condition in str(error.value)


@pytest.mark.parametrize(
    "condition",
    [
        "effective_length(yarn) < 4x",
        "effective_length ( yarn:factor=4,beta_fast=8 , passkey )>=1k",
        "score(yarn:factor=4,beta_fast=8, passkey:depths=2,trials=2, 512)<= 90%",
        "regret(yarn,2x) > 0.05",
        "change(yarn, 4x) > -2.5%",
    ],
)
def test_options_and_spaces_are_read(condition):
    """A label's own commas do not end an argument."""
    check([parse(condition)], NAMES)


def test_what_a_number_is_relative_to_has_to_be_measured():
    """The remedy is the flag to add."""
    far = Names(("yarn",), {"perplexity": "perplexity"}, (512,), 256)
    for condition, told in (
        ("effective_length(yarn) < 512", "add --scaling none"),
        ("change(yarn, 2x) > 0%", "add --scaling none"),
        ("regret(yarn, 2x) > 5%", "needs a second method"),
    ):
        with pytest.raises(UserError, match=told):
            check([parse(condition)], far)


@pytest.mark.slow
def test_a_run_ends_with_the_status_of_its_conditions(tiny, docs, tmp_path, ropewalk):
    """3 where one holds, 4 where one is not known, 0 where none holds; report asks again."""
    (tmp_path / "mine.py").write_text(RAISES)
    run, mine = tmp_path / "run", str(tmp_path / "mine.py")
    words = sweep(tiny, docs, run, task=["perplexity:tail=16"], scaling=["none", "pi"])
    wrong = ropewalk(*words, "--fail-if", "score(yarn, perplexity, 5x) > 1")
    assert (wrong.status, run.exists()) == (2, False)
    assert "no method of this sweep is 'yarn'" in wrong.err
    passed = ropewalk(*words, "--fail-if", "score(pi, perplexity, 5x) < 0", "--quiet")
    assert passed.status == 0
    (line,) = [line for line in passed.out.splitlines() if line.startswith("Passed: ")]
    assert "tail perplexity of pi at 320 tokens is " in line
    held = ropewalk("report", run, "--fail-if", "score(pi, perplexity, 5x) > 0", "--json")
    assert held.status == 3
    assert "Failed: score(pi, perplexity, 5x) > 0" in held.err
    (verdict,) = json.loads(held.out)["result"]["conditions"]
    (score,) = (
        rw.report(run, report=["scores"])
        .frame.query("scaling == 'pi' and length == 320")["score"]
        .unique()
    )
    assert (verdict["holds"], verdict["value"]) == (True, score)
    words = sweep(tiny, docs, tmp_path / "b", task=["perplexity:tail=16"], scaling=["none", mine])
    lost = ropewalk(*words, "--fail-if", "score(mine, perplexity, 5x) < 0")
    assert lost.status == 4
    assert (
        "Not evaluated: score(mine, perplexity, 5x) < 0 (llama, perplexity:tail=16): " in lost.out
    )
    both = ["score(mine, perplexity, 5x) < 0", "score(none, perplexity, 4x) > 0"]
    assert ropewalk("report", tmp_path / "b", "--fail-if", *both).status == 3


def test_the_example_workflow_has_commands_that_are_understood():
    """Each step of the page runs Ropewalk with options that it has and conditions it answers."""
    page = (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    (job,) = workflow["jobs"].values()
    lines = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    assert lines.pop(0) == ["pip", "install", "ropewalk"]
    assert [line[:2] for line in lines] == [["ropewalk", "run"], ["ropewalk", "compare"]]
    for line in lines:
        words = line[1 : line.index(">")] if ">" in line else line[1:]
        _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        if words[0] == "run":
            given = bound.arguments
            lengths = tuple(256 * int(text[:-1]) for text in given["length"])
            tasks = {"perplexity": "perplexity", "passkey": "accuracy"}
            names = Names(given["scaling"], tasks, lengths, 256)
            check([parse(text) for text in given["fail_if"]], names)
            assert given["json"]
            assert given["log_file"] == Path("results/ci.log")


def test_names_are_those_of_a_frame(frame):
    """Methods, tasks with their metric, lengths and the window."""
    names = names_of(frame)
    assert names.scalings == frames.SCALINGS
    assert names.tasks == {frames.PERPLEXITY: "perplexity", frames.PASSKEY: "accuracy"}
    assert (names.lengths, names.trained_length) == (frames.LENGTHS, 256)
