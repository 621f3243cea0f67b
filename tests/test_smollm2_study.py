"""The numbers in ``results/smollm2/README.md`` are computed here again from its samples."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import ropewalk as rw
from harness.reports import best, differences, regret, scores
from harness.stats.paired import Difference, of_means, of_shares
from harness.stats.selection import select_means
from harness.sweep.plan import make_plan
from harness.sweep.spec import Spec
from scaling import mesa
from scaling.types import Bands, Rope
from tasks._intervals import ratios
from tests.tiny import save_tiny

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
def cut_off(part: str) -> pd.DataFrame:
    """Return the samples of truncation in a retrieval task."""
    folder = STUDY / "truncated"
    return rw.frame(folder / part, [str(folder / f"truncated_{part.partition('_')[0]}.py")])


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


def difference(costs: pd.Series, count: float, *, relative: bool = True) -> Difference:
    """Return the mean of summed losses of ``count`` tokens each, over documents."""
    weights = np.full((len(costs), 1), count)
    (one,) = of_means(costs.to_numpy()[:, None], weights, relative=relative)
    return one


def between(method: str, length: int, other: str, base: int) -> Difference:
    """Return the paired difference of two cells, relative to perplexity, over the books."""
    costs = losses("perplexity", length)[method] - losses("perplexity", base)[other]
    return difference(costs, tokens("perplexity"))


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


def brief(one: Difference) -> str:
    """Return a difference whose wide ends have no decimals."""
    assert one.low is not None
    assert one.high is not None
    digits = [0 if abs(end) >= 0.0995 else 1 for end in (one.low, one.high)]
    low, high = (f"{100 * end:+.{n}f}" for end, n in zip((one.low, one.high), digits, strict=True))
    value = f"{100 * one.value:+.{0 if one.value > 1 else 1}f}"
    return f"{value} % [{low}, {high}]".replace("-", "−")


def bound(value: float) -> str:
    """Return a bound, which is rounded up."""
    if value > 1:
        return f"{math.ceil(1 + value)} times"
    return f"{math.ceil(100 * value)} %" if value >= 0.1 else f"{math.ceil(1000 * value) / 10} %"


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
    assert f"Not seen: {change(between('yarn', FAR, 'ntk_by_parts', FAR))}" in FLAT
    between_both = between("rerope", WINDOW, "dual_chunk", WINDOW)
    assert f"`rerope` is {change(between_both)} above `dual_chunk`" in FLAT
    assert between_both.significant()
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
    "row",
    [
        line
        for line in TEXT.splitlines()
        if re.match("[|] (`|truncation [|] 16)", line) and line.count("|") == 10
    ],
)
def test_a_row_of_the_passkey_table_is_that_of_the_samples(row):
    """Every answer by depth; counted strictly, and by its digits."""
    method, length, *answers, strict, lenient = (cell.strip() for cell in row.split("|")[1:-1])
    method, far = method.strip("`"), int(length.replace(",", ""))
    cut = method == "truncation"
    samples = one(cut_off("passkey"), "none", far) if cut else one(frame("passkey"), method, far)
    cell = samples.sort_values("depth")
    assert [MARKS[found] for found in cell["found"]] == answers
    assert int(strict) == cell["value"].sum()
    assert int(lenient) == (cell["found"] != "wrong").sum()


def test_no_answer_in_the_chat_template_is_strictly_right():
    cell = frame("passkey_chat")
    digits = (cell["found"] != "wrong").groupby([cell["scaling"], cell["length"]]).sum()
    assert not cell["value"].any()
    assert digits["none"].to_dict() == {WINDOW: 4, FAR: 0}
    assert [digits[name][FAR] for name in ("lm_infinite", "yarn", "self_extend")] == [1, 4, 5]
    cut = cut_off("passkey_chat").query("length == @FAR")
    assert not cut["value"].any()
    assert (cut["found"] != "wrong").sum() == 2


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
    hidden = answers.query("scaling == 'none' and length == @FAR").set_index(["part", "trial"])
    hidden = hidden.filter(like="niah", axis=0)
    value = hidden["answer"].str.partition(", ")[0].unstack()
    alike = value.eq(value.loc["niah_single_1"]).all(axis=1)
    assert (alike.sum(), len(alike)) == (6, 8)
    depth = (hidden["needle"] / FAR).unstack()
    assert (depth - depth.loc["niah_single_1"]).abs().lt(0.01).all(axis=1).sum() == 3
    single = answers[answers["part"].isin(["niah_single_1", "niah_single_2"])]
    beyond = (single["scaling"] == "none") & (single["length"] == FAR)
    assert single[~beyond]["value"].all()


def test_truncation_in_ruler_is_that_of_the_samples():
    """Its row, the paired differences from it, and the same grades on both processors."""
    answers, cut = frame("ruler"), cut_off("ruler")
    plain = answers.query("scaling == 'none'")
    short, far = (cut.query("length == @length") for length in (1024, FAR))
    known = plain.query("length == 1024").set_index("unit")["value"]
    assert short.set_index("unit")["value"].to_dict() == known.to_dict()
    recall, (low, high) = far["value"].mean(), far[["low", "high"]].iloc[0]
    inside = plain.query("length <= @WINDOW").groupby("length")["value"].mean()
    average = (inside.sum() + recall) / 5
    value = f"{100 * recall:.1f} % [{100 * low:.0f}, {100 * high:.0f}]"
    assert f"| truncation | = | = | = | = | {value} | {100 * average:.1f} % |" in TEXT
    task, model = (answers[name].iloc[0] for name in ("task", "model"))
    far = far.assign(task=task, model=model, scaling="truncation", frequencies="truncation")
    both = pd.concat([answers.query("length == @FAR"), far], ignore_index=True)
    rows = differences.make(both, baseline="truncation").set_index("scaling")
    ends = rows.loc[["yarn", "self_extend", "dual_chunk"], ["difference", "low", "high"]]
    yarn, self_extend, dual_chunk = (
        "{}{} [{}, {}]".format(
            f"{value:.0f}", unit, *(f"{end:.0f}".replace("-", "−") for end in row)
        )
        for (value, *row), unit in zip((100 * ends).to_numpy(), (" points", "", ""), strict=True)
    )
    told = f"{yarn} for YaRN, {self_extend} for Self-Extend and {dual_chunk} for Dual Chunk"
    assert f"from truncation is {told}" in FLAT
    means = answers.query("length == @FAR").groupby("scaling")["value"].mean()
    assert f"{100 * means['yarn']:.1f} % under YaRN and {100 * recall:.1f} % under" in FLAT
    texts = [one.query("length == 1024").set_index("unit")["said"] for one in (cut, plain)]
    assert texts[0].eq(texts[1]).sum() == 20
    single = far[far["found"].notna()]
    lost = single["needle"] < FAR - WINDOW
    assert FAR - WINDOW - single[lost]["needle"].min() < 3400
    easy = single["part"].isin(["niah_single_1", "niah_single_2"])
    assert (easy.sum(), single[easy]["value"].sum()) == (4, 2)
    assert (lost.sum(), len(single)) == (6, 12)
    assert (single[lost]["value"].sum(), single[~lost]["value"].sum()) == (0, 2)


@cache
def again(part: str) -> pd.DataFrame:
    """Return the samples of RULER on other prompts: whole, or cut on the left or in the middle."""
    cuts = {"left": "truncated_ruler.py", "middle": "middle_ruler.py"}
    tasks = [str(STUDY / "truncated" / cuts[part])] if part in cuts else []
    return rw.frame(STUDY / "ruler_again" / part, tasks)


def points(gains: pd.Series) -> str:
    """Return a mean difference of recall over independent prompts, in percentage points."""
    [one] = of_shares(gains.to_numpy()[:, None])
    ends = (one.value, one.low, one.high)
    value, low, high = (f"{100 * end:.0f}".replace("-", "−") for end in ends if end is not None)
    return f"{value} points [{low}, {high}]"


def test_other_prompts_of_ruler_are_those_of_the_samples():
    """Recall whole and cut, the paired differences, and the single needles that a cut takes off."""
    runs = {part: again(part) for part in ("yarn", "left", "middle")}
    values = pd.DataFrame({name: own.set_index("unit")["value"] for name, own in runs.items()})
    assert values.notna().all(axis=None)
    assert len(values) == 22
    needles = runs["yarn"][runs["yarn"]["part"].str.startswith("niah")]["answer"]
    assert needles.str.split(", ").explode().is_unique
    yarn, left, middle = (
        "{:.1f} % [{:.0f}, {:.0f}]".format(
            *(100 * end for end in own[["score", "low", "high"]].iloc[0])
        )
        for own in runs.values()
    )
    told = f"Recall is {yarn} under YaRN, {left} after the cut on the left and {middle} after"
    assert told in FLAT
    shares = (f"{100 * values[name].mean():.1f} %" for name in ("yarn", "left"))
    assert f"on 22 prompts, and {' and '.join(shares)} on 22 others" in FLAT
    gains = [points(values["yarn"] - values[name]) for name in ("left", "middle")]
    second = gains[1].replace(" points", "")
    assert f"YaRN is {gains[0]} above the first and {second} above the second" in FLAT
    single = runs["left"][runs["left"]["found"].notna()].set_index("unit")["needle"]
    lost = single.index[single < FAR - WINDOW]
    assert (len(lost), len(single)) == (6, 12)
    assert values.loc[lost, ["yarn", "left"]].sum().tolist() == [2, 0]
    assert "cuts off twelve single needles, and YaRN recovers five of them" in FLAT  # 3 before


def test_both_sets_of_prompts_of_ruler_together():
    """The sign test over different answers, the mean gain, and the tasks the model can do."""
    far, cut = (own.query("length == @FAR") for own in (frame("ruler"), cut_off("ruler")))
    first = far.pivot(index="unit", columns="scaling", values="value")["yarn"]
    first = first - cut.set_index("unit")["value"]
    values = [again(part).set_index("unit")["value"] for part in ("yarn", "left")]
    second = values[0] - values[1]
    answers = far.drop_duplicates("unit").set_index("unit")["answer"].str.partition(", ")[0]
    apart = pd.concat([first.groupby(answers).sum(), second])
    assert f"hide {len(apart)} different sets of answers" in FLAT
    assert ((apart > 0).sum(), (apart < 0).sum()) == (8, 0)
    assert f"(p = {stats.binomtest(8, 8).pvalue:.3f}, two-sided exact sign test)" in FLAT
    gain = points(pd.concat([first, second]))
    assert f"The mean gain is {gain} if the 44 prompts" in FLAT
    assert f"over both, YaRN is {gain} better" in FLAT
    low, high = gain.partition("[")[2].rstrip("]").split(", ")
    assert f"between {low} and {high} points for YaRN" in FLAT
    inside = frame("ruler").query("scaling == 'none' and length == 4096")
    recall = inside.groupby("part")["value"].mean()
    able = recall.index[recall >= 0.3]
    assert all(f"`{name}`" in FLAT for name in able)
    assert len(able) == 5
    parts = (far.query("scaling == 'yarn'"), cut, again("yarn"), again("left"), again("middle"))
    shares = [f"{100 * own[own['part'].isin(able)]['value'].mean():g} %" for own in parts]
    told = "recall is {} under YaRN and {} after the cut on the left, and on the other prompts {}"
    assert f"{told} and {{}}, and {{}} after the cut in the middle".format(*shares) in FLAT


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
    windows = frame("perplexity").query("scaling == 'none' and length == @WINDOW").set_index("unit")
    cut = windows["losses"].map(lambda losses: sum(losses[-128:]))
    held_out = table.index.difference(search)
    near, held = (math.exp(cut[books].mean() / 128) for books in (search, held_out))
    gap = brief(difference((cut - table["yarn"])[held_out], 128))
    assert f"| truncation † | {near:.2f} | {held:.2f} | {gap} |" in TEXT


def complete() -> pd.DataFrame:
    """Return the summed loss of each document that all newer methods are measured on."""
    return losses("newer", FAR).dropna()


def truncated() -> pd.Series:
    """Return the loss of each document's targets beyond the window when they read 8192 tokens."""
    windows = frame("truncation").query("length == @WINDOW and scaling == 'none'")
    assert (windows["status"] == "ok").all()
    assert windows.groupby("unit")["weight"].sum().eq(tokens("newer")).all()
    return windows.groupby("unit")["value"].sum()


