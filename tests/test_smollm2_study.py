"""The numbers in ``results/smollm2/README.md`` are computed here again from its samples."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import ropewalk as rw
from harness.reports import best, key_tokens
from harness.reports.writing.sentences import percent
from harness.stats.paired import Difference, of_means, of_shares
from harness.stats.selection import Selection, select_means
from harness.sweep.plan import make_plan
from harness.sweep.spec import Spec
from scaling import mesa
from scaling.types import Bands, Rope
from tasks._intervals import proportion, ratios
from tests.tiny import save_tiny

STUDY = Path(__file__).parents[1] / "results" / "smollm2"
TEXT = (STUDY / "README.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())
FRONT = " ".join((STUDY.parents[1] / "README.md").read_text(encoding="utf-8").split())
WINDOW, FAR = 8192, 16_384
BEYOND = FAR - WINDOW  # the targets of each document
YARN, PARTS, MR = "yarn:factor=2", "ntk_by_parts:factor=2", "mr_rope:factor=2"
DPE = "dpe:heads=heads.json"
TASKS = ("yarn", "ntk_by_parts", "mr_rope", "truncation")  # the folders of RULER
GPU = ("served", "others", "moved", "dpe", "key_tokens", "passkey", *(f"ruler/{n}" for n in TASKS))


FILES = {
    "perplexity": ("served", "others"),
    "moved": ("moved", "dpe", "self_extend"),
    "key_tokens": ("key_tokens",),
    "passkey": ("passkey", "passkey_cut"),
    "float32": ("newer", "ntk_by_parts", "truncation"),
    "tune": ("tune",),
}


@cache
def frame(part: str) -> pd.DataFrame:
    """Return the samples of a part; of truncation in a retrieval task, by the task that cuts."""
    cut = {"passkey_cut": "truncated_passkey.py", "ruler/truncation": "truncated_ruler.py"}
    tasks = [str(STUDY / "truncated" / cut[part])] if part in cut else []
    file, _, run = part.rpartition("/")
    file = next((file for file, parts in FILES.items() if part in parts), file)
    return rw.frame(STUDY / f"{file}.parquet" / run, tasks)


@cache
def losses(part: str, length: int) -> pd.DataFrame:
    """Return the summed loss of each document's targets under each method, in nats."""
    every = frame(part)
    cell = every[(every["length"] == length) & (every["status"] == "ok")]
    return cell.groupby(["unit", "scaling"])["value"].sum().unstack()


@cache
def far() -> pd.DataFrame:
    """Return the losses of the fifteen methods that were measured on all documents."""
    return losses("served", FAR).join(losses("others", FAR))


@cache
def truncation() -> pd.Series:
    """Return the loss of the same targets under the unscaled model, from 8192 tokens each."""
    return losses("served", WINDOW)["none"]


def difference(costs: pd.Series, count: float = BEYOND) -> Difference:
    """Return the relative change of perplexity, from summed losses of ``count`` tokens each."""
    (one,) = of_means(costs.to_numpy()[:, None], np.full((len(costs), 1), count), relative=True)
    return one


def spread(costs: pd.Series, count: float = BEYOND) -> tuple[float, float]:
    """Return the 95 % interval of the mean loss over documents, in nats."""
    weights = np.full((len(costs), 1), count)
    low, high = ratios(costs.to_numpy()[:, None], weights)[0].interval(0.95)
    return float(low), float(high)


def selection(costs: pd.DataFrame, count: float = BEYOND) -> Selection:
    found = select_means(costs.to_numpy(), np.full(len(costs), count))
    assert found is not None
    return found


def signed(ratio: float, digits: int = 1) -> str:
    """Return a relative change in per cent."""
    text = f"{100 * ratio:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def change(difference: Difference, digits: int = 1) -> str:
    """Return a change with its interval, in per cent or as a multiple."""
    value, low, high = difference.value, difference.low, difference.high
    assert low is not None
    assert high is not None
    if value > 1:
        return f"{1 + value:.1f} times [{1 + low:.1f}, {1 + high:.1f}]"
    return f"{signed(value, digits)} % [{signed(low, digits)}, {signed(high, digits)}]"


def points(gains: pd.Series) -> str:
    """Return the mean gain of paired trials, in percentage points."""
    (one,) = of_shares(gains.to_numpy()[:, None])
    assert one.low is not None
    assert one.high is not None
    return f"{100 * one.value:.0f} points [{100 * one.low:.0f}, {100 * one.high:.0f}]".replace(
        "-", "−"
    )


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


