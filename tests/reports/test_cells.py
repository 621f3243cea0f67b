"""The table of cells and its sentences, on sweeps small enough to work out by hand."""

import math
from collections.abc import Sequence

import pandas as pd
import pytest

from ropewalk.harness.reports import cells, verdict
from ropewalk.tasks._intervals import proportion, ratio
from tests.frames import Row, asked

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


def at(made: pd.DataFrame, **options: object) -> pd.DataFrame:
    """Return the table of cells by task, scaling and length."""
    return cells.make(made, **options).set_index(["task", "scaling", "length"]).sort_index()


def said(made: pd.DataFrame) -> str:
    """Return the last sentence of a frame."""
    return verdict.sentences(cells.make(made))[-1]


def test_a_winner_is_named_with_its_lead_and_a_draw_with_its_bound():
    """0.5 nats under the next is a ratio of e^-0.5, which wins; 10 keys of 20 and 9 do not."""
    table = at(SWEEP)
    read = table.loc["perplexity"].xs(1024, level="length")
    assert read["winner"].to_dict() == {"none": False, "far": True, "near": False}
    assert read["use"].to_dict() == read["as_good"].to_dict() == read["winner"].to_dict()
    assert read.loc["near", "above"] == pytest.approx(math.exp(0.5) - 1)
    assert read.loc["near", "regret"] >= math.exp(0.5) - 1
    assert read.loc["far", ["above", "regret"]].tolist() == [0, 0]
    keys = table.loc["passkey"].xs(1024, level="length")
    assert keys["use"].to_dict() == {"none": False, "far": False, "near": True}
    assert keys["possible"].to_dict() == {"none": False, "far": True, "near": True}
    assert not keys["winner"].any()
    assert 0.08 < keys.loc["near", "regret"] < 0.2
    overall = table["overall_regret"].xs(1024, level="length").dropna()
    assert overall.index.tolist() == [("passkey", "far"), ("perplexity", "far")]
    lines = verdict.sentences(cells.make(SWEEP))
    assert lines[-3].startswith("4x: use far for all tasks, at most ")
    assert lines[-2].startswith("4x, perplexity: use far 10.8 [")
    assert "], the best; next near 17.8, +65 % [+6" in lines[-2]
    assert lines[-2].endswith("; truncation 13.2 (worse).")
    assert "use near 50 % [30, 70], at most 11 pp worse than the best (95 %)" in lines[-1]


def test_a_method_within_the_margin_is_as_good_and_the_plainest_is_used():
    """Half a percent more on every document is as good by a margin of 1 %, not by one of 0.1 %."""
    made = [documents("fancy:x=1", 1024, 0), documents("pi", 1024, 0.005, noise=0.011)]
    table = at(frame(*made)).droplevel([0, 2])
    assert table["winner"].to_dict() == {"fancy:x=1": True, "pi": False}
    assert table["use"].tolist() == [True, False]
    assert table["as_good"].all()
    made = [documents("fancy:x=1", 1024, 0), documents("pi", 1024, 0.001, noise=0.02)]
    table = at(frame(*made)).droplevel([0, 2])
    assert (table["use"].tolist(), table["winner"].any()) == ([False, True], False)
    strict = at(frame(*made), margin=0.01).droplevel([0, 2])
    assert (strict["use"].tolist(), strict["as_good"].any()) == ([True, False], False)


def test_what_a_server_can_run_is_used_and_the_best_is_named_beside_it():
    made = [documents("yarn", 1024, 0.1), documents("rerope", 1024, 0), documents("pi", 1024, 1)]
    coded = frame(*made)
    coded["needs_code"] = coded["scaling"] == "rerope"
    table = at(coded).droplevel([0, 2])
    assert table.loc["rerope", ["best", "winner", "use"]].tolist() == [True, True, False]
    assert table.loc["yarn", "use"]
    assert table.loc["yarn", "regret"] >= math.exp(0.1) - 1
    assert "the best is rerope (needs its own code) 13.2" in said(coded)
    level = frame(trials("rerope", 1024, 9), trials("yarn:factor=4", 1024, 9))
    level["needs_code"] = level["scaling"] == "rerope"
    assert at(level)["use"].tolist() == [False, True]