def newer_rows() -> list[str]:
    """Return the table of the newer methods: perplexity, change from YaRN, and bound on regret.

    Truncation is a row without a bound, as it is not one of the methods compared.
    """
    table, count = complete(), tokens("newer")
    selection = select_means(table.to_numpy(), np.full(len(table), count))
    assert selection is not None
    worse = {name: bound(v) for name, v in zip(table, np.expm1(selection.regret), strict=True)}
    table = table.assign(truncation=truncated())
    own = frame("newer")
    rows = []
    for method in table.mean().sort_values().index:
        low, high = (figure(math.exp(end)) for end in spread(table[method], count))
        above = difference(table[method] - table["yarn"], count)
        starred = bool(own[own["scaling"] == method]["needs_code"].any())
        cells = [
            f"`{method}`" + " *" * starred if method in worse else method,
            f"{figure(math.exp(table[method].mean() / count))} [{low}, {high}]",
            "" if method == "yarn" else change(above),
            "" if method == "yarn" else f"{(table[method] > table['yarn']).sum()}",
            worse.get(method, ""),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def spread(costs: pd.Series, count: float) -> tuple[float, float]:
    """Return the 95 % interval of the mean loss over documents, in nats."""
    weights = np.full((len(costs), 1), count)
    low, high = ratios(costs.to_numpy()[:, None], weights)[0].interval(0.95)
    return float(low), float(high)


@pytest.mark.parametrize("method", ["none", "yarn"])
def test_intervals_of_the_newer_methods_are_those_of_the_reports(method):
    """On a part that is measured whole, the same computation gives the report's interval."""
    ends = spread(losses("perplexity", FAR)[method], tokens("perplexity"))
    assert np.exp(ends) == pytest.approx(interval("perplexity", method, FAR))


def test_the_table_of_the_newer_methods_is_that_of_the_samples():
    assert (frame("newer")["status"] == "ok").sum() == 100
    assert complete().shape == (10, 10)
    assert "\n".join(newer_rows()) in TEXT


def test_the_newer_methods_beside_truncation_are_those_of_the_samples():
    """The paired change from truncation, and on how many documents it is an increase."""
    gaps = complete().sub(truncated(), axis=0)
    yarn, dpe = (gaps[name] for name in ("yarn", "dpe:heads=heads.json"))
    text = f"YaRN is {change(difference(yarn, tokens('newer')))} from truncation"
    assert f"{text}, and below it on {(yarn < 0).sum()} of the ten documents" in FLAT
    assert f"DPE is {change(difference(dpe, tokens('newer')))} from it" in FLAT
    one = difference(yarn, tokens("newer"))
    ends = [one.value, one.low, one.high]
    text = "perplexity is {:.1f} % [{:.1f}, {:.1f}] above that of truncation"
    assert text.format(*(100 * end for end in ends if end is not None)) in FLAT
    both = [difference(gaps[name], tokens("newer")) for name in gaps]
    assert all(each.high is not None and each.high > 0 for each in both)


def test_ntk_by_parts_beside_yarn_on_the_ten_documents():
    """The other method that a server reads, on the same targets."""
    gaps = losses("ntk_by_parts", FAR)["ntk_by_parts"] - complete()["yarn"]
    assert gaps.notna().sum() == 10
    told = change(difference(gaps, tokens("newer")))
    assert f"is {told} from YaRN, and below it on {(gaps < 0).sum()} of the ten" in FLAT
    other = change(difference(-gaps, tokens("newer")))
    assert f"and by {other} over ten documents" in FLAT


def test_the_verdicts_on_the_newer_methods_are_those_of_the_reports():
    """The best, the bound of the one to use, and which differ from YaRN after correction."""
    [decision] = best.make(frame("newer")).to_dict("records")
    assert (decision["best"], decision["winner"]) == ("dpe:heads=heads.json", True)
    assert decision["use"] == "yarn"
    assert f"It is at most {bound(decision['regret'])} worse than the best" in FLAT
    table = complete()
    every = differences.make(frame("newer"), baseline="yarn").set_index("scaling")
    surely = set(every.index[every["verdict"].isin(["better", "worse"])])
    assert set(every.index) - surely == {"self_logistic", "mesa", "lampe"}
    assert (table["dpe:heads=heads.json"] < table["yarn"]).all()
    assert f"is {below(every.loc['dpe:heads=heads.json'])} below that of YaRN" in FLAT
    assert (table["self_logistic"] < table["yarn"]).all()
    assert f"below YaRN on each document, by {below(every.loc['self_logistic'])}" in FLAT
    worse = ["info_scale:on=yarn", "dual_chunk:form=qwen", "gali"]
    assert table[worse].gt(table["yarn"], axis=0).all(axis=None)
    shares = [f"{100 * every.loc[name, 'difference']:.1f} %" for name in worse]
    assert f"by {shares[0]}, {shares[1]} and {shares[2]}, and on each document" in FLAT
    own = frame("newer").groupby("scaling")["needs_code"].any()
    assert set(own.index[~own]) == {"none", "yarn"}


def by_place() -> dict[str, pd.DataFrame]:
    """Return the losses of each newer method: a row per document, a column per 256 targets."""
    assert frame("newer")["bucket"].eq(256).all()
    return {
        str(method): pd.DataFrame(cell["losses"].tolist(), index=cell["unit"]) * 256
        for method, cell in frame("newer").groupby("scaling")
    }


def test_where_the_newer_methods_lose_is_that_of_the_samples():
    """Differences from YaRN by the place of the targets, and how far they read."""
    each, runs = by_place(), range(32)

    def less(method: str, kept: Sequence[int]) -> Difference:
        costs = (each[method] - each["yarn"])[list(kept)].sum(axis=1)
        return difference(costs, 256 * len(kept))

    layout = mesa.bands(Rope(64, 100_000.0, WINDOW), FAR)
    assert isinstance(layout, Bands)
    read = sum(part.end - part.first for part in layout.bands)[WINDOW:]
    few = read[read < WINDOW]
    told = f"{100 * len(few) / len(read):.0f} % of them read at most {few.max():.0f} tokens"
    assert told in FLAT
    end = change(less("mesa", runs[-2:])).replace("+", "")
    assert f"On the last 512, nearly all of which read everything, it is {end} worse" in FLAT
    lost = range(11, 16)
    told = change(less("gali", lost)).replace("+", "")
    assert f"tokens {WINDOW + 256 * 11:,} and {WINDOW + 256 * 16:,}, by {told}" in FLAT
    rest = change(less("gali", [run for run in runs if run not in lost]))
    assert f"Elsewhere it differs from YaRN by {rest}" in FLAT
    dpe, logistic = (less(name, runs[-4:]) for name in ("dpe:heads=heads.json", "self_logistic"))
    assert f"DPE is {change(dpe)} and SELF {change(logistic)} from YaRN" in FLAT
    first, *others = (less("none", runs[8 * part : 8 * part + 8]).value for part in range(4))
    text = "of `none` is {:.1f} % below, {:.1f} times, {:.0f} times and {:.0f} times that of YaRN"
    assert text.format(-100 * first, *(1 + ratio for ratio in others)) in FLAT


def test_kinds_of_documents_are_those_of_the_samples():
    """On how many books and other documents methods are above YaRN, and by how much on books."""
    gaps = complete().sub(complete()["yarn"], axis=0)
    books = gaps.index.str.startswith("en-")
    above = gaps.gt(0).groupby(books).sum()
    assert (books.sum(), len(gaps)) == (4, 10)
    assert above["mesa"].to_dict() == {True: 0, False: 5}
    assert above["lampe"].to_dict() == {True: 4, False: 3}
    for name, text in (("mesa", "on each of the four books ({} %)"), ("lampe", "each book ({} %)")):
        mean = math.expm1(gaps.loc[books, name].mean() / tokens("newer"))
        assert text.format(signed(mean)) in FLAT
    assert not gaps[["dpe:heads=heads.json", "self_logistic"]].gt(0).any(axis=None)


def below(row: pd.Series) -> str:
    """Return "2.0 % [1.3, 2.9]" for a method that is lower than the baseline."""
    value, low, high = (abs(100 * row[end]) for end in ("difference", "low", "high"))
    return f"{value:.1f} % [{high:.1f}, {low:.1f}]"


def test_the_time_of_the_newer_methods_is_that_of_the_samples():
    minutes = frame("newer")["seconds"].median() / 60
    assert f"The median of the 100 samples is {minutes:.1f} minutes of one core" in FLAT


CODE = {"leaky_rerope:factor=2", "jet_long", "dual_chunk", "self_extend", "lm_infinite", "rerope"}


def paired(part: str, method: str, other: pd.Series) -> Difference:
    """Return the relative difference of a method at twice the window from summed losses."""
    return difference(losses(part, FAR)[method] - other, tokens(part))


def bounds(part: str) -> pd.DataFrame:
    """Return the bounds on regret at twice the window, one row per method."""
    table = regret.make(frame(part))
    return table[table["length"] == FAR].set_index("scaling")


def test_the_earlier_race_measured_twenty_methods_on_six_books():
    """Methods, books, tokens, forwards and time."""
    found = losses("recommend", FAR)
    assert found.notna().all(axis=None)
    assert "twenty training-free methods at factor 2 on six of the books" in FLAT
    assert found.shape == (6, 21)
    assert tokens("recommend") == 2048
    assert "scored the last 2048 tokens of whole windows in bfloat16" in FLAT
    run = json.loads((STUDY / "recommend" / "run.json").read_text(encoding="utf-8"))
    assert run["model"]["dtype"] == "bfloat16"
    assert {session["threads"] for session in run["sessions"]} == {1}
    missing = {one.name for one in (STUDY / "books").iterdir()} - set(found.index)
    assert missing == {"fr-madame-bovary.txt.gz", "it-pinocchio.txt.gz"}
    every = frame("recommend")
    forwards = every[every["status"] == "ok"].drop_duplicates(
        ["question", "frequencies", "seconds"]
    )
    minutes = forwards["seconds"].sum() / 60
    assert f"took {len(forwards)} forwards and 1 h {minutes - 60:.0f} min of one core" in FLAT


def test_the_methods_of_the_earlier_race_are_those_of_its_samples():
    """Lowest means, bounds and the methods that may be the best."""
    found, regrets = losses("recommend", FAR), bounds("recommend")
    means = found.mean().sort_values()
    coded = frame("recommend").groupby("scaling")["needs_code"].any()
    assert means.index[0] == "leaky_rerope:factor=2"
    served = [name for name in means.index if not coded[name]]
    assert served[0] == "ntk_by_parts:factor=2"
    distinct = len(found.T.drop_duplicates())
    share = 100 * regrets["regret"]
    text = "`ntk_by_parts` has the lowest mean, at most {:.0f} % above the best. Twenty methods"
    assert text.format(math.ceil(share[served[0]])) in FLAT
    assert f"and `none` are {distinct} different measurements" in FLAT
    smallest = share[served].sort_values()
    assert list(smallest.index[:2]) == ["mr_rope:factor=2", "yarn:factor=2"]
    text = "those of `mr_rope` (at most {:.0f} %) and YaRN (at most {:.0f} %)"
    assert text.format(*map(math.ceil, smallest.iloc[:2])) in FLAT
    above = [
        change(paired("recommend", f"{name}:factor=2", found[means.index[0]])).replace("+", "")
        for name in ("mr_rope", "yarn")
    ]
    assert f"worse than Leaky ReRoPE, by {above[0]} and {above[1]}" in FLAT
    lead = paired("recommend", "yarn:factor=2", found[served[0]])
    assert f"YaRN is {change(lead)} from `ntk_by_parts`" in FLAT
    assert f"at most {math.ceil(share[means.index[0]])} % above the best. Jet-Long" in FLAT
    possible = set(regrets.index[regrets["verdict"] != "worse than another method"])
    assert possible == CODE | {"ntk_by_parts:factor=2", "llama3:factor=2"}
    assert coded[list(CODE)].all()
    assert not coded[list(possible - CODE)].any()


def test_no_method_of_the_earlier_race_is_better_than_truncation():
    """Every paired interval from truncation reaches above 0."""
    plain = losses("recommend", WINDOW)["none"]
    for method in losses("recommend", FAR):
        high = paired("recommend", method, plain).high
        assert high is not None
        assert high > 0
    own = paired("recommend", "ntk_by_parts:factor=2", plain)
    assert own.low is not None
    assert own.high is not None
    text = f"(`ntk_by_parts` {100 * own.value:+.1f} % [{100 * own.low:.0f}, {100 * own.high:.0f}])"
    assert text.replace("-", "−") in FLAT


def test_both_forms_of_an_answer_agree_on_every_trial():
    """The row of ``retrieval/`` in the table of parts, and its own page."""
    answers = pd.read_csv(STUDY / "retrieval" / "answer_forms.csv")
    agree = int((answers["argmax"] == answers["generated"]).sum())
    assert f"they agree on {agree} of {len(answers)} trials" in FLAT
    assert set(answers["length"]) == {512, 1024}
    assert answers["scaling"].nunique() == 3
    assert (answers.groupby(["task", "scaling", "length"]).size() == 2).all()
    page = " ".join((STUDY / "retrieval" / "README.md").read_text(encoding="utf-8").split())
    right = answers.groupby("scaling")["argmax"].sum()
    counts = right["none"], right["yarn:factor=4"], right["self_extend:group=4,window=128"]
    text = "`none` recovers {} of its 32 trials, `yarn:factor=4` {} and "
    text += "`self_extend:group=4,window=128` {}"
    assert text.format(*counts) in page
    assert (
        f"recover {right.sum()} trials, and neither recovers the other {96 - right.sum()}" in page
    )


def test_the_documents_of_lm_eval_have_equal_hashes_and_grades():
    """The row of ``lm_eval/`` in the table of parts, from log-probabilities and words."""
    documents = pd.read_csv(STUDY / "lm_eval" / "documents.csv")
    needles = pd.read_csv(STUDY / "lm_eval" / "niah_single_1.csv")
    text = f"{len(documents)} documents of three small tasks and {len(needles)} of `niah_single_1`"
    assert text in FLAT
    assert documents["task"].nunique() == 3
    assert documents["same_hashes"].all()
    assert needles["same_hashes"].all()
    assert (needles[["ours", "lm_eval"]] == 1).all(axis=None)
    graded = documents[documents["metric"] != "word_perplexity"]
    assert graded["ours"].equals(graded["lm_eval"])
    rolled = documents[documents["metric"] == "word_perplexity"]
    paragraphs = STUDY / "lm_eval" / "tasks" / "paragraphs.json"
    pages = [one["page"] for one in json.loads(paragraphs.read_text(encoding="utf-8"))]
    words = sum(len(re.split(r"\s+", page)) for page in pages)
    ours, theirs = (math.exp(-rolled[side].sum() / words) for side in ("ours", "lm_eval"))
    assert f"word perplexity {ours:.3f} against {theirs:.3f}" in FLAT


def test_perplexity_inside_the_window_is_that_of_the_samples():
    """The ranges of English and other books at both lengths; and truncation, in the advice."""
    lengths = [losses("perplexity", length)["none"] for length in (4096, WINDOW)]
    each = np.exp(pd.concat(lengths) / tokens("perplexity"))
    english = each.index.str.startswith("en-")
    text = "is {:.0f} to {:.0f} on the English books and {:.0f} to {:.0f} on the books in the four"
    ends = [end for books in (each[english], each[~english]) for end in (books.min(), books.max())]
    assert text.format(*ends) in FLAT
    low, high = (f"{end:.1f}" for end in interval("perplexity", "none", WINDOW))
    assert f"| truncation | {perplexity('none', WINDOW):.1f} [{low}, {high}] |" in TEXT
    assert f"at most {bound(worst('perplexity', 'ntk_by_parts'))} above that of the best" in FLAT


def test_perplexity_and_passkeys_agree_as_the_page_says():
    """Spearman's rank correlation of strict scores, which is what ``both/`` shows."""
    cell = frame("passkey").query("length == @FAR")
    strict = cell.groupby("scaling")["value"].sum()
    cost = losses("perplexity", FAR)[strict.index].mean()
    assert (
        f"have a rank correlation of {strict.corr(cost, method='spearman'):.2f} [".replace("-", "−")
        in FLAT
    )
    lenient = cell["found"].ne("wrong").groupby(cell["scaling"]).sum()
    digits = lenient.corr(cost, method="spearman")
    assert f"By digits, the first is {digits:.2f}".replace("-", "−") in FLAT
    assert "of the seven methods have a rank correlation" in FLAT
    assert len(strict) == 7


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("mr_rope", "+1.3 % [−10, +5.5]"),
        ("ntk_by_parts", "−2.5 % [−13, +23]"),
        ("critical_ntk", "+2.4 % [−15, +16]"),
        ("ntk", "+9.2 % [−3.1, +23]"),
        ("pi", "+207 % [+53, +412]"),
        ("yarn:factor=1.912,beta_fast=15.46,beta_slow=0.2433", "+1.3 % [−5.2, +11]"),
    ],
)
def test_differences_from_yarn_on_the_books_held_out(method, text):
    """The last column of the table of the search."""
    table = losses("tune", FAR)
    searched = table.filter(like="yarn:").notna().sum(axis=1) > 1
    held = table[~searched]
    one = difference(held[method] - held["yarn"], tokens("tune"))
    assert brief(one) == text
    (line,) = [
        line
        for line in TEXT.splitlines()
        if f"`{method.removeprefix('yarn:')}` | " in line and text in line
    ]
    assert line.endswith(f"| {text} |")