def figure(value: float) -> str:
    return f"{value:.0f}" if value > 100 else f"{value:.1f}"


def perplexity(costs: pd.Series) -> str:
    """Return the perplexity over all targets, and its interval over documents."""
    ends = (figure(math.exp(end)) for end in spread(costs))
    return f"{math.exp(costs.mean() / BEYOND):.2f} [{', '.join(ends)}]"


def named(method: str, part: str) -> str:
    """Return a method as the tables name it: without its factor, with a star for own code."""
    own = frame(part).query("scaling == @method")["needs_code"].any()
    short = method.replace(":factor=2", "").replace(":on=yarn", " on YaRN")
    return f"`{short}`".replace(" on YaRN`", "` on YaRN") + " *" * bool(own)


EQUAL = {"dynamic_ntk": "ntk:factor=2", "layerwise:factor=2": "pi:factor=2"}


def far_rows() -> list[str]:
    """Return the table of the methods on all documents, the best first; truncation among them."""
    table, near = far(), losses("served", WINDOW)
    different = table.drop(columns=list(EQUAL))
    worse = dict(zip(different, np.expm1(selection(different).regret), strict=True))
    rows = []
    for method in table.assign(truncation=truncation()).mean().sort_values().index:
        if method in EQUAL:
            continue
        if method == "truncation":
            costs = truncation()
            gap = costs - table[YARN]
            rows.append(
                f"| truncation | {perplexity(costs)} | {change(difference(gap), 2)} "
                f"| {(gap > 0).sum()} | | 0 | |"
            )
            continue
        costs, part = table[method], "served" if method in near else "others"
        equal = [name for name, other in EQUAL.items() if other == method]
        name = " = ".join([named(method, part), *(named(one, "others") for one in equal)])
        yarn = "" if method == YARN else change(difference(costs - table[YARN]), 2)
        above = "" if method == YARN else str((costs > table[YARN]).sum())
        cost = change(difference(near[method] - near["none"])) if method in near else "–"
        rows.append(
            f"| {name} | {perplexity(costs)} | {yarn} | {above} "
            f"| {change(difference(costs - truncation()))} "
            f"| {'0' if method == 'none' else cost} | {bound(worse[method])} |"
        )
    return rows


def test_the_table_of_all_documents_is_that_of_the_samples():
    assert far().shape == (60, 15)
    assert far().notna().all(axis=None)
    for one, other in EQUAL.items():
        assert far()[one].equals(far()[other].rename(one))
    assert frame("served").query("length == @FAR")["weight"].eq(BEYOND).all()
    assert "\n".join(far_rows()) in TEXT


def plain(one: Difference, digits: int = 1) -> str:
    """Return "1.4 % [0.3, 2.3]" for a difference that is above 0 with all of its interval."""
    assert one.low is not None
    assert one.high is not None
    assert one.low > 0
    return "{} % [{}, {}]".format(
        *(f"{100 * end:.{digits}f}" for end in (one.value, one.low, one.high))
    )


def kinds() -> pd.Series:
    return pd.read_csv(STUDY / "corpus.csv").set_index("file")["kind"]


def by_kind(costs: pd.Series) -> dict[str, str]:
    """Return the relative change on each kind of document."""
    groups = costs.groupby(kinds().reindex(costs.index))
    return {str(kind): change(difference(group)) for kind, group in groups}