def test_every_decision_says_what_truncation_gives():
    """The model at its own window reads the same targets: 0.2 nats worse than `far` at 4x."""
    row = at(SWEEP).loc["perplexity", "far", 1024]
    assert row["truncation"] == pytest.approx(math.exp(2.59), rel=0.01)
    assert row["change"] == pytest.approx(math.exp(-0.2) - 1)
    worse = frame(
        documents("none", 256, 0), documents("none", 1024, 2), documents("far", 1024, 0.1)
    )
    assert said(worse).startswith("4x: truncate to 256 tokens, 13.2 (far +11 % [+11, +11]); else ")


@pytest.mark.parametrize(("hits", "gains"), [(0, False), (6, False), (12, True)])
def test_where_truncation_is_better_on_the_text_retrieval_may_still_gain(hits, gains):
    """A window of a quarter of the text holds a quarter of the keys, of 20 at least none or 9."""
    keys = [trials("none", 1024, 0), trials("far", 1024, hits)]
    text = [documents("none", 256, 0), documents("none", 1024, 2), documents("far", 1024, 0.1)]
    lines = verdict.sentences(cells.make(frame(*text, *keys)))
    assert any("truncation 13.2 (better), but passkey gains" in line for line in lines) == gains
    assert any("truncate to 256 tokens" in line for line in lines) != gains
    assert gains or not any("for all tasks" in line for line in lines)


def test_the_cost_inside_the_window_is_that_of_the_form_that_is_used():
    """Equal frequencies at both lengths are the form that a server keeps; others are unknown."""
    plain = [documents("none", 256, 0), documents("none", 1024, 2)]
    fixed = [documents("yarn:factor=4", 256, 0.05), documents("yarn:factor=4", 1024, 0)]
    for row in (row for rows in fixed for row in rows):
        row["frequencies"] = "yarn 4"
    made = frame(*plain, *fixed)
    row = at(made).loc["perplexity", "yarn:factor=4", 1024]
    assert row["use"]
    assert row["cost"] == pytest.approx(math.exp(0.05) - 1)
    assert "+5.1 % [+5.1, +5.1] inside the window" in said(made)
    follows = [documents("far", 256, 0.01), documents("far", 1024, 0)]
    assert pd.isna(at(frame(*plain, *follows)).loc["perplexity", "far", 1024]["cost"])


def test_methods_that_coincide_are_one_measurement():
    twin = documents("twin", 1024, -0.2)
    for row in twin:
        row["frequencies"] = "far/-0.2"
    table = at(pd.concat([SWEEP, frame(twin)])).loc["perplexity"].xs(1024, level="length")
    assert table["same_as"].dropna().to_dict() == {"twin": "far"}
    assert table["winner"].to_dict() == {"none": False, "far": True, "near": False, "twin": True}


@pytest.mark.slow
def test_effective_length_by_hand():
    """Perplexity may not rise at all; retrieval must keep 85 % of the model's own 20 of 20."""
    more = [trials("far", 512, 18), trials("far", 2048, 20), documents("far", 512, -0.1)]
    more += [documents("near", 512, 0.1), documents("near", 2048, -0.3)]
    table = at(pd.concat([SWEEP, frame(*more)]))

    def reach(task: str, scaling: str) -> list[int]:
        ends = table.loc[task, scaling].filter(regex="^effective")
        assert len(ends.drop_duplicates()) == 1
        return ends.iloc[0].tolist()

    # 18 of 20 is 90 % [70, 97]: it holds, not surely; 2048 counts not, for 1024 does not hold.
    # 20 of 20 is 100 % [84, 100]: with other frequencies than the model's own even that is not.
    assert reach("passkey", "far") == [512, 0, 512]
    assert reach("passkey", "none") == [256, 256, 256]
    # 0.05 nats worse inside the window, which is what it costs there, and better beyond.
    assert reach("perplexity", "far") == [1024, 1024, 1024]
    # Worse at 512: that it is better again at 2048 counts not.
    assert reach("perplexity", "near") == [256, 256, 256]
    least = at(SWEEP, kept=0.4)
    assert least.loc["passkey", "far"]["effective_length"].tolist() == [1024, 1024]


@pytest.mark.parametrize(
    ("hits", "n", "kept", "reach"),
    [
        ({512: 20, 1024: 16, 2048: 18}, 20, 0.85, 512),  # against the shortest length
        ({512: 20, 1024: 16, 2048: 18}, 20, 0.8, 2048),
        # 119 of 250 are 85 % of 140, though 0.85 x 0.56 is more than 0.476 in floats.
        ({1024: 140, 2048: 119, 4096: 118}, 250, 0.85, 2048),
    ],
)
def test_retrieval_is_effective_while_it_keeps_its_share(hits, n, kept, reach):
    made = [asked("passkey", "none", at, [1.0] * k + [0.0] * (n - k)) for at, k in hits.items()]
    assert at(frame(*made), kept=kept)["effective_length"].tolist() == [reach] * 3