def test_bounds_in_ruler_are_those_of_the_samples():
    """The bound of YaRN, and how many prompts and tasks there are."""
    share = 100 * bounds("ruler")["regret"]
    assert f"it is at most {share['yarn']:.0f} percentage points below the best of the four" in FLAT
    recall = frame("ruler").query("length == @FAR and scaling == 'none'")
    assert f"0 of {len(recall)} prompts" in FLAT
    assert frame("ruler")["part"].nunique() == 11


def test_english_books_alone_have_the_opposite_sign():
    """The split of the books that was made after the results were seen."""
    costs = losses("perplexity", FAR).sub(losses("perplexity", WINDOW)["none"], axis=0)
    english = costs.index.str.startswith("en-")
    works = ["yarn", "ntk_by_parts", "dual_chunk", "self_extend", "rerope"]
    assert (costs.loc[english, works].mean() > 0).all()
    told = [
        change(difference(costs.loc[books, "ntk_by_parts"], tokens("perplexity")))
        for books in (english, ~english)
    ]
    assert f"`ntk_by_parts` is {told[0]} in English and {told[1]} in the other languages" in FLAT
    assert (costs.loc[english, works] > 0).all(axis=None)
    shares = np.exp(costs[works] / tokens("perplexity")).groupby(english).apply(geometric)
    near, far = 100 * (shares.loc[True] - 1), 100 * (shares.loc[False] - 1)
    assert f"by {near.min():.0f} to {near.max():.0f} % on average" in FLAT
    assert f"averages are −{-far.min():.1f} to +{far.max():.1f} %" in FLAT
    reach = [100 * (between(name, FAR, "none", WINDOW).high or 0) for name in works]
    assert f"the intervals reach {min(reach):.1f} to {max(reach):.0f} %" in FLAT
    gains = {name: -100 * (between(name, FAR, "none", WINDOW).low or 0) for name in works}
    assert f"a gain of {gains['ntk_by_parts']:.0f} % possible" in FLAT
    assert f"and of {gains.pop('dual_chunk'):.0f} % for `dual_chunk`" in FLAT
    assert max(gains.values()) < 5.5
    assert 21.5 < perplexity("none", FAR) / perplexity("yarn", FAR) < 22.5


