"""``ropewalk recommend``: a race of methods on documents, its answer, and the run it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.errors import UserError
from harness.methods.resolve import resolve
from harness.plugins import load
from harness.recommend import race, run
from harness.recommend.answer import KINDS, _choice, _doubt, _price, readable
from harness.recommend.budget import Budget, read_budget
from harness.recommend.candidates import usual
from harness.runs.store import RUN, SAMPLES, read_samples
from scaling._types import Rope
from tests.command_line import Outcome, Ropewalk
from tests.tiny import save_tiny

METHODS = ("pi:factor=4", "yarn:factor=4", "ntk:factor=4", "self_extend")


@pytest.fixture
def recommend(
    ropewalk: Ropewalk, tiny: Path, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Return the command on the tiny model and three documents, in rounds of two and three."""
    monkeypatch.setattr(race, "FIRST", 2)

    def call(*words: object) -> Outcome:
        given = ["--model", tiny, "--docs", docs, "--scaling", *METHODS]
        return ropewalk("recommend", *given, *words)

    return call


@pytest.mark.slow
def test_a_race_answers_in_a_paragraph_a_table_a_figure_and_a_line(
    recommend: Callable[..., Outcome], tmp_path: Path, ropewalk: Ropewalk
) -> None:
    """It says what three documents cannot; the run it leaves is reported and measured again."""
    done = recommend("--out", tmp_path / "race", "--budget", "all")
    assert done.status == 0, done.err
    text = " ".join(done.out.split())
    assert "3 documents are too few to name a winner; it needs 20" in text
    assert "of the 27 forwards (100 %)" in text
    assert "Next: ropewalk export" in text
    assert "†: it changes with the length of the input" in text  # self_extend
    assert "first round is 2 of them, 10 forwards, about" in " ".join(done.err.split())
    files = {file.suffix for file in (tmp_path / "race" / "reports").glob("recommend.*")}
    assert files == {".csv", ".parquet", ".md", ".tex", ".png"}
    table = pd.read_csv(tmp_path / "race" / "reports" / "recommend.csv")
    assert set(table["scaling"]) == {*METHODS, "none"}
    assert table["verdict"][0] == "lowest so far"
    assert table["worse"].min() == 0
    assert ropewalk("report", tmp_path / "race").status == 0
    again = ropewalk("rerun", tmp_path / "race", "--out", tmp_path / "again")
    assert again.status == 0
    assert "reproduced" in again.out


