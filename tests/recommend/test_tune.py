"""``ropewalk tune`` from the command line: a run like any other, decided on held-out documents."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import ROOT, load
from ropewalk.harness.recommend.tune import Row, Split, Trial, compare, kind_of, summary, to_use
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.paired import Difference
from ropewalk.harness.sweep import measure
from ropewalk.harness.sweep.plan import Plan, make_plan
from ropewalk.harness.sweep.spec import parse
from tests.command_line import Outcome, Ropewalk, samples

TASK = "perplexity:tail=16"


@pytest.fixture
def tune(ropewalk: Ropewalk, tiny: Path, docs: Path) -> Callable[..., Outcome]:
    """Return a small search: 7 methods in all, one document to search and two held out."""

    def call(folder: Path, *switches: str, **changes: str) -> Outcome:
        flags = {"model": tiny, "docs": docs, "length": "2x", "task": TASK, "against": "pi ntk"}
        flags |= {"trials": "4", "out": folder, **changes}
        words = [w for flag, text in flags.items() for w in (f"--{flag}", *str(text).split())]
        return ropewalk("tune", *switches, *words)

    return call


Tune = Callable[..., Outcome]


def plan_of(tiny: Path, docs: Path, task: str) -> Plan:
    given = {"model": str(tiny), "docs": str(docs), "scaling": "none", "length": "8x", "task": task}
    return make_plan(parse(None, given))


@pytest.mark.slow
def test_a_search_is_a_run_whose_found_method_scaling_reads(tune, ropewalk, tiny, docs, tmp_path):
    folder = tmp_path / "out"
    done = tune(folder)
    assert done.status == 0, done.err
    for text in (
        "Searching yarn: factor=1..8 (log), beta_fast=4..128 (log), beta_slow=0.1..4",
        "4 trials and 3 closed-form methods (pi, ntk, yarn) at 128 tokens",
        "on 1 document; 2 held out",
        "Cost: about ",
    ):
        assert text in done.err
    for text in (
        "is the best of 4 points",
        "too few for an interval",
        "Next, the in-window cost: ropewalk run",
        "ropewalk export",
    ):
        assert text in " ".join(done.out.split())
    found = json.loads((folder / "found.json").read_text())
    record = read_run(folder)
    assert list(record["methods"])[:3] == ["pi", "ntk", "yarn"]
    assert len(record["methods"]) == 7
    assert found["scaling"] in record["methods"]
    assert "| scaling" in (folder / "tune.md").read_text()
    # 7 methods on one document; then the closed forms and the found one on two more.
    assert len(samples(folder)) == 7 + 4 * 2
    out = tmp_path / "again"
    words = (
        f"run --model {tiny} --docs {docs} --task {TASK} --length 2x --scaling {folder}/found.json"
    )
    again = ropewalk(*words.split(), "--out", out)
    assert again.status == 0
    losses = [sample["value"] / sample["weight"] for sample in samples(out).values()]
    assert math.fsum(losses) == pytest.approx(found["search"] + 2 * found["held_out"])


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["layerwise:first=0,last=1..2", "self_extend:window=4..8"])
def test_the_next_line_serves_what_was_found(scaling, tune, ropewalk, tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.harness.recommend.tune.to_use", lambda table: table[0])
    done = tune(tmp_path / "out", scaling=scaling, trials="2", against="p_rope:p=0.1")
    (line,) = (line for line in done.out.splitlines() if line.startswith("To serve"))
    assert line.endswith("--to hf-code")
    served = ropewalk(*line.split("ropewalk ")[1].split())
    assert served.status == 0, served.err


@pytest.mark.slow
def test_a_search_that_was_interrupted_is_the_same(tune, tmp_path, monkeypatch):
    """Stopped after 5 samples and begun again: the same trials, samples, and found method."""
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert tune(whole).status == 0
    own, left = measure.append, iter(range(5))

    def append(*given: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        own(*given)

    with monkeypatch.context() as patch:
        patch.setattr(measure, "append", append)
        stopped = tune(torn)
    assert stopped.status == 130
    assert "The same command continues" in stopped.err
    assert len(samples(torn)) == 5
    assert tune(torn).status == 0
    assert samples(torn) == samples(whole)
    for file in ("found.json", "tune.md"):
        assert (torn / file).read_text() == (whole / file).read_text()
    assert read_run(torn)["methods"] == read_run(whole)["methods"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "closed", "served"),
    [("spline:knots=4", "pi", "none pi:factor=2"), ("channels", "none", "none")],
)
def test_free_factors_are_found(tune, given, closed, served, tmp_path):
    """The file is a table of LongRoPE's factors, one per channel, that a server reads too."""
    folder = tmp_path / "out"
    done = tune(folder, scaling=given, trials="1", against=closed)
    assert done.status == 0, done.err
    assert f"1 trial and 1 closed-form method ({closed}) at 128 tokens" in done.err
    table = json.loads((folder / "found.json").read_text())
    assert table["short_factor"] == [1.0] * 8
    assert table["long_factor"] == sorted(table["long_factor"])
    assert f"--scaling {served} {folder / 'found.json'} --length 1x 128" in done.out
    assert load("method", str(folder / "found.json")).label == "found"