def test_the_winner_and_what_it_costs_are_those_of_the_report():
    """The decision, the difference from the next best, truncation and the in-window cost."""
    joined = rw.frame(STUDY / "perplexity.parquet")
    decision = best.make(joined).set_index("length").loc[FAR]
    assert (decision["use"], decision["best"], decision["winner"]) == (YARN, YARN, True)
    near, table = losses("served", WINDOW), far()
    lead, cut = table[PARTS] - table[YARN], table[YARN] - truncation()
    assert f"`ntk_by_parts` is {plain(difference(lead), 2)} above it" in FLAT
    assert f"YaRN is the best of 13 methods, by {plain(difference(lead), 2)} on 60" in FRONT
    assert f"it is {plain(difference(cut))} worse than truncation" in FRONT
    assert round(difference(table["none"] - truncation()).value) == 6
    told = "On documentation `ntk_by_parts` is {documentation} relative to it, on books {book} and"
    assert f"{told} on code {{code}}".format(**by_kind(lead)) in FLAT
    new = lead.index.difference(losses("truncation", WINDOW).index)
    assert len(new) == 50
    assert f"not known before, it is {change(difference(lead[new]), 2)}" in FLAT
    assert f"YaRN's perplexity is {plain(difference(cut))} above that of truncation" in FLAT
    told = "On books YaRN is {book}, on documentation {documentation} and on code {code}"
    assert told.format(**by_kind(cut)) in FLAT
    told = f"On the 50 new documents it is {change(difference(cut[new]))}, and above it on"
    assert f"{told} {(cut[new] > 0).sum()} of them" in FLAT
    served = [name for name in near if name not in ("none", "pi:factor=2")]
    costs = [100 * difference(near[name] - near["none"]).value for name in served]
    assert f"between {min(costs):.1f} and {max(costs):.1f} %" in FLAT
    short = losses("key_tokens", 4096)
    price = difference(short[YARN] - short["none"], 1024)
    assert f"at 4096 tokens YaRN's factor costs {plain(price)} (`key_tokens/`)" in FLAT
    own = table[YARN] - near[YARN]
    assert f"change YaRN's perplexity by {change(difference(own))}" in FLAT
    told = "{documentation} on documentation and {code} on code, but by {book} on books"
    assert told.format(**by_kind(own)) in FLAT
    gaps = [difference(table[name] - truncation()) for name in table]
    assert all(one.low is not None and one.low > 0 for one in gaps)
    scaled = [name for name in table if ":on=yarn" in name]
    assert len(scaled) == 3
    assert table[scaled].gt(table[YARN], axis=0).all(axis=None)


def moved_rows() -> list[str]:
    """Return the table of the methods that were measured on some documents only."""
    rows = []
    parts = {"self_extend": "self_extend", DPE: "dpe"}
    for method in [*losses("moved", FAR), *parts]:
        part = parts.get(method, "moved")
        costs = losses(part, FAR)[method].dropna()
        yarn, cut = costs - far()[YARN][costs.index], costs - truncation()[costs.index]
        row = (
            f"| {named(method, part)} | {len(costs)} | {change(difference(yarn))} "
            f"| {(yarn > 0).sum()} | {change(difference(cut))} | {(cut > 0).sum()} |"
        )
        rows.append((difference(yarn).value, row))
    return [row for _, row in sorted(rows)]


def test_the_table_of_moved_positions_is_that_of_the_samples():
    assert losses("moved", FAR).shape == (20, 11)
    assert losses("dpe", FAR)[DPE].notna().sum() == 47
    assert list(losses("dpe", FAR).index) == sorted(far().index)[:47]
    assert "\n".join(moved_rows()) in TEXT
    some = losses("self_extend", FAR)["self_extend"].dropna()
    assert list(some.index) == sorted(losses("moved", FAR).index)[: len(some)]
    assert f"Self-Extend on the first {len(some)} of these by name" in FLAT
    better = ["leaky_rerope:factor=2", "jet_long", "dual_chunk"]
    gaps = [losses("moved", FAR)[name] - far()[YARN] for name in better]
    gaps += [losses("dpe", FAR)[DPE] - far()[YARN], some - far()[YARN]]
    shares = [-100 * difference(gap.dropna()).value for gap in gaps]
    assert (round(min(shares)), round(max(shares))) == (2, 3)
    assert f"2 to 3 % below YaRN, on {len(some)} to 47 of the documents" in FLAT
    assert f"2 to 3 % better, on {len(some)} to 47 of the documents" in FRONT


def test_the_best_of_twenty_documents_is_that_of_the_bounds():
    """Which of 24 methods may be the best, and the bounds of the first and of YaRN."""
    table = far().drop(columns=list(EQUAL)).join(losses("moved", FAR), how="inner")
    found = selection(table)
    possible = [name for name, may in zip(table, found.possible, strict=True) if may]
    assert possible == ["dual_chunk", "jet_long", "leaky_rerope:factor=2"]
    worse = dict(zip(table, np.expm1(found.regret), strict=True))
    assert table.shape == (20, 24)
    assert f"Leaky ReRoPE is at most {bound(worse['leaky_rerope:factor=2'])} above the" in FLAT
    assert f"YaRN is at most {bound(worse[YARN])} above it" in FLAT
    dpe, leaky = losses("dpe", FAR)[DPE], losses("moved", FAR)["leaky_rerope:factor=2"]
    both = (dpe - leaky).dropna()
    assert len(both) == 12
    assert f"DPE is {change(difference(both))} relative to Leaky ReRoPE" in FLAT
    told = "DPE is {book} on books, {documentation} on documentation and {code} on code"
    assert told.format(**by_kind((dpe - truncation()).dropna())) in FLAT