def found(scaling: str, *lengths: int) -> list[Row]:
    return [row for length in lengths for row in asked("passkey", scaling, length, [1.0] * 20)]


@pytest.mark.parametrize(("status", "most"), [("out_of_memory", 4096), ("failed", 2048)])
def test_what_was_not_measured_is_no_proof_of_failure(status, most):
    """All keys found to 2048 and a lost cell at 4096: at most 4096 or more; a failure ends it."""
    inside = [found("none", 1024), asked("passkey", "none", 2048, [0.0] * 20)]
    inside += [found("yarn", 1024, 2048)]
    table = at(frame(*inside, asked("passkey", "yarn", 4096, [None] * 20, status=status)))
    row = table.loc["passkey", "yarn", 4096]
    assert row[["effective_length", "effective_high"]].tolist() == [2048, most]


def test_bits_per_byte_by_hand():
    """600 nats over 800 bytes are 0.75 / ln 2 bits; the interval is of the ratio over documents."""
    nats, size = [200.0, 400.0, 250.0, 350.0], [300.0, 500.0, 200.0, 700.0]
    rows = documents("none", 1024, 0)[:4]
    made = [
        {**row, "value": value, "bytes": count}
        for row, value, count in zip(rows, nats, size, strict=True)
    ]
    row = cells.make(pd.DataFrame(made[:2])).iloc[0]
    assert row["bits_per_byte"] == pytest.approx(0.75 / math.log(2))
    assert (row["tokens"], row["bytes"]) == (200, 800)
    row = cells.make(pd.DataFrame(made)).iloc[0]
    low, high = ratio(nats, size).interval()
    assert low is not None
    assert high is not None
    assert row["bits_low"] == pytest.approx(low / math.log(2))
    assert row["bits_high"] == pytest.approx(high / math.log(2))
    lacking = [made[0], {**made[1], "bytes": math.nan}]
    assert pd.isna(cells.make(pd.DataFrame(lacking)).iloc[0]["bits_per_byte"])


@pytest.mark.slow
def test_differences_are_paired_and_corrected():
    """Against the baseline: e^(-2.2) - 1 in perplexity, 0.45 in keys; all 4 corrected."""
    table = at(SWEEP)
    row = table.loc["perplexity", "far", 1024]
    assert row["difference"] == pytest.approx(math.exp(-2.2) - 1)
    assert row["verdict"] == "better"
    assert row["p"] <= row["p_all"] < 0.05
    assert table.loc["perplexity", "far", 256]["verdict"] == "worse"
    assert table.loc["passkey", "far", 1024]["difference"] == pytest.approx(0.45)
    listed = SWEEP.assign(scaling=SWEEP["scaling"].replace("far", "far:a=1,b=2"))
    turned = cells.make(listed, baseline="far:a=1+b=2")
    assert set(turned["baseline"].dropna()) == {"far:a=1,b=2"}
    with pytest.raises(ValueError, match="nothing to compare with 'fare': the scores are of"):
        cells.make(SWEEP, baseline="fare")
    back = turned.set_index(["task", "scaling", "length"]).loc["perplexity", "none", 1024]
    assert back["difference"] == pytest.approx(math.exp(2.2) - 1)


def test_a_score_that_is_no_mean_of_its_samples_is_not_compared():
    own = SWEEP[SWEEP["task"] == "passkey"].assign(metric="mine")
    own["score"] = own["score"] ** 2 + 0.01
    assert cells.make(own)["regret"].isna().all()


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
    made = [documents("none", 1024, 0.0), lost(documents("rerope", 1024, 0.05), HARDEST)]
    none, rerope = (float(str(rows[0]["score"])) for rows in made)
    assert rerope < none
    row = at(frame(*made)).loc["perplexity", "rerope", 1024]
    assert (row["best"], row["compared"], row["asked"]) == (False, 17, 20)
    assert row[["above", "difference"]].tolist() == pytest.approx([math.exp(0.05) - 1] * 2)
    assert "(17 of 20)" in said(frame(*made))
    assert "failed on documents of 20: rerope 3" in said(frame(*made))
    assert "(17 of 20)" in cells.differences(cells.make(frame(*made))).popitem()[1].to_csv()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "word"), [("not_finite", "no significant difference"), ("not_measured", "better")]
)
def test_a_method_that_failed_on_documents_is_not_called_better(status, word):
    """Lower on the 34 of 40 documents that it could do, which is said wherever it stands first."""
    made = [documents("none", 1024, 0), lost(documents("rerope", 1024, -0.1), HARDEST, status)]
    twice = [{**row, "unit": f"{row['unit']}b"} for rows in made for row in rows]
    table, failed = cells.make(frame(*made, twice)), status == "not_finite"
    assert table["verdict"].dropna().tolist() == [word]
    assert ("†" in cells.differences(table).popitem()[1].to_csv()) == failed
    assert table["winner"].any() != failed


