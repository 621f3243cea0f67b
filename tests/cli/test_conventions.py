"""What a user of lm-eval types where the two have the same flag, and how lists are written."""

import shlex
from pathlib import Path

import pytest

from ropewalk.harness.cli import app
from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.entries import expand
from ropewalk.harness.sweep.spec import TASKS, Spec, parse, settings_of


def test_flags_have_the_names_that_lm_eval_gives_them():
    line = "run -m llama -t passkey -L 10 --output_path out"
    _, bound, _ = app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    spec = parse(None, {"model": bound.kwargs["model"], **settings_of(bound.kwargs["spec"])})
    named = Spec(
        model="llama", task=("passkey",), docs="embedded:limit=10", limit=10, out=Path("out")
    )
    assert spec == named


@pytest.mark.parametrize(
    ("entry", "entries"),
    [
        ("none,yarn", ["none", "yarn"]),
        (
            "none, yarn:factor=4,beta_fast=32,./mine.py:x=1,pi",
            ["none", "yarn:factor=4,beta_fast=32", "./mine.py:x=1", "pi"],
        ),
        ("yarn:factor=[2,4],none", ["yarn:factor=2", "yarn:factor=4", "none"]),
        ("lm_eval:tasks=a+b,passkey", ["lm_eval:tasks=a", "lm_eval:tasks=b", "passkey"]),
        ("yarn:factor=1,024", ["yarn:factor=1,024"]),
        ("yarn:ramp=[code,paper]", ["yarn:ramp=code", "yarn:ramp=paper"]),
    ],
)
def test_a_comma_before_a_name_separates_entries(entry, entries):
    """One before an option, within a number or in brackets does not."""
    assert expand(entry) == entries


def test_limit_lowers_trials_and_documents_and_raises_none(tmp_path):
    """What is below it stays, so that samples are found again; others have it as their number."""
    (tmp_path / "a.txt").write_text("text")
    docs = f"{tmp_path}:limit=3"
    task = ["passkey:trials=2", "niah", "perplexity"]
    wide = parse(None, {"limit": "4", "docs": docs, "task": task})
    assert (wide.docs, wide.task) == (docs, ("passkey:trials=2", "niah:trials=4", "perplexity"))
    assert parse(None, {"limit": 100}).task == TASKS
    narrow = parse(None, {"limit": 1, "docs": {"perplexity": docs}})
    assert narrow.docs == {"perplexity": f"{tmp_path}:limit=1"}
    assert len(list(open_documents(parse(None, {"limit": 2}).docs).read())) == 2
    for wrong in ("0", "-1", "ten", "1.5"):
        with pytest.raises(UserError, match="limit: it must be"):
            parse(None, {"limit": wrong})