def test_the_gain_on_single_tokens_is_that_of_the_samples():
    """Targets whose loss differs by more than 2 nats from truncation, and key tokens."""
    cut = stacked("none", WINDOW)
    assert cut.shape == (60, 1024)
    assert f"{cut.size:,} targets" in FLAT
    counts, odds = [], []
    for method in (YARN, PARTS, MR):
        saved = cut - stacked(method, FAR)
        gains, harms = (saved > 2).sum(axis=1), (saved < -2).sum(axis=1)
        counts.append(f"{gains.sum()} and {harms.sum()}")
        odds.append(stats.ttest_1samp(gains - harms, 0).pvalue)
        if method == YARN:
            excess = pd.Series(gains - harms, far().index).groupby(kinds()).sum()
    told = "on {} under YaRN, on {} under `ntk_by_parts`, and on {} under `mr_rope`"
    assert told.format(*counts) in FLAT
    assert "(p = {:.4f}, {:.4f} and {:.4f} over documents)".format(*odds) in FLAT
    told = "excess of {} is in code ({code}) and documentation ({documentation}); books have {book}"
    assert told.format(excess.sum(), **excess) in FLAT
    saved = cut - stacked(YARN, WINDOW)
    told = f"YaRN reading only 8192 tokens saves {(saved > 2).sum()} and loses {(saved < -2).sum()}"
    assert told in FLAT
    table = key_tokens.make(frame("key_tokens")).set_index(["scaling", "length"])
    first = table.iloc[0]
    assert f"{first['keys']} targets in {first['n']} documents" in FLAT
    for method, length in ((YARN, FAR), (PARTS, FAR), (MR, FAR), ("none", WINDOW)):
        row = table.loc[(method, length)]
        assert f"{row['score']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" in FLAT


def chosen(method: str, short: int, long: int) -> pd.Series:
    """Return by document which targets a longer context makes clear, by LongPPL's rule."""
    before, after = by_target()[method][short], by_target()[method][long]
    return pd.Series(
        {unit: (before[unit] - after[unit] > 2) & (after[unit] < 2) for unit in before.index}
    )


@cache
def by_target() -> pd.Series:
    """Return the losses of a document's targets, by method, length and document."""
    every = frame("key_tokens").query("status == 'ok'").set_index(["scaling", "length", "unit"])
    return every["losses"].map(np.array)


def stacked(method: str, length: int) -> np.ndarray:
    """Return the loss of each target, (documents, 1024), documents as in ``far()``."""
    return np.stack(by_target()[method][length].loc[far().index])


def over(method: str, length: int, kept: pd.Series) -> pd.Series:
    """Return the summed loss of the chosen targets of each document."""
    own = by_target()[method][length]
    return pd.Series({unit: own[unit][mask].sum() for unit, mask in kept.items()})


def test_key_tokens_of_both_choices_are_those_of_the_samples():
    """The bounds on the tokens that the unscaled model chooses, and perplexity on YaRN's own."""
    kept = chosen("none", 4096, WINDOW)
    counts = kept.map(np.sum)
    assert f"One document has {counts.max()} of them" in FLAT
    kept, counts = kept[counts > 0], counts[counts > 0]
    methods = [YARN, PARTS, MR, "pi:factor=2", "none"]
    costs = pd.DataFrame({method: over(method, FAR, kept) for method in methods})
    found = select_means(costs.to_numpy(), counts.to_numpy())
    assert found is not None
    worse = [bound(regret) for regret in np.expm1(found.regret)]
    assert f"at most {worse[0]} above the best of five methods" in FLAT
    assert f"`ntk_by_parts` at most {worse[1]} and `mr_rope` {worse[2]}" in FLAT
    gap = (costs[YARN] - over("none", WINDOW, kept)).to_numpy()
    (one,) = of_means(gap[:, None], counts.to_numpy(float)[:, None], relative=True)
    assert f"YaRN is {change(one, 0)} relative to truncation on them" in FLAT
    kept = chosen(YARN, WINDOW, FAR)
    counts = kept.map(np.sum)
    told = f"On {counts.sum()} targets in {(counts > 0).sum()} documents, YaRN's own loss"
    assert told in FLAT
    values = [
        math.exp(over(method, length, kept).sum() / counts.sum())
        for method, length in ((MR, FAR), (PARTS, FAR), ("none", WINDOW))
    ]
    told = "{:.1f} under `mr_rope` and {:.1f} under `ntk_by_parts`, and {:.0f} under truncation"
    assert told.format(*values) in FLAT
    assert f"one in {60 * 1024 / counts.sum():.0f}" in FLAT