def test_truncation_is_scored_on_the_documents_that_are_compared():
    """Three hard documents are not measured far out: the change is the ratio of the two scores."""
    far = [documents("none", 1024, 1), documents("far", 1024, -0.1)]
    for rows in far:
        for row in rows[:3]:
            row |= {"status": "not_measured", "value": math.nan}
        kept = [float(str(row["value"])) / TOKENS for row in rows[3:]]
        rows[:] = [{**row, "score": math.exp(sum(kept) / len(kept))} for row in rows]
    row = at(frame(documents("none", 256, 0), *far)).loc["perplexity", "far", 1024]
    assert (row["use"], row["compared"]) == (True, 17)
    assert row["change"] == pytest.approx(row["score"] / row["truncation"] - 1)


def test_a_task_without_a_winner_leaves_the_choice_to_the_others():
    """Where passkeys tell no method from another, the method for both is that of perplexity."""
    losses = {"near": 0.1, "far": 0.2}
    texts = [documents(name, 1024, loss) for name, loss in losses.items()]
    for share in (0, 20):
        keys = [trials(name, 1024, share) for name in losses]
        table = cells.make(frame(*texts, *keys))
        assert set(table["scaling"][table["overall_regret"].notna()]) == {"near"}
    assert "4x, passkey: every method scores 0" in " ".join(
        verdict.sentences(cells.make(frame(*texts, *(trials(name, 1024, 0) for name in losses))))
    )


def test_the_method_for_all_tasks_is_the_best_by_its_means_not_by_the_narrowest_bound():
    """At 22 % and 49 % above the best text, the noisier one is chosen, as for that task alone."""
    near, far, text = (documents("near", 1024, 0.4), documents("far", 1024, 0.2, noise=1),
                       documents("text", 1024, 0))  # fmt: skip
    keys = [trials("near", 1024, 20), trials("far", 1024, 20), trials("text", 1024, 0)]
    table = at(frame(near, far, text, *keys))
    assert table.loc[("perplexity", "far"), "regret"].item() > (
        table.loc[("perplexity", "near"), "regret"].item()
    )
    chosen = table["overall_regret"].dropna()
    assert set(chosen.index.get_level_values("scaling")) == {"far"}
    assert set(chosen) == {table.loc[("perplexity", "far"), "regret"].item()}


def test_a_margin_of_nats_is_relative_to_the_score():
    """A window_kl of 0.004 nats is five times one of 0.0008, and not within 1 % of it."""
    made = [documents("a", 1024, 0), documents("b", 1024, 0)]
    for rows, level in zip(made, (0.0008, 0.004), strict=True):
        for index, row in enumerate(rows):
            row |= {"task": "window_kl", "metric": "window_kl", "protocol": None}
            noise = (-1) ** index * 0.01 if level > 0.001 else 0
            row |= {"value": level + noise, "weight": 1, "score": level}
    table = at(frame(*made)).droplevel([0, 2])
    assert table["use"].to_dict() == {"a": True, "b": False}
    assert not table[["winner", "as_good"]].any(axis=None)


def test_windows_of_a_document_are_one_unit():
    """Two windows each: twenty documents, and one that lost a window is not compared."""
    made = [documents("none", 1024, 0.0), documents("far", 1024, -0.3)]
    twice = [[{**row, "turn": turn} for row in rows for turn in (0, 1)] for rows in made]
    twice[1][3] |= {"status": "failed", "value": math.nan}
    good = [float(str(row["value"])) for row in twice[1] if row["status"] == "ok"]
    twice[1] = [{**row, "score": math.exp(sum(good) / len(good) / TOKENS)} for row in twice[1]]
    table = at(frame(*twice)).droplevel([0, 2])
    assert table.loc["far", ["compared", "asked", "best"]].tolist() == [19, 20, True]
    assert table.loc["none", "above"] == pytest.approx(math.exp(0.3) - 1)
