"""What the answer tables say, on sweeps small enough to work out by hand."""

import math
from collections.abc import Sequence

import pandas as pd
import pytest

from ropewalk.harness.reports import best, curves, differences, effective_length, regret
from ropewalk.tasks._intervals import proportion, ratio
from tests.frames import Row

TOKENS = 100
HARD = (2.0, 2.5, 3.0, 2.2, 2.8, 2.4, 2.6, 3.1, 2.3, 2.9) * 2  # nats a token, twenty documents


def documents(scaling: str, length: int, extra: float, *, noise: float = 0.01) -> list[Row]:
    """Return a perplexity cell: every document ``extra`` nats above its own loss, give or take."""
    rates = [loss + extra + noise * (-1) ** i for i, loss in enumerate(HARD)]
    found = ratio([rate * TOKENS for rate in rates], [TOKENS] * len(rates))
    low, high = (math.exp(end or 0) for end in found.interval())
    head = cell(
        "perplexity", scaling, length, f"{scaling}/{extra}", math.exp(found.value), low, high
    )
    return [
        {**head, "unit": f"d{i}", "value": rate * TOKENS, "weight": TOKENS, "protocol": "tail"}
        for i, rate in enumerate(rates)
    ]


def trials(scaling: str, length: int, hits: int, n: int = 20) -> list[Row]:
    """Return a passkey cell of which the first ``hits`` keys were found."""
    low, high = proportion(hits, n)
    head = cell("passkey", scaling, length, f"{scaling}/{hits}", hits / n, low, high)
    return [
        {**head, "unit": f"t{i}", "value": float(i < hits), "weight": 1, "depth": 0.5}
        for i in range(n)
    ]


def cell(
    task: str, scaling: str, length: int, frequencies: str, score: float, low: float, high: float
) -> Row:
    metric = "accuracy" if task == "passkey" else "perplexity"
    return {
        "run": "a", "model": "m", "trained_length": 256, "scaling": scaling, "length": length,
        "frequencies": frequencies, "task": task, "metric": metric, "score": score, "low": low,
        "high": high, "n": 20, "status": "ok", "seconds": 0.1,
    }  # fmt: skip


def frame(*cells: Sequence[Row]) -> pd.DataFrame:
    return pd.DataFrame([row for rows in cells for row in rows])


SWEEP = frame(
    documents("none", 256, 0), documents("none", 1024, 2.0, noise=0.02),
    documents("far", 256, 0.05, noise=0.03), documents("far", 1024, -0.2),
    documents("near", 256, 0), documents("near", 1024, 0.3, noise=0.03),
    trials("none", 256, 20), trials("none", 1024, 0),
    trials("far", 256, 20), trials("far", 1024, 9),
    trials("near", 256, 20), trials("near", 1024, 10),
)  # fmt: skip


def rows(table: pd.DataFrame, **facts: object) -> pd.DataFrame:
    for name, value in facts.items():
        table = table[table[name] == value]
    return table


def test_best_says_what_to_use_and_by_how_much_it_leads():
    """0.5 nats under the next is a ratio of e^-0.5, which wins; 10 keys of 20 and 9 do not."""
    table = best.make(SWEEP)
    [read] = rows(table, task="perplexity", length=1024).to_dict("records")
    assert (read["use"], read["best"], read["next"]) == ("far", "far", "near")
    assert read["winner"]
    assert read["regret"] == 0
    assert read["lead"] == pytest.approx(math.exp(-0.5) - 1)
    assert read["lead_low"] < read["lead"] < read["lead_high"] < 0
    assert read["as_good"] == read["possible"] == ["far"]
    [found] = rows(table, task="passkey", length=1024).to_dict("records")
    assert (found["use"], found["winner"]) == ("near", False)
    assert found["possible"] == ["near", "far"]
    assert 0.08 < found["regret"] < 0.2
    [_, _, _, winner, bound, all_tasks, rare] = best.summary(table)
    assert "`far`" in winner
    assert "39.3 % [" in winner
    assert "50 % [30, 70]" in bound
    assert "on all 2 tasks: use `far`, at most" in all_tasks
    assert "up to 15 %" in rare  # 3 of 20 documents