@pytest.mark.slow
def test_a_race_goes_on_where_it_stopped(
    recommend: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget ends it early; with more it measures only what is missing, and ends as at once."""
    monkeypatch.setattr("harness.recommend.write.save_figure", lambda *_: [])
    short = recommend("--out", tmp_path / "short", "--budget", "14")
    assert short.status == 0, short.err
    assert "budget of 14 forwards ended the race" in " ".join(short.out.split())
    few = read_samples(tmp_path / "short")
    assert 10 <= len(few) <= 14
    first = recommend("--out", tmp_path / "first", "--budget", "1")
    assert "after the first round, which is always measured" in " ".join(first.out.split())
    more = recommend("--out", tmp_path / "short", "--budget", "all")
    whole = recommend("--out", tmp_path / "whole", "--budget", "all")
    tables = [pd.read_csv(tmp_path / at / "reports" / "recommend.csv") for at in ("short", "whole")]
    pd.testing.assert_frame_equal(*tables)
    assert more.status == whole.status == 0
    assert few.items() <= read_samples(tmp_path / "short").items()


@pytest.mark.parametrize(("scaling", "follows"), [
    ("self_extend", True), ("jet_long", True), ("dynamic_ntk", True),
    ("self_extend:group=4", False), ("rerope", False), ("yarn:factor=4", False), ("none", False),
])  # fmt: skip
def test_a_method_that_follows_the_length_is_not_what_is_exported(
    scaling: str, follows: bool
) -> None:
    """Its price in the window is of another rotation than that of the target, which is served."""
    made: Any = object.__new__(run.Race)
    made.window, made.target = 64, 256
    found = {n: resolve(load("method", scaling), Rope(16, 1e4, 64), n) for n in (64, 256)}
    made.cells = {
        ("it", n): SimpleNamespace(rotation=one, frequencies=one.fingerprint)
        for n, one in found.items()
    }
    assert made.follows("it") is follows


def test_only_methods_that_are_alike_have_one_line() -> None:
    """Of a table in which some are, the others have their own name alone."""
    zero = dict.fromkeys([f"{k}{end}" for k in KINDS for end in ("", "_low", "_high")], 0.0)
    rows = [{"scaling": "yarn", "same": None}, {"scaling": "pi", "same": "layerwise"}]
    made = pd.DataFrame(rows).assign(**zero, follows=False, documents=6, verdict="worse")
    known: Any = SimpleNamespace(target=256, window=64)
    assert list(readable(made, known)["scaling"]) == ["yarn", "pi = layerwise"]


def test_no_price_is_claimed_of_a_form_that_was_not_measured() -> None:
    """Of a method that follows the length the price is that of following, and is called so."""
    made = pd.DataFrame([{"scaling": "it", "price": 0.0, "price_low": 0.0, "price_high": 0.0}])
    known: Any = SimpleNamespace(
        window=64, target=256, rules=race.Rules((20,)), free=lambda _: True, ships=False
    )
    plain = _price(known, made.assign(follows=False))
    assert plain == "Inside the window (64 tokens) it is the model itself and costs nothing."
    known.ships = True  # then the model itself is another candidate
    plain = _price(known, made.assign(follows=False))
    assert "it is the model without the scaling it ships, above which prices are told" in plain
    follows = _price(known, made.assign(follows=True))
    assert "A server keeps one form for all lengths" in follows
    assert "256 tokens; the price of that was not measured" in follows


def test_the_answer_claims_nothing_of_who_has_no_number_or_led_later() -> None:
    """A candidate that failed is not called worse; who was dropped early was behind another."""
    made = pd.DataFrame([{"perplexity": 5.0, "low": 4.0, "high": 6.0}])
    known: Any = SimpleNamespace(target=256, rules=race.Rules((40,)))
    early = race.Dropped("far", race.WORSE, "first", 6)
    failed = race.Dropped("lost", race.FAILED, "", 6)
    ended = race.Standing(("best",), (early,), "best", 40, race.ONE)
    assert "and every other is surely worse" in _choice(known, ended, made)
    ended = race.Standing(("best",), (early, failed), "best", 40, race.ONE)
    assert "and every other with a number is surely worse" in _choice(known, ended, made)
    told = _doubt(known, ended)
    assert "`far`, so far behind the leader then" in told
    assert "`best`" not in told


def test_a_dry_run_measures_nothing(recommend: Callable[..., Outcome], tmp_path: Path) -> None:
    """It says what the race may cost."""
    done = recommend("--out", tmp_path / "race", "--dry-run")
    assert done.status == 0
    assert "measuring everything takes 27 forwards" in " ".join(done.err.split())
    assert not (tmp_path / "race" / RUN).exists()
    assert not (tmp_path / "race" / SAMPLES).exists()


def test_a_damaged_sample_is_in_no_race(recommend: Callable[..., Outcome], tmp_path: Path) -> None:
    """A number that no race wrote is refused, and is in no mean."""
    sample = '{"cell": "c", "question": "q", "status": "ok", "value": NaN}'
    (tmp_path / SAMPLES).write_text(f"{sample}\n")
    done = recommend("--out", tmp_path, "--dry-run")
    assert (done.status, "is damaged" in done.err) == (2, True), done.err


@pytest.mark.slow
def test_a_method_without_a_number_is_left_out(
    ropewalk: Ropewalk, tiny: Path, docs: Path, tmp_path: Path
) -> None:
    """Its reason is told, in the table too, and the others race."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        '"""Broken."""\n\nfrom scaling import Frequencies\n\n\ndef frequencies(rope, length):\n'
        "    if length > 100:\n        raise ValueError('too long for it')\n"
        "    return Frequencies(rope.inv_freq())\n"
    )
    done = ropewalk(
        "recommend", "--model", tiny, "--docs", docs, "--scaling", "yarn:factor=4", broken,
        "--out", tmp_path / "race",
    )  # fmt: skip
    assert done.status == 1, done.err
    assert "too long for it" in done.out
    table = pd.read_csv(tmp_path / "race" / "reports" / "recommend.csv").set_index("scaling")
    assert table.loc["broken", "verdict"] == "failed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--length", "1x"], "beyond the trained window"),
        (["--length", "2x", "4x"], "one length"),
        (["--budget", "soon"], "write 2h"),
        (["--tolerance", "-1"], "--tolerance"),
        (["--task", "passkey"], "Unknown option"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(
    recommend: Callable[..., Outcome], words: list[str], told: str
) -> None:
    """Before any weight is read, with exit status 2."""
    done = recommend(*words)
    assert done.status == 2
    assert told in done.err


def test_a_budget_is_a_time_or_a_number() -> None:
    """By default it is a third of everything, and enough for four candidates."""
    assert read_budget("2h", 900, 20).seconds == 7200
    assert read_budget("1.5min", 900, 20).seconds == 90
    assert read_budget("300", 900, 20).forwards == 300
    assert read_budget(None, 900, 20).forwards == 300
    assert read_budget(None, 200, 20).forwards == 160
    assert read_budget("all", 900, 20) == read_budget("all", 1, 1)
    with pytest.raises(UserError, match="no budget"):
        read_budget("2 days", 900, 20)


@dataclass(frozen=True)
class Asks:
    """A plan in as far as a race needs one."""

    only: frozenset[tuple[str, str]] = frozenset()


@pytest.mark.parametrize(
    ("length", "document", "left"), [(4, 25, "bc"), (4, 59, "bc"), (1, 59, "b")]
)
def test_whom_a_failed_leader_dropped_is_compared_again(
    length: int, document: int, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader without a number on a late document decides nothing, also where its price fails."""
    rng = np.random.default_rng(0)
    means = {
        "a": 0.0,
        "b": 0.5 if length == 4 else 0.1,
        "c": 0.3 if length == 4 else 2.0,
        "none": 3,
    }
    far = {n: m + rng.normal(0, 0.8 if n == "b" else 0.01, 60) for n, m in means.items()}
    if length == 1:  # another leads at the end, so that the price of the first is asked for then
        far["b"][20:] -= 0.15
    store: dict[tuple[str, str], dict[str, object]] = {}

    def measure(plan: Asks) -> None:
        for name, place in plan.only:
            value = far[name][int(place)] if name in far else 0.0
            failed = (name, place) == ("a" if length == 4 else "a1", str(document))
            one = {"value": value, "weight": 1, "status": "not_finite" if failed else "ok"}
            store[name, place] = one

    made: Any = object.__new__(run.Race)
    made.plan, made.folder, made.budget, made.measure = Asks(), None, Budget(), measure
    made.asked, made.failed, made.samples = {}, {}, store
    made.rules, made.order = race.Rules(race.rounds(60)), [*range(60)]
    made.window, made.target, made.alike = 1, 4, dict.fromkeys(means)
    made.free = lambda name: length == 4 or name != "a"
    made.keys = lambda name, at, end: [
        (f"{name}{at}" if at == 1 else name, str(n)) for n in range(end)
    ]
    monkeypatch.setattr(run, "checked_samples", lambda _: store)
    ended = made.run(lambda *_: None)
    assert sorted(ended.left) == [*left]
    assert made.failed == {"a": "not_finite"}
    assert {one.by for one in ended.dropped} <= {"", "b", "c"}


def test_the_usual_candidates_have_the_factor_of_the_target() -> None:
    """One fixed factor, as it is served; no method whose authors train with it."""
    found = usual(4)
    assert found[0] == "none"
    assert {"yarn:factor=4", "self_extend", "log_n:on=yarn:factor=4"} <= set(found)
    assert not {"native", "abf", "p_rope"} & {name.partition(":")[0] for name in found}


def test_what_a_checkpoint_ships_is_a_candidate(
    ropewalk: Ropewalk, docs: Path, tmp_path: Path
) -> None:
    """Else another method is recommended to whom the model as it is would serve best."""
    yarn = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    folder = save_tiny(tmp_path / "m", rope_parameters=yarn)
    counts = []
    for model in (folder, save_tiny(tmp_path / "plain")):
        done = ropewalk("recommend", "--model", model, "--docs", docs, "--dry-run")
        assert done.status == 0, done.err
        counts.append(int(done.err.partition(" candidates at 256")[0].split()[-1]))
    assert counts[0] == counts[1] + 1


def test_a_shipped_scaling_of_an_unknown_type_is_one_sentence(
    tmp_path: Path, ropewalk: Ropewalk
) -> None:
    """It names the type, and what is read."""
    folder = save_tiny(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_type"] = "mrope"
    (folder / "config.json").write_text(json.dumps(config))
    done = ropewalk("recommend", "--model", folder, "--length", "4x", "--dry-run")
    assert done.status == 2
    assert "the checkpoint ships 'mrope'" in done.err
    assert "Traceback" not in done.err


def test_forwards_of_who_fails_are_of_those_that_everything_takes() -> None:
    """They are spent, so 125 % of everything was told where a candidate had no number."""
    made: Any = object.__new__(run.Race)
    made.plan, made.order = SimpleNamespace(lengths=(64, 256)), [*range(5)]
    made.alike = {"none": ["none"], "lost": ["lost"]}
    made.cells = {
        (name, at): SimpleNamespace(key=f"{name}{at}") for name in made.alike for at in (64, 256)
    }
    made.failed = {"lost": "not_finite"}
    assert made.grid == 20


def test_the_time_of_a_race_is_that_of_its_samples(tiny: Path) -> None:
    """A budget of time counts what the samples took, also of an earlier session."""
    del tiny
    made: Any = object.__new__(run.Race)
    made.asked = {("cell", "a"): 4, ("cell", "b"): 4}
    made.samples = {("cell", "a"): {"seconds": 2.0}, ("cell", "b"): {"seconds": 4.0}}
    made.target, made.budget = 4, read_budget("30s", 10, 10)
    assert made.seconds == 6
    assert made._spare() == pytest.approx(8)