def geometric(table: pd.DataFrame) -> pd.Series:
    """Return the geometric mean of every column."""
    return np.exp(np.log(table).mean())


def test_bfloat16_differs_from_float32_as_the_page_says():
    """The same last 1024 targets in both dtypes; methods whose factor at this length is 2."""
    gaps = {}
    for name in METHODS:
        whole = f"{name}:factor=2" if name in ("yarn", "ntk_by_parts", "ntk", "pi") else name
        half, single = (
            frame(part)
            .query("scaling == @method and length == @FAR and status == 'ok'")
            .set_index("unit")["losses"]
            for part, method in (("recommend", whole), ("perplexity", name))
        )
        gaps[name] = pd.Series({u: sum(half[u][-1024:]) - sum(single[u]) for u in half.index})
    each = 100 * (np.exp(pd.DataFrame(gaps) / 1024) - 1).abs()
    mean = 100 * (np.exp(pd.DataFrame(gaps).mean() / 1024) - 1).abs()
    assert len(each) == 6
    assert mean.max() < 0.5
    assert each["none"].max().round(1) == 1.9
    assert each.drop(columns="none").max().max() < 1


def test_key_tokens_are_those_of_the_samples():
    """The rule's tokens, by hand, and what each method makes of them."""
    each = {
        (name, length): frame("perplexity")
        .query("scaling == @name and length == @length")
        .set_index("unit")["losses"]
        .map(np.array)
        for name, length in [*((name, FAR) for name in METHODS), ("none", 4096), ("none", WINDOW)]
    }
    short, long = each["none", 4096], each["none", WINDOW]
    masks = {u: (short[u] - long[u] > 2) & (long[u] < 2) for u in long.index}
    counts = [mask.sum() for mask in masks.values()]
    assert f"These are {sum(counts)} of the {1024 * len(masks)} scored tokens" in FLAT
    assert np.count_nonzero(counts) == 5
    assert "in five of the books" in FLAT
    score = {
        key: math.exp(np.concatenate([losses[u][masks[u]] for u in masks]).mean())
        for key, losses in each.items()
    }
    assert f"is {score['none', WINDOW]:.1f} under truncation" in FLAT
    better = ["dual_chunk", "self_extend", "yarn", "ntk_by_parts", "lm_infinite"]
    ordered = [score[name, FAR] for name in better]
    assert ordered == sorted(ordered)
    assert f"{ordered[0]:.1f} to {ordered[-1]:.1f} under `dual_chunk`" in FLAT
    assert f"{score['ntk', FAR]:.1f} and {score['rerope', FAR]:.1f} under `ntk` and" in FLAT
    assert f"{score['pi', FAR]:.0f} under `pi` and {score['none', FAR]:.0f} under `none`" in FLAT


