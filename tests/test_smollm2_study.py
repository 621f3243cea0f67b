"""The numbers in ``results/smollm2/README.md`` are computed here again from its samples."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ropewalk as rw
from harness.reports import differences, regret, scores
from harness.stats.paired import Difference, of_means

STUDY = Path(__file__).parents[1] / "results" / "smollm2"
TEXT = (STUDY / "README.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())
WINDOW, FAR = 8192, 16_384
STARRED = {"self_extend", "dual_chunk", "lm_infinite", "rerope"}
METHODS = [
    "self_extend", "dual_chunk", "lm_infinite", "ntk_by_parts", "yarn", "rerope", "ntk", "pi",
    "none",
]  # fmt: skip
MARKS = {"exact": "●", "format": "○", "wrong": "–"}


@cache
def frame(part: str) -> pd.DataFrame:
    return rw.frame(STUDY / part)


@cache
def losses(part: str, length: int) -> pd.DataFrame:
    """Return the summed loss of each document under each method."""
    every = frame(part)
    cell = every[(every["length"] == length) & (every["status"] == "ok")]
    return cell.pivot(index="unit", columns="scaling", values="value")


def tokens(part: str) -> float:
    (count,) = frame(part)["weight"].dropna().unique()
    return float(count)


def perplexity(method: str, length: int, part: str = "perplexity") -> float:
    return math.exp(losses(part, length)[method].mean() / tokens(part))


def between(method: str, length: int, other: str, base: int) -> Difference:
    """Return the paired difference of two cells in nats per token, over the books."""
    costs = losses("perplexity", length)[method] - losses("perplexity", base)[other]
    weights = np.full((len(costs), 1), tokens("perplexity"))
    (difference,) = of_means(costs.to_numpy()[:, None], weights, relative=True)
    return difference


def signed(ratio: float) -> str:
    """Return a relative change in per cent: one digit after the point."""
    return f"{100 * ratio:+.1f}".replace("-", "−")


def change(difference: Difference) -> str:
    value, low, high = difference.value, difference.low, difference.high
    assert low is not None
    assert high is not None
    if value > 1:
        digits = 1 if value < 9 else 0
        times = [f"{1 + end:.{digits}f}" for end in (value, low, high)]
        return f"{times[0]} times [{times[1]}, {times[2]}]"
    return f"{signed(value)} % [{signed(low)}, {signed(high)}]"


def bound(value: float) -> str:
    if value > 1:
        return f"{1 + value:.0f} times"
    return f"{100 * value:.2g} %" if value >= 0.1 else f"{100 * value:.1f} %"


def one(table: pd.DataFrame, method: str, length: int) -> pd.DataFrame:
    return table[(table["scaling"] == method) & (table["length"] == length)]


def figure(value: float) -> str:
    return f"{value:.0f}" if value > 100 else f"{value:.1f}"


def interval(part: str, method: str, length: int) -> tuple[float, float]:
    row = one(scores.make(frame(part)), method, length)
    return row["low"].item(), row["high"].item()


def worst(part: str, method: str, length: int = FAR) -> float:
    """Return how much worse than the best a method is at most."""
    return float(one(regret.make(frame(part)), method, length)["regret"].item())


@pytest.mark.parametrize("method", METHODS)
def test_a_row_of_the_perplexity_table_is_that_of_the_samples(method):
    """Perplexity, its interval, the paired change from truncation, and the bound on regret."""
    name = {"ntk": "`ntk` = `dynamic_ntk`"}.get(method, f"`{method}`")
    name += " *" if method in STARRED else ""
    wide = perplexity(method, FAR) > 100
    low, high = (f"{end:.{0 if wide else 1}f}" for end in interval("perplexity", method, FAR))
    above = (losses("perplexity", FAR)[method] > losses("perplexity", WINDOW)["none"]).sum()
    books = f"{above} of 8" if method == METHODS[0] else f"{above}"
    cells = [
        name,
        f"{figure(perplexity(method, FAR))} [{low}, {high}]",
        change(between(method, FAR, "none", WINDOW)),
        books,
        bound(worst("perplexity", method)),
    ]
    assert f"| {' | '.join(cells)} |" in TEXT


def test_the_claims_on_perplexity_are_those_of_the_samples():
    """The verdicts on the literature, number by number."""
    ratios = losses("perplexity", FAR).sub(losses("perplexity", WINDOW)["none"], axis=0)
    each = np.exp(ratios / tokens("perplexity"))
    low, high = each["none"].min(), each["none"].max()
    assert f"each book is {low:.0f} to {high:.0f} times that at 8192 tokens" in FLAT
    low, high = each["pi"].min(), each["pi"].max()
    assert f"each book is {low:.1f} to {high:.1f} times that inside the window" in FLAT
    assert (each["ntk"] > 1).all()
    assert f"by {100 * between('ntk', FAR, 'none', WINDOW).value:.0f} % on average" in FLAT
    for method, name in (("self_extend", "Self-Extend is"), ("lm_infinite", "LM-Infinite")):
        less = between(method, FAR, "ntk", FAR)
        assert less.lower == 8
        assert less.low is not None
        assert less.high is not None
        value, low, high = (f"{-100 * end:.1f}" for end in (less.value, less.high, less.low))
        assert f"{name} {value} %" in FLAT
        assert f"{name} {value} % [{low}, {high}]" in FLAT
    for method in ("yarn", "ntk_by_parts", "dual_chunk", "self_extend", "rerope", "lm_infinite"):
        assert not between(method, FAR, "none", WINDOW).significant()
    assert f"not seen here: {change(between('yarn', FAR, 'ntk_by_parts', FAR))}" in FLAT
    for method in ("dual_chunk", "rerope"):
        inside = between(method, WINDOW, "none", WINDOW)
        assert change(inside) in FLAT
        assert not inside.significant()
    own = losses("perplexity", WINDOW)
    for method in (
        "yarn",
        "ntk",
        "ntk_by_parts",
        "pi",
        "self_extend",
        "lm_infinite",
        "dynamic_ntk",
    ):
        assert own[method].equals(own["none"])


@pytest.mark.parametrize(
    "row", [line for line in TEXT.splitlines() if line.startswith("| `") and line.count("|") == 10]
)
def test_a_row_of_the_passkey_table_is_that_of_the_samples(row):
    """Every answer by depth; counted strictly, and by its digits."""
    method, length, *answers, strict, lenient = (cell.strip() for cell in row.split("|")[1:-1])
    method, far = method.strip("`"), int(length.replace(",", ""))
    cell = one(frame("passkey"), method, far).sort_values("depth")
    assert [MARKS[found] for found in cell["found"]] == answers
    assert int(strict) == cell["value"].sum()
    assert int(lenient) == (cell["found"] != "wrong").sum()


def test_no_answer_in_the_chat_template_is_strictly_right():
    cell = frame("passkey_chat")
    digits = (cell["found"] != "wrong").groupby([cell["scaling"], cell["length"]]).sum()
    assert not cell["value"].any()
    assert digits["none"].to_dict() == {WINDOW: 4, FAR: 0}
    assert [digits[name][FAR] for name in ("lm_infinite", "yarn", "self_extend")] == [1, 4, 5]


def test_recall_in_ruler_is_that_of_the_samples():
    """The table, a mean over tasks; and the statements on single needles."""
    answers = frame("ruler")
    recall = answers.groupby(["scaling", "length"])["value"].mean()
    same = {
        method: [
            recall[method][length] == recall["none"][length] for length in recall["none"].index
        ]
        for method in ("yarn", "self_extend", "dual_chunk")
    }
    for method in ("none", *same):
        cells = [f"`{method}`"]
        for place, length in enumerate(recall[method].index):
            low, high = interval("ruler", method, length)
            value = f"{100 * recall[method][length]:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
            cells.append("=" if method != "none" and same[method][place] else value)
        cells.append(f"{100 * recall[method].mean():.1f} %")
        assert f"| {' | '.join(cells)} |" in TEXT
    assert not answers.query("scaling == 'none' and length == @FAR")["value"].any()
    past = differences.make(answers).query("length == 16384").set_index("scaling")
    for method, words in (
        ("yarn", "YaRN is {} points"),
        ("self_extend", "Self-Extend {}"),
        ("dual_chunk", "Dual Chunk Attention {}"),
    ):
        value, low, high = (round(100 * past[end][method]) for end in ("difference", "low", "high"))
        assert words.format(value) in FLAT
        assert f"{value} points [{low}, {high}]" in FLAT or f"{value} [{low}, {high}]" in FLAT
    single = answers[answers["part"].isin(["niah_single_1", "niah_single_2"])]
    beyond = (single["scaling"] == "none") & (single["length"] == FAR)
    assert single[~beyond]["value"].all()


def test_the_search_is_that_of_the_samples():
    """Perplexity of each method on the books of the search and on those held out."""
    tuned = frame("tune").query("status == 'ok'")
    found = tuned["scaling"][tuned["scaling"].str.startswith("yarn:factor=1.912,")].iloc[0]
    table = tuned.pivot_table(index="unit", columns="scaling", values="value")
    searched = table[[name for name in table if name.startswith("yarn:")]].notna().sum(axis=1)
    search = searched.index[searched > 1]
    assert len(search) == len(table) - len(search) == 4
    count = tokens("tune")
    for method in (found, "yarn", "mr_rope", "ntk_by_parts", "critical_ntk", "ntk", "pi"):
        near, held = (
            math.exp(table.loc[books, method].mean() / count)
            for books in (search, table.index.difference(search))
        )
        digits = 1 if held > 100 else 2
        assert f"{method.removeprefix('yarn:')}` | {near:.2f} | {held:.{digits}f} |" in TEXT


def test_as_many_samples_of_the_newer_methods_are_measured_as_the_page_says():
    status = frame("newer")["status"]
    assert f"{(status == 'ok').sum()} of the {len(status)} samples are measured" in FLAT