def test_a_method_within_the_margin_is_as_good_and_the_plainest_is_used():
    """Half a percent more on every document is as good by a margin of 1 %, not by one of 0.1 %."""
    cells = [documents("fancy:x=1", 1024, 0), documents("pi", 1024, 0.005, noise=0.011)]
    [row] = best.make(frame(*cells)).to_dict("records")
    assert (row["best"], row["use"], row["winner"]) == ("fancy:x=1", "fancy:x=1", True)
    assert row["as_good"] == ["fancy:x=1", "pi"]
    cells = [documents("fancy:x=1", 1024, 0), documents("pi", 1024, 0.001, noise=0.02)]
    [row] = best.make(frame(*cells)).to_dict("records")
    assert (row["best"], row["use"], row["winner"]) == ("fancy:x=1", "pi", False)
    [strict] = best.make(frame(*cells), margin=0.01).to_dict("records")
    assert (strict["use"], strict["as_good"]) == ("fancy:x=1", None)


def test_what_a_server_can_run_is_used_and_the_best_is_named_beside_it():
    cells = [documents("yarn", 1024, 0.1), documents("rerope", 1024, 0), documents("pi", 1024, 1)]
    made = frame(*cells)
    made["needs_code"] = made["scaling"] == "rerope"
    table = best.make(made)
    [row] = table.to_dict("records")
    assert (row["best"], row["winner"]) == ("rerope", True)
    assert (row["use"], row["servable"]) == ("yarn", True)
    assert row["regret"] >= math.exp(0.1) - 1
    said = best.summary(table)[0]
    assert "`rerope`, which needs its own modelling code" in said
    [shown] = best.display(table).values()
    assert shown["as good as the best"].tolist() == ["rerope *"]
    level = frame(trials("rerope", 1024, 9), trials("yarn:factor=4", 1024, 9))
    level["needs_code"] = level["scaling"] == "rerope"
    assert best.make(level)["use"].tolist() == ["yarn:factor=4"]


def test_every_decision_says_what_truncation_gives():
    """The model at its own window reads the same targets: 0.2 nats worse than `far` at 4x."""
    [row] = rows(best.make(SWEEP), task="perplexity", length=1024).to_dict("records")
    assert row["truncation_score"] == pytest.approx(math.exp(2.59), rel=0.01)
    assert row["gain"] == pytest.approx(math.exp(-0.2) - 1)
    worse = frame(
        documents("none", 256, 0), documents("none", 1024, 2), documents("far", 1024, 0.1)
    )
    table = best.make(worse)
    assert "truncate to 256 tokens: the best scaling, `far`, is 10.5 % [" in best.summary(table)[1]
    assert best.answer(table)[0]["lengths"][-1]["use"] == "truncation to 256 tokens"


@pytest.mark.parametrize(("hits", "gains"), [(0, False), (6, False), (12, True)])
def test_where_truncation_is_better_on_the_text_retrieval_may_still_gain(hits, gains):
    """A window of a quarter of the text holds a quarter of the keys, of 20 at least none or 9."""
    keys = [trials("none", 1024, 0), trials("far", 1024, hits)]
    text = [documents("none", 256, 0), documents("none", 1024, 2), documents("far", 1024, 0.1)]
    table = best.make(frame(*text, *keys))
    assert any("but `passkey` gains" in text for text in best.summary(table)) == gains
    use = best.answer(table)[0]["lengths"][-1]["use"]
    assert use == ("far" if gains else "truncation to 256 tokens")


def test_the_cost_inside_the_window_is_that_of_the_form_that_is_used():
    """Equal frequencies at both lengths are the form that a server keeps; others are unknown."""
    cells = [documents("none", 256, 0), documents("none", 1024, 2)]
    fixed = [documents("yarn:factor=4", 256, 0.05, noise=0.03), documents("yarn:factor=4", 1024, 0)]
    for row in (row for rows in fixed for row in rows):
        row["frequencies"] = "yarn 4"
    [_, row] = best.make(frame(*cells, *fixed)).to_dict("records")
    assert row["use"] == "yarn:factor=4"
    assert row["cost"] == pytest.approx(math.exp(0.05) - 1)
    follows = [documents("far", 256, 0.01), documents("far", 1024, 0)]
    [_, row] = best.make(frame(*cells, *follows)).to_dict("records")
    assert pd.isna(row["cost"])


