"""Conditions of --fail-if: what they may name, when they hold, and that no failure is a pass."""

import math
import shlex

import pandas as pd
import pytest
import yaml

from ropewalk.harness.cli import app
from ropewalk.harness.commands.gate import Verdict, check, evaluate, table_of
from ropewalk.harness.errors import UserError
from tests import ROOT, frames
from tests.command_line import sweep

RAISES = """
from ropewalk.scaling.types import Frequencies

def frequencies(rope, length):
    if length > 300:
        raise ValueError("too long for me")
    return Frequencies(rope.inv_freq())
"""
KNOWN = {"scaling": {"none", "yarn"}, "task": {"passkey"}, "length": {256, 512}}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return frames.sweep()


def one(condition: str, frame: pd.DataFrame) -> Verdict:
    (verdict,) = evaluate([condition], frame)
    return verdict


def test_a_score_is_that_of_the_cell(frame):
    """It holds on the one side of the bound alone."""
    cell = frame[(frame["scaling"] == "pi") & (frame["length"] == 512)]
    score = float(cell.loc[cell["metric"] == "perplexity", "score"].iloc[0])
    where = f"scaling == 'pi' and length == 512 and task == '{frames.PERPLEXITY}' and score"
    for bound, holds in ((f"< {score!r}", False), (f"<= {score!r}", True), ("> 1e9", False)):
        assert one(f"{where} {bound}", frame).holds is holds
    assert "pi at 512 tokens" in one(f"{where} > 0", frame).text


def test_a_change_is_paired_with_truncation(frame):
    """The exponential of the mean difference of losses on the same documents, less one."""
    own = frame[frame["task"] == frames.PERPLEXITY].assign(protocol="tail")
    losses = own.pivot_table("value", "unit", ["scaling", "length"], aggfunc="sum")
    weight = own["weight"].dropna().iloc[0]
    expected = math.expm1(float((losses["yarn", 1024] - losses["none", 256]).mean() / weight))
    table = table_of(own).set_index(["scaling", "length"])
    assert table.loc[("yarn", 1024), "change"] == pytest.approx(expected, rel=1e-9)


def test_a_number_that_is_not_known_is_no_pass(frame):
    """A method that ran out of memory has no score and no reach, whatever the bound is."""
    mine = f"scaling == 'mine' and task == '{frames.PERPLEXITY}'"
    for bound in ("score < 512", "score >= 512", "9 < score < 99", "effective_length < 512",
                  "score < 9 and low > 1", "not score < 512"):  # fmt: skip
        verdict = one(f"{mine} and length == 2048 and {bound}", frame)
        assert verdict.holds is None
        assert "out_of_memory" in verdict.text
    assert one(f"{mine} and length == 1024 and score < 1000", frame).holds
    assert one("score < 0 or length < 1", frame).holds is None
    assert one("scaling == 'yarn' and score < 0", frame).holds is False


def test_only_tail_perplexity_has_a_change(frame):
    """Passkeys have none, and pass; a perplexity whose truncation is lost does not."""
    assert one("scaling == 'yarn' and change > 9", frame).holds is False
    assert one("scaling == 'yarn' and change > -9", frame).holds
    lost = frame.assign(status=frame["status"].mask(frame["length"] == 256, "out_of_memory"))
    assert one("scaling == 'yarn' and change > 9", lost).holds is None


@pytest.mark.parametrize(("status", "known"), [("out_of_memory", False), ("failed", True)])
def test_a_regret_is_not_known_while_another_method_may_be_the_best(frame, status, known):
    """Without YaRN, the best here, NTK would be within its bound. What failed is not best."""
    here = (frame["task"] == frames.PERPLEXITY) & (frame["length"] == 1024)
    condition = (
        f"scaling == 'ntk' and length == 1024 and task == '{frames.PERPLEXITY}' and regret > .05"
    )
    assert one(condition, frame).holds
    best = here & frame["scaling"].isin(["yarn", "mine"])
    lost = {"status": status, "value": math.nan, "score": math.nan}
    less = frame.assign(**{name: frame[name].where(~best, value) for name, value in lost.items()})
    assert one(condition, less).holds is (False if known else None)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("score(yarn, 512) < 3", "is no query of pandas"),
        ("@print('x')", "@ would run code"),
        (
            "scaling == 'yran' and score > 1",
            "no scaling of this sweep is 'yran'; did you mean 'yarn'",
        ),
        ("length == 300 and score > 1", "no length of this sweep is 300"),
        ("scaling in ('none', 'pi') and score > 1", "no scaling of this sweep is 'pi'"),
    ],
)
def test_what_no_run_can_answer_is_an_error(condition, message):
    with pytest.raises(UserError) as error:
        check([condition], KNOWN)
    assert message in str(error.value)


@pytest.mark.slow
def test_a_run_ends_with_the_status_of_its_conditions(tiny, docs, tmp_path, ropewalk):
    """3 where one holds, 4 where one is not known, 0 where none holds; report asks again."""
    (tmp_path / "mine.py").write_text(RAISES)
    run, mine = tmp_path / "run", str(tmp_path / "mine.py")
    words = sweep(tiny, docs, run, task=["perplexity:tail=16"], scaling=["none", "pi"])
    wrong = ropewalk(*words, "--fail-if", "scaling == 'yarn' and score > 1")
    assert (wrong.status, run.exists()) == (2, False)
    passed = ropewalk(*words, "--fail-if", "scaling == 'pi' and score < 0")
    assert passed.status == 0
    assert "Passed: scaling == 'pi' and score < 0: no cell matches." in passed.err
    held = ropewalk("report", run, "--fail-if", "scaling == 'pi' and score > 0", "--json")
    assert held.status == 3
    assert "Failed: scaling == 'pi' and score > 0: pi at " in held.err
    words = sweep(tiny, docs, tmp_path / "b", task=["perplexity:tail=16"], scaling=["none", mine])
    assert ropewalk(*words, "--fail-if", "scaling == 'mine' and score < 0").status == 4
    both = ["scaling == 'mine' and score < 0", "scaling == 'none' and score > 0"]
    assert ropewalk("report", tmp_path / "b", "--fail-if", *both).status == 3


def test_the_example_workflow_has_commands_that_are_understood():
    page = (ROOT / "docs/how-to/ci.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    (job,) = workflow["jobs"].values()
    lines = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    assert lines.pop(0) == ["pip", "install", "ropewalk"]
    for line in lines:
        words = line[1 : line.index(">")] if ">" in line else line[1:]
        _, outer, _ = app.meta.parse_args(words, exit_on_error=False, print_error=False)
        _, bound, _ = app.parse_args(outer.args, exit_on_error=False, print_error=False)
        check(
            bound.arguments.get("fail_if", ()),
            {"scaling": bound.arguments["spec"].scaling if "spec" in bound.arguments else ()},
        )
