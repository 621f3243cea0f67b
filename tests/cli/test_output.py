"""What programs read: one JSON object on stdout, notes on stderr or nowhere, and a log file."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ropewalk.harness.cli import COMMANDS
from ropewalk.harness.show import plain
from tests.command_line import Outcome
from tests.small_runs import changed


def checked(done: Outcome, command: str) -> dict[str, Any]:
    """Return the one object on stdout, which names its command and its exit status."""

    def no_number(text: str) -> None:
        pytest.fail(f"{text} is no JSON")

    (line,) = done.out.splitlines()
    said: dict[str, Any] = json.loads(line, parse_constant=no_number)
    assert (said["command"], said["status"]) == (command, done.status)
    assert ("result" in said) != ("error" in said)
    return said


@pytest.fixture
def words(run: Path, tiny: Path, docs: Path, tmp_path: Path) -> dict[str, list[object]]:
    """Return a command line for every command that takes less than seconds."""
    model = ["--model", tiny, "--docs", docs, "--device", "cpu"]
    other = changed(run, tmp_path / "other", lambda _: None)
    sweep = [*model, "--length", "2x", "--scaling", "pi", "--task", "perplexity:tail=16"]
    heads = ["--documents", 1, "--out", tmp_path / "heads.json"]
    return {
        "run": ["run", *sweep, "--out", tmp_path / "new"],
        "report": ["report", run, "--report", "cells"],
        "recommend": ["recommend", *model, "--length", "2x", "--dry-run"],
        "tune": ["tune", *model, "--length", "2x", "--task", "perplexity:tail=16", "--dry-run"],
        "calibrate": ["calibrate", "--model", tiny, "--docs", docs, *heads],
        "export": ["export", tiny, "--scaling", "yarn", "--length", "2x", "--to", "vllm"],
        "doctor": ["doctor", tiny],
        "inspect": ["inspect", tiny, "--scaling", "none", "rerope", "--length", "2x"],
        "check": ["check", "pi", "--model", tiny],
        "compare": ["compare", run, other],
        "list": ["list", "yarn"],
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_the_result_of_a_command_is_one_object(command, words, ropewalk):
    if command == "run":  # its dry run first: both are results
        checked(ropewalk(*words[command], "--dry-run", "--json"), command)
    done = ropewalk(*words[command], "--json")
    said = checked(done, command)
    assert said["status"] == 0, done.err


def test_the_numbers_are_those_of_the_files(run, ropewalk, tmp_path):
    done = ropewalk("report", run, "--report", "cells", "--out", tmp_path / "out", "--json")
    (row,) = checked(done, "report")["result"]["written"]["cells"]
    written = pd.read_csv(tmp_path / "out" / "cells.csv").to_dict("records")[0]
    assert {name: row[name] for name in ("score", "low", "high", "n")} == {
        name: written[name] for name in ("score", "low", "high", "n")
    }


@pytest.mark.parametrize(
    ("words", "command", "told"),
    [
        (("list", "yran"), "list", "did you mean 'yarn'?"),
        (("run", "--scaling", "yran", "--task", "niha"), "run", "2 problems with this sweep:"),
        (("report", "nowhere"), "report", "nowhere"),
    ],
)
def test_an_error_is_one_object_too(words, command, told, ropewalk):
    done = ropewalk(*words, "--json")
    assert done.status == 2
    error = checked(done, command)["error"]
    assert told in error["message"]
    assert error["message"] in done.err
    assert len(error["problems"]) == (2 if "problems" in told else 1)
    assert ropewalk(*words).status == 2


def test_what_is_no_number_is_null():
    table = pd.DataFrame({"a": [1.0, float("nan")], "b": pd.array([1, None], dtype="Int64")})
    assert plain(table) == [{"a": 1.0, "b": 1}, {"a": None, "b": None}]
    assert plain([float("inf"), table["a"].to_numpy()]) == [None, [1.0, None]]


def test_quiet_prints_only_the_result_and_errors(words, ropewalk, tmp_path):
    assert "pi is measured: 1 of 1 methods." in ropewalk(*words["run"]).err
    done = ropewalk(*words["run"][:-1], tmp_path / "quiet", "--quiet")
    assert (done.status, done.err, "Page: " in done.out) == (0, "", True)
    assert "nowhere" in ropewalk("report", tmp_path / "nowhere", "--quiet").err