def test_every_method_has_its_bound():
    table = regret.make(SWEEP)
    read = rows(table, task="perplexity", length=1024).set_index("scaling")
    assert read["verdict"].to_dict() == {
        "none": "worse than another method", "far": "best", "near": "worse than another method",
    }  # fmt: skip
    assert read.loc["near", "regret"] >= math.exp(0.5) - 1
    assert read.loc["near", "difference"] == pytest.approx(math.exp(0.5) - 1)
    shown = regret.display(table)["perplexity [95 % interval], m"]
    assert shown["1024 (4×)"].tolist()[1] == "≤ 0 % (best)"


def test_methods_that_coincide_are_one_place():
    twin = documents("twin", 1024, -0.2)
    for row in twin:
        row["frequencies"] = "far/-0.2"
    table = best.make(pd.concat([SWEEP, frame(twin)]))
    [row] = rows(table, task="perplexity", length=1024).to_dict("records")
    assert (row["use"], row["same"], row["next"], row["methods"]) == ("far", ["twin"], "near", 3)


@pytest.mark.slow
def test_effective_length_by_hand():
    """Perplexity may not rise at all; retrieval must keep 85 % of the model's own 20 of 20."""
    cells = [trials("far", 512, 18), trials("far", 2048, 20), documents("far", 512, -0.1)]
    cells += [documents("near", 512, 0.1), documents("near", 2048, -0.3)]
    table = effective_length.make(pd.concat([SWEEP, frame(*cells)]))

    def reach(task: str, scaling: str) -> list[object]:
        ends = rows(table, task=task, scaling=scaling)[["effective_length", "low", "high"]]
        return [None if pd.isna(end) else end for end in ends.iloc[0]]

    # 18 of 20 is 90 % [70, 97]: it holds, not surely; 2048 counts not, for 1024 does not hold.
    # 20 of 20 is 100 % [84, 100]: with other frequencies than the model's own even that is not.
    assert reach("passkey", "far") == [512, None, 512]
    assert reach("passkey", "none") == [256, 256, 256]
    # 0.05 nats worse inside the window, which is what it costs there, and better beyond.
    assert reach("perplexity", "far") == [1024, 1024, 1024]
    # Worse at 512: that it is better again at 2048 counts not.
    assert reach("perplexity", "near") == [256, 256, 256]
    least = effective_length.make(SWEEP, kept=0.4)
    assert rows(least, task="passkey", scaling="far")["effective_length"].tolist() == [1024]


@pytest.mark.slow
def test_differences_are_paired_and_corrected():
    """Against the baseline: e^(-2.2) - 1 in perplexity, 0.45 in keys; all 4 corrected."""
    table = differences.make(SWEEP)
    [row] = rows(table, task="perplexity", scaling="far", length=1024).to_dict("records")
    assert row["difference"] == pytest.approx(math.exp(-2.2) - 1)
    assert row["verdict"] == "better"
    assert row["p"] <= row["p_all"] < 0.05
    [worse] = rows(table, task="perplexity", scaling="far", length=256).to_dict("records")
    assert worse["verdict"] == "worse"
    [keys] = rows(table, task="passkey", scaling="far", length=1024).to_dict("records")
    assert keys["difference"] == pytest.approx(0.45)
    turned = differences.make(SWEEP, baseline="far")
    listed = SWEEP.assign(scaling=SWEEP["scaling"].replace("far", "far:a=1,b=2"))
    named = differences.make(listed, baseline="far:a=1+b=2")
    assert set(named["baseline"]) == {"far:a=1,b=2"}
    assert list(named["difference"]) == list(turned["difference"])
    [back] = rows(turned, task="perplexity", scaling="none", length=1024).to_dict("records")
    assert back["difference"] == pytest.approx(math.exp(2.2) - 1)


def test_a_score_that_is_no_mean_of_its_samples_is_not_compared():
    own = SWEEP[SWEEP["task"] == "passkey"].assign(metric="mine")
    own["score"] = own["score"] ** 2 + 0.01
    table = best.make(own)
    assert table["regret"].isna().all()


