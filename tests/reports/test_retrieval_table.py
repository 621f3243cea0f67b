"""The table of retrieval: means and intervals by hand, lengths by RULER's rule."""

from random import Random
from typing import Any

import pandas as pd
import pytest

from ropewalk.harness.reports import retrieval
from ropewalk.tasks import Sample, ruler
from ropewalk.tasks._intervals import proportion
from tests.frames import Row, asked


def frame(hits: dict[tuple[str, int], int], *, n: int = 10, **changes: Any) -> pd.DataFrame:
    """Return trials of parts at lengths, of which so many are hits."""
    cells = (
        asked("ruler", "yarn", length, [1.0] * count + [0.0] * (n - count), part=part)
        for (part, length), count in hits.items()
    )
    rows = [row for cell in cells for row in cell]
    return pd.DataFrame(rows).assign(**{"metric": "recall", **changes})


HITS = {
    ("a", 1024): 10, ("b", 1024): 9, ("a", 2048): 10, ("b", 2048): 8, ("a", 4096): 7,
    ("b", 4096): 5, ("a", 8192): 10, ("b", 8192): 10,
}  # fmt: skip


def test_means_average_and_ruler_length_by_hand():
    """95, 90, 60 and 100 % on average: a length counts only with all shorter ones."""
    table = retrieval.make(frame(HITS))
    mean = table[table["part"] == "mean"].set_index("length")
    assert mean["score"].to_dict() == pytest.approx({1024: 0.95, 2048: 0.9, 4096: 0.6, 8192: 1.0})
    assert mean["average"].unique() == pytest.approx([(0.95 + 0.9 + 0.6 + 1.0) / 4])
    assert set(mean["ruler_length"]) == {2048}
    strict = retrieval.make(frame(HITS), threshold=0.96)
    assert strict["ruler_length"][strict["part"] == "mean"].isna().all()
    first = next(iter(retrieval.display(strict).values()))
    assert list(first["RULER length"]) == ["< 1k"]


def test_the_interval_of_a_mean_is_that_of_all_trials():
    """Of two parts with ten trials each: 18 hits of 20."""
    table = retrieval.make(frame(HITS))
    mean = table[(table["part"] == "mean") & (table["length"] == 2048)].iloc[0]
    assert (mean["low"], mean["high"]) == pytest.approx(proportion(18, 20))


@pytest.mark.parametrize(("trials", "share"), [(2, 0.5), (2, 0.9), (5, 0.5), (5, 0.9)])
def test_the_interval_of_a_mean_of_few_trials_each_holds_its_level(trials, share):
    """Eleven parts of one share, as uncertain as can be: at least 91 % for the nominal 95."""
    draw, held = Random(0), 0
    for _ in range(1000):
        found = [(part, draw.random() < share) for part in range(11) for _ in range(trials)]
        mean = ruler.score([Sample("trial", float(hit), 1, {"part": part}) for part, hit in found])
        held += mean.low <= share <= mean.high
    assert held >= 910


@pytest.mark.parametrize("fact", ["answer", "key"])
def test_a_mean_of_two_parts_with_the_same_answers_is_as_uncertain_as_one(fact):
    """A task with and without a chat template hides the same: 10 trials, and not 20."""
    trials = frame({("a", 1024): 8, ("a, chat", 1024): 8, ("b", 1024): 8})
    names = [
        f"{part[0]} {trial}" for part, trial in zip(trials["part"], [*range(10)] * 3, strict=True)
    ]
    table = retrieval.make(trials.assign(**{fact: names})).set_index("part")
    n = 10 * 3**2 / (2**2 + 1)  # the variance of a sum of two equal parts is four times that of one
    assert table.loc["mean", ["low", "high"]].tolist() == pytest.approx(proportion(0.8 * n, n))
    apart = retrieval.make(trials.assign(**{fact: [*map(str, range(30))]})).set_index("part")
    assert apart.loc["mean", ["low", "high"]].tolist() == pytest.approx(proportion(24, 30))


def made(*cells: list[Row]) -> pd.DataFrame:
    return retrieval.make(pd.DataFrame([row for rows in cells for row in rows]))


def scores(table: pd.DataFrame) -> dict[tuple[str, int, str], float]:
    """Return what has a score, by method, length and part."""
    scored = table.dropna(subset="score").set_index(["scaling", "length", "part"])["score"]
    return {(str(scaling), length, str(part)): of for (scaling, length, part), of in scored.items()}


def test_a_method_without_a_task_or_a_length_has_no_mean_and_no_average():
    """Runs are joined: what another method has is missing, and is not left out of a mean."""
    cells = [asked(task, name, length, [hit] * 10) for name in ("none", "yarn")
             for task, hit in (("passkey", 1.0), ("key_value", 0.0))
             for length in (1024, 2048)]  # fmt: skip
    table = made(*cells, asked("passkey", "ntk", 1024, [1.0] * 10))
    assert [key for key in scores(table) if key[0] == "ntk"] == [("ntk", 1024, "passkey")]
    means = table[table["part"] == "mean"]
    assert means["average"].dropna().to_dict() == dict.fromkeys(
        means.index[means["scaling"] != "ntk"], 0.5
    )
    shown = next(iter(retrieval.display(table).values())).set_index("scaling")
    assert shown.loc["ntk"].tolist() == ["missing", "missing", "", ""]


def test_a_lost_trial_is_of_the_part_of_its_question_or_of_any():
    cut = [*asked("ruler", "none", 1024, [1.0, 1.0, None], part="vt"),
           *asked("ruler", "none", 1024, [1.0] * 3, part="cwe")]  # fmt: skip
    table = made(cut)
    assert table["part"].tolist() == ["mean", "vt", "cwe"]
    assert scores(table) == {}
    assert set(table["status"]) == {"not_measured"}
    whole = [asked("ruler", "yarn", 1024, [1.0] * 3, part=part) for part in ("vt", "cwe")]
    known = scores(made(cut, *whole))
    assert [part for name, _, part in known if name == "none"] == ["cwe"]
    assert known["yarn", 1024, "mean"] == 1.0