@pytest.mark.slow
def test_answers_are_searched_by_their_probability(tune, tmp_path):
    done = tune(tmp_path, task="passkey:depths=2,trials=2", length="4x", trials="2")
    text = " ".join(done.out.split())
    assert "by the loss of the answers" in " ".join(done.err.split()), done.err
    assert "On the 2 trials held out" in text


def test_a_task_without_a_loss_is_refused(tiny, docs):
    with pytest.raises(UserError, match="across the ends of documents"):
        kind_of(plan_of(tiny, docs, "perplexity:protocol=overlapping"))
    with pytest.raises(UserError, match="form=argmax"):
        kind_of(plan_of(tiny, docs, "niah:new=64"))


def test_the_halves_share_no_document(tiny, docs, tmp_path):
    plan = plan_of(tiny, docs, "passkey:depths=3,trials=4")
    drawn = {Split.of(plan, seed).search for seed in range(4)}
    assert len(drawn) > 1
    for seed in range(4):
        split = Split.of(plan, seed)
        assert (len(split.search), len(split.held)) == (6, 6)
        assert not split.search & split.held
        assert {name[:10] for name in split.search} == {"depth 0.00", "depth 0.50", "depth 1.00"}
    shutil.copy(docs / "document-0.txt", tmp_path)
    with pytest.raises(UserError, match="two documents"):
        Split.of(plan_of(tiny, tmp_path, TASK), 0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scaling": "yarn ntk"}, "one --scaling"),
        ({"length": "1x 2x"}, "one --length"),
        ({"trials": "0"}, "tune tries 1 to 10,000 points"),
        ({"against": "yarm,foo"}, "2 problems"),
        ({"against": "yarn:factor=[2"}, "the brackets of 'yarn:factor=[2' do not close"),
        ({"scaling": "yran"}, "'yran'"),
        ({}, "pip install 'ropewalk[tune]'"),
    ],
)
def test_a_mistake_is_one_sentence(tune, more, message, tmp_path, monkeypatch):
    if not more:
        monkeypatch.setattr("ropewalk.harness.commands.tune.find_spec", lambda _: None)
    done = tune(tmp_path / "out", **more)
    assert (done.status, message in done.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_found_method_among_the_closed_form_ones_is_compared_with_another():
    nats: dict[str, float] = {"group=5": 1.0, "group=4": 1.5, "plain": 1.2}
    spread = {"a": 0.0, "b": 0.01, "c": -0.01, "d": 0.02, "e": 0.0, "f": 0.01}
    tuning: Any = SimpleNamespace(
        split=Split(frozenset("abc"), frozenset("def")),
        closed=["group=4", "group=5", "plain"],
        kind="targets",
        losses=lambda name, units: {u: (10 * (nats[name] + spread[u]), 10) for u in sorted(units)},
    )
    table = compare(tuning, "group=5")
    assert [row.scaling for row in table] == ["group=5", "plain", "group=4"]
    first, second, third = (row.less_best and row.less_best.value for row in table)
    assert first == pytest.approx(math.expm1(-0.2))
    assert second is None
    assert third == pytest.approx(math.expm1(0.3))
    text = " ".join(summary(tuning, Trial(3, "group=5", 1.0), table, 4))
    assert "that of plain, the best closed-form method besides" in text
    assert "no number" not in text


def test_the_last_line_serves_the_method_that_the_text_says_to_use():
    """A lower mean on what was held out, without significance, is no reason for the found one."""
    closed = Row("pi", 2.0, 2.0)
    lower = Difference(-0.02, -0.4, 0.6, None, 4)
    better = Difference(-0.02, -0.03, -0.01, None, 4)
    found = Row("found", 1.9, 1.98, lower)
    assert to_use([found, closed]) is closed
    found = Row("found", 1.9, 1.98, better)
    assert to_use([found, closed]) is found
    assert to_use([Row("found", 1.9, 1.9), Row("pi", 2.0, math.inf)]).scaling == "found"


def test_a_dry_run_measures_nothing(tune, tmp_path):
    done = tune(tmp_path / "out", "--dry-run")
    assert (done.status, (tmp_path / "out").exists()) == (0, False)
    assert "Cost: about" in done.err
    tune(tmp_path / "out")
    assert "Left: about 0 tokens" in tune(tmp_path / "out", "--dry-run").err


@pytest.mark.slow
def test_the_base_that_a_model_was_trained_with_is_found(ropewalk, tmp_path):
    """The reference model with a config that says 500 for its base: the search finds 10000.

    Inside the trained window, where the base of training is the best.
    """
    model = tmp_path / "model"
    shutil.copytree(ROOT / "harness/models/reference", model)
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    (model / "config.json").write_text(json.dumps(config))
    words = (
        "--docs embedded:count=2 --length 1x --task perplexity:tail=192 --against none --trials 8"
    )
    searched = ["--scaling", "abf:base=300..300000", "--out", tmp_path / "out"]
    done = ropewalk("tune", "--model", model, *words.split(), *searched)
    assert done.status == 0, done.err
    found = load("method", str(tmp_path / "out/found.json")).options["base"]
    assert 10_000 / 1.6 < found < 10_000 * 1.6
    text = " ".join(done.out.split())
    assert "differs by −" in text, text