PASSKEYS = (DPE, "self_extend", MR, PARTS, YARN, "lm_infinite", "pi:factor=2", "none")


def answered(part: str, method: str, length: int) -> pd.DataFrame:
    every = frame(part)
    rows = every[(every["scaling"] == method) & (every["length"] == length)]
    return rows.assign(digits=rows["found"] != "wrong", strict=rows["found"] == "exact")


def passkey_rows() -> list[str]:
    """Return recovered keys by length, strictly and by digits, and by depth at twice the window."""
    rows = []
    for method in (*PASSKEYS, "truncation"):
        cut = method == "truncation"
        part, name = ("passkey_cut", "none") if cut else ("passkey", method)
        own = answered(part, name, FAR)
        near = answered("passkey", "none" if cut else method, WINDOW)
        assert len(own) == len(near) == 50
        cells = [f"{one['digits'].sum()} ({one['strict'].sum()})" for one in (near, own)]
        by_depth = own.groupby("depth")["digits"].sum().astype(str)
        shown = "truncation" if cut else named(method, "passkey")
        rows.append(f"| {shown} | {' | '.join(cells)} | {' '.join(by_depth)} |")
    return rows


def test_the_table_of_passkeys_is_that_of_the_samples():
    assert "\n".join(passkey_rows()) in TEXT


def paired_p(one: pd.DataFrame, other: pd.DataFrame, count: str = "digits") -> float:
    """Return the p of an exact paired test of digits, or of strict answers: McNemar's."""
    a, b = (rows.set_index("unit")[count] for rows in (one, other))
    more, less = int((a & ~b).sum()), int((~a & b).sum())
    return float(stats.binomtest(more, more + less).pvalue)


def test_differences_in_passkeys_are_those_of_the_samples():
    """By digits and strictly, from YaRN; and LM-Infinite from truncation."""
    own = {name: answered("passkey", name, FAR) for name in PASSKEYS}
    cut = answered("passkey_cut", "none", FAR)
    for name in (DPE, "self_extend"):
        assert own[name]["digits"].all()
        assert f"more than YaRN (p = {paired_p(own[name], own[YARN]):.3f}" in FLAT
    for name in (PARTS, MR):
        assert own[name]["digits"].sum() == 43
        assert paired_p(own[name], own[YARN]) > 0.05
    odds = [paired_p(own[name], own[YARN], "strict") for name in (DPE, "self_extend")]
    assert "give p = {:.2f} for DPE and p = {:.2f} for Self-Extend".format(*odds) in FLAT
    found = [rows["digits"].sum() for rows in (cut, own[YARN], own["lm_infinite"])]
    assert "recovers the {} keys that it reads, and YaRN {}".format(*found) in FLAT
    assert cut["digits"].equals(cut["depth"] > 0.5)
    assert paired_p(own[YARN], cut) < 0.001
    odds = paired_p(cut, own["lm_infinite"])
    assert f"recovers {found[2]}, fewer than truncation (p = {odds:.3f})" in FLAT


def recall(part: str) -> pd.DataFrame:
    return frame(f"ruler/{part}").query("length == @FAR").set_index("unit")


def ruler_rows() -> list[str]:
    """Return recall by task at twice the window, and of the unscaled model at 4096 tokens."""
    inside = frame("ruler/inside").query("length == 4096")
    every = {name: recall(name).groupby("part")["value"].mean() for name in TASKS}
    near = inside.groupby("part")["value"].mean()
    able = near[near >= 0.3].index
    rows = []
    for part in dict.fromkeys(inside["part"]):
        shares = [near[part], *(every[name][part] for name in TASKS)]
        cells = [f"{percent(share)} %" for share in shares]
        rows.append(f"| `{part}` | {' | '.join(cells)} |")
    for label, kept in (("mean", near.index), ("mean of the tasks within reach", able)):
        cells = []
        for values in (inside, *(recall(name) for name in TASKS)):
            hits = values[values["part"].isin(kept)]["value"]
            low, high = proportion(hits.sum(), len(hits))
            cells.append(f"{100 * hits.mean():.1f} % [{100 * low:.0f}, {100 * high:.0f}]")
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return rows


