"""``ropewalk tune`` from the command line: a run like any other, decided on held-out documents."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import ROOT, load
from ropewalk.harness.recommend.tune import Search, Tuned, minimises_answers, split
from ropewalk.harness.runs.store import read_run
from ropewalk.harness.stats.measure import Units
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


def plan_of(tiny: Path, docs: Path, task: str) -> Plan:
    given = {"model": str(tiny), "docs": str(docs), "scaling": "none", "length": "8x", "task": task}
    return make_plan(parse(None, given))


@pytest.mark.slow
def test_a_search_is_a_run_whose_found_method_scaling_reads(tune, ropewalk, tiny, docs, tmp_path):
    folder = tmp_path / "out"
    done = tune(folder)
    assert done.status == 0, done.err
    assert "Searching yarn: factor=1..8 (log), beta_fast=4..128 (log), beta_slow=0.1" in done.err
    assert "4 trials and 3 closed-form methods (pi, ntk, yarn) at 128 tokens" in done.err
    assert "on 1 document; 2 held out" in done.err
    assert "On the 2 documents held out: use " in done.out
    assert "is the best of 4 points" in done.out
    found = load("method", str(folder / "found.json"))
    record = read_run(folder)
    assert list(record["methods"])[:3] == ["pi", "ntk", "yarn"]
    assert len(record["methods"]) == 7
    # 7 methods on one document; then the closed forms and the found one on two more.
    assert len(samples(folder)) == 7 + 4 * 2
    words = f"run --model {tiny} --docs {docs} --task {TASK} --length 2x --scaling {found.given}"
    again = ropewalk(*words.split(), "--out", tmp_path / "again")
    assert again.status == 0
    assert samples(tmp_path / "again").items() <= samples(folder).items()
    (line,) = (line for line in done.out.splitlines() if line.startswith("Next:"))
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
    for file in ("found.json", "tune.csv"):
        assert (torn / file).read_text() == (whole / file).read_text()
    assert read_run(torn)["methods"] == read_run(whole)["methods"]


@pytest.mark.slow
@pytest.mark.parametrize(("given", "closed"), [("spline:knots=4", "pi"), ("channels", "none")])
def test_free_factors_are_found(tune, given, closed, tmp_path):
    """The file is a table of LongRoPE's factors, one per channel, that a server reads too."""
    done = tune(tmp_path, scaling=given, trials="1", against=closed)
    assert done.status == 0, done.err
    assert f"1 trial and 1 closed-form method ({closed}) at 128 tokens" in done.err
    table = json.loads((tmp_path / "found.json").read_text())
    assert table["short_factor"] == [1.0] * 8
    assert table["long_factor"] == sorted(table["long_factor"])
    assert load("method", str(tmp_path / "found.json")).label == "found"


@pytest.mark.slow
def test_answers_are_searched_by_their_probability(tune, tmp_path):
    done = tune(tmp_path, task="passkey:depths=2,trials=2", length="4x", trials="2")
    assert "by the loss of the answers" in done.err
    assert "On the 2 trials held out" in done.out


def test_a_task_without_a_loss_is_refused(tiny, docs):
    with pytest.raises(UserError, match="across the ends of documents"):
        minimises_answers(plan_of(tiny, docs, "perplexity:protocol=overlapping"))
    with pytest.raises(UserError, match="form=argmax"):
        minimises_answers(plan_of(tiny, docs, "niah:new=64"))


def test_the_halves_share_no_document(tiny, docs, tmp_path):
    plan = plan_of(tiny, docs, "passkey:depths=3,trials=4")
    assert len({split(plan, seed) for seed in range(4)}) > 1
    for seed in range(4):
        search, held = split(plan, seed)
        assert (len(search), len(held)) == (6, 6)
        assert not search & held
        assert {name[:10] for name in search} == {"depth 0.00", "depth 0.50", "depth 1.00"}
    shutil.copy(docs / "document-0.txt", tmp_path)
    with pytest.raises(UserError, match="two documents"):
        split(plan_of(tiny, tmp_path, TASK), 0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scaling": "yarn ntk"}, "one --scaling"),
        ({"trials": "0"}, "tune tries 1 to 10,000 points"),
        ({"against": "yarm,foo"}, "2 problems"),
        ({"scaling": "yran"}, "'yran'"),
    ],
)
def test_a_mistake_is_one_sentence(tune, more, message, tmp_path):
    done = tune(tmp_path / "out", **more)
    assert (done.status, message in done.err) == (2, True)
    assert not (tmp_path / "out").exists()


def compared(monkeypatch: pytest.MonkeyPatch, nats: dict[str, Any]) -> Any:
    """Compare the first method with the others, on documents where the first is erratic."""
    noise = {"a": 0.0, "b": 0.01, "c": -0.01, "d": 0.02, "e": 0.0, "f": 0.01}
    search = Search.__new__(Search)
    search.nouns = "documents"
    search.halves, search.closed = (frozenset("abc"), frozenset("def")), [*nats][1:]
    first = next(iter(nats))

    def of(_: Search, name: str, documents: frozenset[str]) -> Units | None:
        if nats[name] is None:
            return None
        spread = 5 if name == first else 1
        return {d: (10 * (nats[name] + spread * noise[d]), 10.0) for d in sorted(documents)}

    monkeypatch.setattr(Search, "units", of)
    return search.compare(first)


def test_the_found_method_is_used_where_it_is_significantly_better(monkeypatch):
    """A lower mean alone on what was held out is no reason."""
    use, table, text = compared(monkeypatch, {"found": 0.9, "plain": 1.2, "other": 1.5})
    assert (use, text[:9]) == ("found", "use found")
    assert table["scaling"].tolist() == ["found", "plain", "other"]
    differences = [math.expm1(0.26), math.expm1(0.56)]
    assert table["difference"].tolist() == pytest.approx([0.0, *differences])
    use, table, text = compared(monkeypatch, {"found": 1.13, "plain": 1.2, "other": 1.5})
    assert (use, text[:9]) == ("plain", "use plain")
    assert table["difference"][0] < 0
    use, table, _ = compared(monkeypatch, {"group=5": 1.0, "group=4": 1.5, "plain": 1.2})
    assert table["scaling"].tolist() == ["group=5", "plain", "group=4"]  # by their own means


def test_a_method_without_a_number_has_none_in_the_table(monkeypatch):
    _, table, _ = compared(monkeypatch, {"found": 0.9, "broken": None, "plain": 1.2})
    assert table["scaling"].tolist() == ["found", "plain", "broken"]
    assert table["search"].notna().tolist() == [True, True, False]
    shown = Tuned("", "", table, "", Path(), (), "").display()[""].iloc[2].tolist()
    assert shown == ["broken", "no number", "no number", ""]


def test_a_dry_run_measures_nothing(tune, tmp_path):
    done = tune(tmp_path / "out", "--dry-run")
    assert (done.status, (tmp_path / "out").exists()) == (0, False)
    assert "Cost: about" in done.err


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
    assert "lowest abf:base=" in " ".join(done.out.split())