# A run with lost documents, a method that collapses, and three that are equal.


def lost(rows: list[Row], units: Sequence[str], status: str = "not_finite") -> list[Row]:
    """Lose documents of a cell, whose own score is then that of the others."""
    left = [row for row in rows if row["unit"] not in units]
    found = ratio([float(str(r["value"])) for r in left], [TOKENS] * len(left))
    low, high = (math.exp(end or 0) for end in found.interval())
    own = {"score": math.exp(found.value), "low": low, "high": high, "n": len(left)}
    gone = {"status": status, "value": math.nan}
    return [{**row, **own, **(gone if row["unit"] in units else {})} for row in rows]


HARDEST = ("d2", "d4", "d7")


@pytest.mark.slow
def test_the_winner_and_its_lead_are_of_the_documents_that_all_have():
    """A method that lost its hardest documents has the lowest mean of its own, and is worse."""
    cells = [documents("none", 1024, 0.0), lost(documents("rerope", 1024, 0.05), HARDEST)]
    none, rerope = (float(str(rows[0]["score"])) for rows in cells)
    assert rerope < none
    table = best.make(frame(*cells))
    [row] = table.to_dict("records")
    assert (row["best"], row["next"], row["n"], row["asked"]) == ("none", "rerope", 17, 20)
    assert row["lead"] == pytest.approx(math.exp(-0.05) - 1)
    assert (
        "17 of 20 documents that all methods have; failed: `rerope` on 3" in best.summary(table)[0]
    )
    assert "(17 of 20)" in best.display(table).popitem()[1].to_csv()
    against = differences.make(frame(*cells))
    assert against["difference"].tolist() == [pytest.approx(math.exp(0.05) - 1)]
    assert "(17 of 20)" in differences.display(against).popitem()[1].to_csv()


@pytest.mark.slow
def test_a_method_that_failed_on_documents_is_not_called_better():
    """Lower on the 34 of 40 documents that it could do, which is said wherever it stands first."""
    better = documents("rerope", 1024, -0.1)
    verdicts = {"not_finite": "no significant difference", "not_measured": "better"}
    for status, verdict in verdicts.items():
        cells = [documents("none", 1024, 0), lost(better, HARDEST, status)]
        twice = [{**row, "unit": f"{row['unit']}b"} for rows in cells for row in rows]
        made = frame(*cells, twice)
        table, failed = differences.make(made), status == "not_finite"
        assert table["verdict"].tolist() == [verdict]
        assert ("†" in differences.display(table).popitem()[1].to_csv()) == failed
        table = best.make(made)
        assert table["winner"].tolist() == [not failed]
        assert ("rerope †" in best.display(table).popitem()[1].to_csv()) == failed


def test_a_method_with_few_documents_is_set_apart():
    few = lost(documents("slow", 1024, -1), [f"d{i}" for i in range(3, 20)], "not_measured")
    made = frame(documents("none", 1024, 0), documents("near", 1024, 0.3), few)
    [row] = best.make(made).to_dict("records")
    assert (row["best"], row["n"], row["apart"]) == ("none", 20, ["slow 3"])
    [_, slow] = differences.make(made).to_dict("records")
    assert (slow["scaling"], slow["verdict"]) == ("slow", "not compared")


def test_the_documents_needed_for_the_margin_are_said():
    cells = [documents("a", 1024, 0), documents("b", 1024, 0.01, noise=0.05)]
    table = best.make(frame(*cells))
    [row] = table.to_dict("records")
    assert row["use"] == "a"
    assert row["regret"] > 0.01
    assert 20 < row["needed"] < 200
    assert f"About {row['needed']} documents would bound that by 1 %." in best.summary(table)[0]


def test_truncation_is_scored_on_the_documents_that_are_compared():
    """Three hard documents are not measured far out: the gain is the ratio of the two scores."""
    far = [documents("none", 1024, 1), documents("far", 1024, -0.1)]
    for rows in far:
        for row in rows[:3]:
            row |= {"status": "not_measured", "value": math.nan}
        kept = [float(str(row["value"])) / TOKENS for row in rows[3:]]
        rows[:] = [{**row, "score": math.exp(sum(kept) / len(kept))} for row in rows]
    [_, row] = best.make(frame(documents("none", 256, 0), *far)).to_dict("records")
    assert (row["use"], row["n"]) == ("far", 17)
    assert row["gain"] == pytest.approx(row["score"] / row["truncation_score"] - 1)