def test_the_table_of_ruler_is_that_of_the_samples():
    assert all(len(recall(name)) == 110 for name in TASKS)
    assert frame("ruler/inside").query("length == 4096").groupby("part").size().eq(10).all()
    assert "\n".join(ruler_rows()) in TEXT


def test_differences_in_ruler_are_those_of_the_samples():
    """Paired gains over truncation and between methods, and the needles that were cut off."""
    value = {name: recall(name)["value"] for name in TASKS}
    gain = value["yarn"] - value["truncation"]
    assert f"YaRN is {points(gain)} above truncation" in FLAT
    assert f"more in {(gain > 0).sum()} of the 110 prompts and less in {(gain < 0).sum()}" in FLAT
    others = [points(value[name] - value["truncation"]) for name in ("ntk_by_parts", "mr_rope")]
    assert f"`ntk_by_parts` is {others[0]} and `mr_rope` {others[1]} above it" in FLAT
    inside = frame("ruler/inside").groupby("part")["value"].mean()
    able = inside.index[inside >= 0.3]
    assert len(able) == 5
    near = gain[recall("yarn")["part"].isin(able)]
    assert f"within the model's reach, YaRN is {points(near)} above truncation" in FLAT
    parts = points(value["yarn"] - value["ntk_by_parts"])
    (mr,) = of_shares((value["yarn"] - value["mr_rope"]).to_numpy()[:, None])
    assert mr.low is not None
    assert mr.high is not None
    told = f"{100 * mr.value:.0f} points [{100 * mr.low:.1f}, {100 * mr.high:.0f}] above `mr_rope`"
    assert f"YaRN is {parts} above `ntk_by_parts` and {told}" in FLAT
    single = recall("yarn")["needle"].dropna()
    cut = single.index[single < FAR - WINDOW]
    found = [int(value[name][cut].sum()) for name in TASKS]
    assert found[-1] == 0
    told = "cuts off {} of the {} needles of prompts that ask for one, and recovers none of these."
    assert told.format(len(cut), len(single)) in FLAT
    assert "YaRN recovers {} of them, `ntk_by_parts` {} and `mr_rope` {}.".format(*found) in FLAT
    rest = single.index.difference(cut)
    told = f"truncation recovers {value['truncation'][rest].sum():.0f} and"
    assert f"{told} YaRN {value['yarn'][rest].sum():.0f}" in FLAT
    for name, text in (("yarn", "YaRN recovers 29.0 %"), ("truncation", "same model 13.8 %")):
        low, high = proportion(value[name].sum(), 110)
        assert f"{100 * value[name].mean():.1f}" in text
        ends = f"[{100 * low:.0f}, {100 * high:.0f}]"
        assert f"{text} of the answers {ends}" in FLAT or f"{text} {ends}" in FLAT
        assert f"{100 * value[name].mean():.0f} % {ends}" in FRONT


def test_everything_ran_on_one_gpu_in_bfloat16():
    """Except Self-Extend's perplexity, truncation's passkeys and half of RULER at 4096 tokens."""
    for part in GPU:
        assert (frame(part)["peak_mib"] > 0).all()  # measured on the GPU


def test_bfloat16_on_a_gpu_differs_from_float32_on_a_cpu_as_the_page_says():
    """On ten documents: each method's loss, and the difference between YaRN and truncation."""
    single = losses("newer", FAR).join(losses("ntk_by_parts", FAR))
    single["truncation"] = losses("truncation", WINDOW)["none"]
    half = far().join([losses("moved", FAR), losses("dpe", FAR)])
    half = half.rename(columns=lambda name: name.replace(":factor=2", ""))
    half["truncation"] = truncation()
    both = single.columns.intersection(half.columns).difference([DPE])
    gaps = (half[both] - single[both]).loc[single.index] / BEYOND
    assert gaps.shape == (10, 10)
    assert gaps.notna().all(axis=None)
    assert 0.0035 < gaps.abs().max().max() < 0.0042
    assert f"at most {100 * gaps.mean().abs().max():.1f} % on average over documents" in FLAT
    paired = 100 * (gaps["yarn"] - gaps["truncation"])
    told = f"by at most {math.ceil(10 * paired.abs().max()) / 10} percentage points on a document"
    assert f"{told}, and by {paired.mean():.1f} on average" in FLAT