def test_truncation_would_cut_off_the_keys_and_needles_that_the_page_names():
    """Keys and needles by their place; what is recovered of those before the last window."""
    keys = frame("passkey").query("length == @FAR and scaling == 'none'").set_index("depth")
    assert (keys["needle"] < FAR - WINDOW).tolist() == [True, True, True, False, False]
    chat = cut_off("passkey_chat").query("length == @FAR").set_index("depth")["needle"]
    first = FAR - WINDOW + 1  # behind the begin token
    assert keys["needle"][0.25] + 30 < first
    assert keys["needle"][0.5] == first - 7  # its first mention of the key is cut, not its second
    assert chat[0.5] > first
    far = frame("ruler").query("length == @FAR")
    single = far[far["found"].notna()]
    cut = single[single["needle"] < FAR - WINDOW]
    named = ("yarn", "self_extend", "dual_chunk")
    assert single.groupby("scaling").size().eq(12).all()
    assert cut.groupby("scaling").size().eq(6).all()
    assert [cut.query("scaling == @name")["value"].sum() for name in named] == [3, 2, 2]
    exact = (single["found"] == "exact").groupby(single["scaling"]).sum()
    recall = single.groupby("scaling")["value"].sum()
    assert (exact["yarn"], recall["yarn"]) == (3, 5)
    assert exact[["self_extend", "dual_chunk"]].eq(4).all()
    assert recall[["self_extend", "dual_chunk"]].eq(4).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passkey", "ruler"])