def test_a_task_without_a_winner_leaves_the_choice_to_the_others():
    """Where passkeys tell no method from another, the method for both is that of perplexity."""
    losses = {"near": 0.1, "far": 0.2}
    texts = [documents(name, 1024, loss) for name, loss in losses.items()]
    for share in (0, 20):
        keys = [trials(name, 1024, share) for name in losses]
        [length] = best.answer(best.make(frame(*texts, *keys)))[0]["lengths"]
        assert length["use"] == "near"


def test_a_task_that_ends_at_a_shorter_length_does_not_hide_the_answer_of_the_other():
    """Keys to 1024 tokens, perplexity to 2048: there the method is that of perplexity."""
    cells = [documents(name, n, more) for name, more in (("a", 0), ("b", 1)) for n in (1024, 2048)]
    keys = [trials("a", 1024, 20), trials("b", 1024, 20)]
    [shown] = best.answer(best.make(frame(*cells, *keys)))
    answers = [(row["use"], row["bound"][:6]) for row in shown["lengths"]]
    assert answers == [("a", "at mos"), ("a", "winner")]


@pytest.mark.parametrize(
    ("report", "option", "value"),
    [(best, "margin", -1), (regret, "margin", -1), (effective_length, "kept", 85)],
)
def test_a_margin_below_zero_and_a_share_above_one_are_errors(report, option, value):
    with pytest.raises(ValueError, match=f"{option}={value} is invalid"):
        report.make(SWEEP, **{option: value})


def test_a_margin_of_nats_is_relative_to_the_score():
    """A window_kl of 0.004 nats is five times one of 0.0008, and not within 1 % of it."""
    cells = [documents("a", 1024, 0), documents("b", 1024, 0)]
    for rows, level in zip(cells, (0.0008, 0.004), strict=True):
        for index, row in enumerate(rows):
            row |= {"task": "window_kl", "metric": "window_kl", "protocol": None}
            noise = (-1) ** index * 0.01 if level > 0.001 else 0
            row |= {"value": level + noise, "weight": 1, "score": level}
    [row] = best.make(frame(*cells)).to_dict("records")
    assert (row["use"], row["winner"], row["as_good"]) == ("a", False, None)


def test_windows_of_a_document_are_one_unit():
    """Two windows each: twenty documents, and one that lost a window is not compared."""
    cells = [documents("none", 1024, 0.0), documents("far", 1024, -0.3)]
    twice = [[{**row, "turn": turn} for row in rows for turn in (0, 1)] for rows in cells]
    twice[1][3] |= {"status": "failed", "value": math.nan}
    good = [float(str(row["value"])) for row in twice[1] if row["status"] == "ok"]
    twice[1] = [{**row, "score": math.exp(sum(good) / len(good) / TOKENS)} for row in twice[1]]
    [row] = best.make(frame(*twice)).to_dict("records")
    assert (row["n"], row["asked"], row["best"]) == (19, 20, "far")
    assert row["lead"] == pytest.approx(math.exp(-0.3) - 1)


def test_curves_show_what_truncation_gives():
    figure = curves.make(SWEEP)
    read, keys = figure.axes
    level = math.exp(
        ratio([row["value"] for row in documents("none", 256, 0)], [TOKENS] * 20).value
    )
    [line] = [part for part in read.collections if part.get_label() == "_truncation"]
    assert line.get_segments()[0].ravel() == pytest.approx([256, level, 1024, level])
    assert not [part for part in keys.collections if part.get_label() == "_truncation"]


def test_no_method_is_named_to_use_where_none_scores() -> None:
    table = best.make(frame(trials("none", 512, 0), trials("yarn", 512, 0)))
    [shown] = best.display(table).values()
    assert shown.loc[0, ["use", "best"]].tolist() == ["", ""]
    [length] = best.answer(table)[0]["lengths"]
    assert (length["use"], length["bound"]) == ("", "no method scores above 0")