def newer_rows() -> list[str]:
    """Return the table of the newer methods in float32: change from YaRN, and on how many."""
    table = losses("newer", FAR).drop(columns=["yarn", "none"])
    table["ntk_by_parts"] = losses("ntk_by_parts", FAR)["ntk_by_parts"]
    table["truncation"] = losses("truncation", WINDOW)["none"]
    gaps = table.sub(losses("newer", FAR)["yarn"], axis=0)
    rows = []
    for method in gaps.mean().sort_values().index:
        part = "ntk_by_parts" if method == "ntk_by_parts" else "newer"
        name = method if method == "truncation" else named(method, part)
        gap = gaps[method]
        rows.append(f"| {name} | {change(difference(gap))} | {(gap > 0).sum()} |")
    return rows


def test_the_table_of_the_newer_methods_is_that_of_the_samples():
    assert (frame("newer")["status"] == "ok").sum() == 100
    assert losses("newer", FAR).shape == (10, 10)
    assert "\n".join(newer_rows()) in TEXT


def by_place() -> dict[str, pd.DataFrame]:
    """Return the losses of each newer method: a row per document, a column per 256 targets."""
    assert frame("newer")["bucket"].eq(256).all()
    return {
        str(method): pd.DataFrame(cell["losses"].tolist(), index=cell["unit"]) * 256
        for method, cell in frame("newer").groupby("scaling")
    }


def test_where_the_newer_methods_lose_is_that_of_the_samples():
    """Differences from YaRN by the place of the targets, and how far they read."""
    each = by_place()

    def less(method: str, kept: range) -> Difference:
        costs = (each[method] - each["yarn"])[list(kept)].sum(axis=1)
        return difference(costs, 256 * len(kept))

    layout = mesa.bands(Rope(64, 100_000.0, WINDOW), FAR)
    assert isinstance(layout, Bands)
    read = sum(part.end - part.first for part in layout.bands)[WINDOW:]
    few = read[read < WINDOW]
    told = f"{100 * len(few) / len(read):.0f} % of its targets read at most {few.max():.0f} tokens"
    assert told in FLAT
    end = change(less("mesa", range(30, 32))).replace("+", "")
    assert f"On the last 512, nearly all of which read everything, it is {end} worse" in FLAT
    told = change(less("gali", range(11, 16))).replace("+", "")
    assert f"tokens {WINDOW + 256 * 11:,} and {WINDOW + 256 * 16:,}, by {told}" in FLAT


def test_the_search_is_that_of_the_samples():
    """Perplexity of each method on the books of the search and on those held out."""
    tuned = frame("tune").query("status == 'ok'")
    found = tuned["scaling"][tuned["scaling"].str.startswith("yarn:factor=1.912,")].iloc[0]
    table = tuned.pivot_table(index="unit", columns="scaling", values="value")
    searched = table[[name for name in table if name.startswith("yarn:")]].notna().sum(axis=1)
    search = searched.index[searched > 1]
    assert len(search) == len(table) - len(search) == 4
    count = float(tuned["weight"].iloc[0])
    for method in (found, "yarn", "mr_rope", "ntk_by_parts", "critical_ntk", "ntk", "pi"):
        near, held = (
            math.exp(table.loc[books, method].mean() / count)
            for books in (search, table.index.difference(search))
        )
        digits = 1 if held > 100 else 2
        assert f"{method.removeprefix('yarn:')}` | {near:.2f} | {held:.{digits}f} |" in TEXT


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
    one = difference(held[method] - held["yarn"], 128)
    assert brief(one) == text
    (line,) = [
        line
        for line in TEXT.splitlines()
        if f"`{method.removeprefix('yarn:')}` | " in line and text in line
    ]
    assert line.endswith(f"| {text} |")


def test_the_found_options_are_bounded_as_the_page_says():
    """On the books held out, of the six closed forms and the options that were found."""
    table = losses("tune", FAR)
    points = table.filter(like="yarn:").notna().sum(axis=1)
    held = table[points == 1].dropna(axis=1)
    assert held.shape == (4, 7)
    worse = math.expm1(selection(held, 128).regret[list(held).index("yarn")])
    assert f"`yarn` is at most {bound(worse)} above the best" in FLAT


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