def test_a_truncated_prompt_is_the_end_of_the_whole_one(name, tmp_path):
    """Inside the window it is the prompt; beyond, its begin token and as many last ones as fit."""
    save_tiny(tmp_path, num_hidden_layers=1, max_position_embeddings=8192)
    given = f"{name}:trials=1", f"{STUDY}/truncated/truncated_{name}.py:trials=1"
    books = str(STUDY / "books" / "en-dracula.txt.gz")
    settings = {"task": given, "scaling": ("none",), "length": ("1x", "2x"), "docs": books}
    cells = make_plan(Spec(model=str(tmp_path), **settings)).cells
    near, far, own, cut = (cell.questions for cell in cells)
    assert [one.digest for one in near] == [one.digest for one in own]
    for whole, short in zip(far, cut, strict=True):
        assert (whole.length, short.length) == (FAR, WINDOW)
        assert whole.doc_id == short.doc_id
        kept = len(short.tokens) - 1
        assert list(short.tokens) == [whole.tokens[0], *whole.tokens[-kept:]]
        assert whole.length - whole.start == short.length - short.start


@pytest.mark.slow
def test_a_prompt_cut_in_the_middle_keeps_its_beginning_and_its_end(tmp_path):
    """As many tokens of each, and with the generated text as long as the window."""
    save_tiny(tmp_path, num_hidden_layers=1, max_position_embeddings=8192)
    given = "ruler:trials=1", f"{STUDY}/truncated/middle_ruler.py:trials=1"
    books = str(STUDY / "books" / "en-dracula.txt.gz")
    settings = {"task": given, "scaling": ("none",), "length": ("2x",), "docs": books}
    cells = make_plan(Spec(model=str(tmp_path), **settings)).cells
    for whole, short in zip(*(cell.questions for cell in cells), strict=True):
        assert (whole.length, short.length) == (FAR, WINDOW)
        half = len(short.tokens) // 2
        ends = whole.tokens[:half], whole.tokens[half - len(short.tokens) :]
        assert list(short.tokens) == [*ends[0], *ends[1]]


def test_windows_took_the_time_that_the_page_says():
    minutes = frame("perplexity").query("length == @FAR")["seconds"] / 60
    low, high = minutes.quantile([0.25, 0.75])
    assert f"in `perplexity/` took {low:.1f} to {high:.1f} minutes of one core" in FLAT


def test_the_loss_falls_little_inside_the_window():
    less = losses("perplexity", 4096)["none"] - losses("perplexity", WINDOW)["none"]
    one = difference(less, tokens("perplexity"), relative=False)
    ends = f"{one.value:.3f} nats [{one.low:.3f}, {one.high:.3f}]".replace("-", "−")
    assert f"the loss falls by only {ends}" in FLAT


def test_the_found_options_are_bounded_as_the_page_says():
    """On the books held out, of the six closed forms and the options that were found."""
    table = losses("tune", FAR)
    points = table.filter(like="yarn:").notna().sum(axis=1)
    held = table[points == 1].dropna(axis=1)
    assert held.shape == (4, 7)
    selection = select_means(held.to_numpy(), np.full(4, tokens("tune")))
    assert selection is not None
    worse = math.expm1(selection.regret[list(held).index("yarn")])
    assert f"`yarn` is at most {bound(worse)} above the best" in FLAT
