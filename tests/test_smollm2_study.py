"""The numbers of ``results/smollm2/README.md`` are computed here again from its samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import ropewalk as rw
from ropewalk.harness.reports.cells import cells
from ropewalk.harness.stats.paired import of_means, of_shares
from ropewalk.harness.stats.selection import select_means
from ropewalk.tasks._intervals import proportion, ratios
from scripts import study_figure
from tests import ROOT
from tests.study import change, ends, faults, flat, number, signed, table, unsigned

STUDY = ROOT / "results" / "smollm2"
FRONT = flat((ROOT / "README.md").read_text(encoding="utf-8"))
# Facts of the model, the documents and the machine, and what engines printed.
GIVEN = """0 1 2 4 5 7 10 14 20 24 30 40 50 60 95 100 110 135 512 1024 2048 4096 8191 8192
16,384 32,768 100,000 2.11 36.6169 36.6172 4.03426 4.03439 2701 345 98 1661 14155 5323 2000 52484"""
WINDOW, FAR = 8192, 16_384
BEYOND = FAR - WINDOW  # targets of each document
YARN, PARTS, MR = "yarn:factor=2", "ntk_by_parts:factor=2", "mr_rope:factor=2"
DPE, LEAKY = "dpe:heads=heads.json", "leaky_rerope:factor=2"
EQUAL = {"dynamic_ntk": "ntk:factor=2", "layerwise:factor=2": "pi:factor=2"}
RULER = ("yarn", "ntk_by_parts", "mr_rope", "truncation")
CUT = {
    "passkey/passkey_cut": "truncated_passkey.py", "ruler/truncation": "truncated_ruler.py",
    "long/passkey_cut": "truncated_passkey.py", "long/ruler_truncation": "truncated_niah.py",
}  # fmt: skip


@cache
def frame(path: str) -> pd.DataFrame:
    """Return the samples of a file, or of one of its runs as FILE/RUN, that have a number."""
    file, _, run = path.partition("/")
    tasks = [str(STUDY / "truncated" / CUT[path])] if path in CUT else []
    every = rw.frame(STUDY / f"{file}.parquet" / run, tasks, losses=True)
    return every.query("status == 'ok'")


@cache
def losses(path: str, length: int = FAR) -> pd.DataFrame:
    """Return the summed loss of each document's targets under each method, in nats."""
    every = frame(path)
    cell = every[every["length"] == length]
    return cell.groupby(["unit", "scaling"])["value"].sum().unstack()


def far() -> pd.DataFrame:
    return losses("perplexity")


def cut() -> pd.Series[float]:
    """Return the loss under truncation: the unscaled model, from 8192 tokens."""
    return losses("perplexity", WINDOW)["none"]


def moved() -> pd.DataFrame:
    runs = [losses(f"moved/{run}") for run in ("moved", "dpe", "self_extend")]
    return pd.concat(runs, axis=1).sort_index()


def difference(costs: pd.Series[float], count: int = BEYOND) -> tuple[float, float, float]:
    """Return the relative change of perplexity, from losses of so many tokens per document."""
    values = costs.dropna().to_numpy()[:, None]
    return ends(of_means(values, np.full_like(values, count), relative=True)[0])


def told(costs: pd.Series[float], digits: int | None = None) -> str:
    return change(*difference(costs), digits)


def bounds(costs: pd.DataFrame) -> dict[str, str]:
    """Return by how much each method is at most worse than the best, rounded up."""
    selection = select_means(costs.to_numpy(), np.full(len(costs), BEYOND))
    assert selection is not None
    worse = dict(zip(costs, np.expm1(selection.regret), strict=True))
    return {
        name: f"{math.ceil(1 + value)} times" if value > 1 else f"{math.ceil(1000 * value) / 10} %"
        for name, value in worse.items()
    }


def by_kind(costs: pd.Series[float]) -> list[str]:
    costs, kinds = costs.dropna(), pd.read_csv(STUDY / "corpus.csv").set_index("file")["kind"]
    return [told(rows) for _, rows in costs.groupby(kinds.reindex(costs.index))]


def named(method: str) -> str:
    return method if method == "truncation" else f"`{method.replace(':factor=2', '')}`"


def perplexity(costs: pd.Series[float]) -> str:
    weights = np.full((len(costs), 1), BEYOND)
    low, high = np.exp(ratios(costs.to_numpy()[:, None], weights)[0].interval(0.95))
    return f"{math.exp(costs.mean() / BEYOND):.2f} [{low:.1f}, {high:.1f}]"


def of_all_documents() -> Iterator[str]:
    near, every = losses("perplexity", WINDOW), far().drop(columns=list(EQUAL))
    assert every.shape == (60, 13)
    assert all(far()[one].equals(far()[other].rename(one)) for one, other in EQUAL.items())
    worse, rows = bounds(every), {}
    own = set(frame("perplexity").query("needs_code")["scaling"])
    for name, costs in every.assign(truncation=cut()).items():
        gap = costs - every[YARN]
        cost = told(near[name] - near["none"]) if name in near and name != "none" else "–"
        rows[costs.mean()] = [
            named(str(name)) + " *" * (name in own),
            perplexity(costs),
            *(["", ""] if name == YARN else [told(gap, 2), str((gap > 0).sum())]),
            "" if name == "truncation" else told(costs - cut()),
            "0" if name in ("none", "truncation") else cost,
            worse.get(str(name), ""),
        ]
    yield table(row for _, row in sorted(rows.items()))
    yield f"Of {len(worse)} different methods it has"


def of_the_decision() -> Iterator[str]:
    table = cells(frame("perplexity")).set_index(["scaling", "length"])
    assert table.loc[YARN, FAR][["use", "best", "winner"]].all()
    near, every = losses("perplexity", WINDOW), far()
    lead, price = told(every[PARTS] - every[YARN], 2), told(every[YARN] - cut())
    assert unsigned(f"YaRN is the best of 13 methods, by {lead} on 60") in FRONT
    assert unsigned(f"it is {price} worse than truncation") in FRONT
    yield from by_kind(every[YARN] - cut())
    yield told(every[YARN] - near[YARN])
    assert every.filter(like=":on=yarn").gt(every[YARN], axis=0).all(axis=None)
    assert every.sub(cut(), axis=0).apply(lambda costs: difference(costs)[1] > 0).all()


def of_moved_positions() -> Iterator[str]:
    rows = {}
    for method, costs in moved().items():
        yarn, short = (costs - far()[YARN]).dropna(), (costs - cut()).dropna()
        counts = (str((gap > 0).sum()) for gap in (yarn, short))
        cells = (str(len(yarn)), told(yarn), next(counts), told(short), next(counts))
        rows[yarn.mean()] = [named(str(method)), *cells]
    yield table(row for _, row in sorted(rows.items()))
    better = moved()[[LEAKY, "jet_long", "dual_chunk", DPE, "self_extend"]].sub(far()[YARN], axis=0)
    gaps = [-100 * difference(gap)[0] for _, gap in better.items()]
    assert (round(min(gaps)), round(max(gaps))) == (2, 3)
    yield "Five methods that move positions are 2 to 3 % below YaRN, on 11 to 47 of the documents"
    assert "2 to 3 % better, on 11 to 47 of the documents" in FRONT
    worse = bounds(far().drop(columns=list(EQUAL)).join(losses("moved/moved"), how="inner"))
    assert len(worse) == 24
    yield f"Leaky ReRoPE is at most {worse[LEAKY]} above the best, and YaRN at most {worse[YARN]}"
    yield from by_kind(moved()[DPE] - cut())


@cache
def targets(method: str, length: int) -> pd.DataFrame:
    """Return the loss of each of the last 1024 tokens: one row per document."""
    every = frame("key_tokens")
    cell = every[(every["length"] == length) & (every["scaling"] == method)]
    return pd.DataFrame(cell["losses"].tolist(), index=cell["unit"]).loc[far().index]


def of_single_tokens() -> Iterator[str]:
    short, counts, odds = targets("none", WINDOW), [], []
    yield f"Of {short.size:,} targets"
    kinds = pd.read_csv(STUDY / "corpus.csv").set_index("file")["kind"]
    for method in (MR, PARTS, YARN):
        gain = short - targets(method, FAR)
        saved, lost = (gain > 2).sum(axis=1), (gain < -2).sum(axis=1)
        counts += [saved.sum(), lost.sum()]
        odds.append(stats.ttest_1samp(saved - lost, 0).pvalue)
    text = "{4} and {5} under YaRN, {2} and {3} under `ntk_by_parts`, and {0} and {1} under"
    yield text.format(*counts)
    yield f"p = {max(odds):.4f} or less"
    excess = (saved - lost).groupby(kinds).sum()
    text = "excess of {} is in code ({code}) and documentation ({documentation}); books have {book}"
    yield text.format(excess.sum(), **excess)


def found(method: str, length: int = FAR) -> pd.DataFrame:
    short = method == "truncation"
    every = frame("passkey/passkey_cut" if short else "passkey/passkey").set_index("unit")
    rows = every[(every["length"] == length) & (short | (every["scaling"] == method))]
    assert len(rows) == 50
    return rows.assign(digits=rows["found"] != "wrong", strict=rows["found"] == "exact")


def paired_p(one: str, other: str) -> float:
    return mcnemar(found(one)["digits"], found(other)["digits"])


def mcnemar(first: pd.Series[bool], second: pd.Series[bool]) -> float:
    """Return the p of an exact paired test."""
    more, less = int((first & ~second).sum()), int((~first & second).sum())
    return float(stats.binomtest(more, more + less).pvalue)


def of_passkeys() -> Iterator[str]:
    rows = []
    methods = (DPE, "self_extend", MR, PARTS, YARN, "lm_infinite", "pi:factor=2", "none")
    for method in (*methods, "truncation"):
        near, own = found(method.replace("truncation", "none"), WINDOW), found(method)
        counts = (f"{one['digits'].sum()} ({one['strict'].sum()})" for one in (near, own))
        by_depth = " ".join(own.groupby("depth")["digits"].sum().astype(str))
        rows.append([named(method), *counts, by_depth])
    yield table(rows)
    assert paired_p(DPE, YARN) == paired_p("self_extend", YARN)
    yield f"recover every key, more than YaRN (p = {paired_p(DPE, YARN):.3f}, exact paired test)"
    assert min(paired_p(name, YARN) for name in (PARTS, MR)) > 0.05
    assert paired_p(YARN, "truncation") < 0.001
    names = ("truncation", YARN, "lm_infinite")
    short, yarn, masked = (found(name)["digits"].sum() for name in names)
    yield f"Truncation recovers the {short} keys that it reads, and YaRN {yarn} (p < 0.001)"
    yield f"recovers {masked}, fewer than truncation (p = {paired_p(*names[::2]):.3f})"


def points(gains: pd.Series[float], digits: int = 0) -> str:
    value, low, high = ends(of_shares(gains.to_numpy()[:, None])[0])
    return f"{number(value, 0)} points [{number(low, digits)}, {number(high, digits)}]"


def half_up(share: float) -> str:
    return f"{math.floor(round(100 * share, 6) + 0.5)} %"


def recalled(hits: pd.Series[float]) -> str:
    low, high = proportion(hits.sum(), len(hits))
    return f"{100 * hits.mean():.1f} % [{100 * low:.0f}, {100 * high:.0f}]"


def of_ruler() -> Iterator[str]:
    runs = {name: frame(f"ruler/{name}").set_index("unit") for name in ("inside", *RULER)}
    assert all(len(rows) == 110 for rows in runs.values())
    groups = {name: rows.groupby("part", sort=False)["value"] for name, rows in runs.items()}
    means = pd.DataFrame({name: values.mean() for name, values in groups.items()})
    able = means.index[means["inside"] >= 0.3]
    assert len(able) == 5
    reached = means[means.gt(0).any(axis=1)]
    rows = [[f"`{part}`", *map(half_up, shares)] for part, shares in reached.iterrows()]
    yield table(rows)
    rows = []
    for label, kept in (("mean", means.index), ("mean of the tasks within reach", able)):
        hits = [one["value"][one["part"].isin(kept)] for one in runs.values()]
        rows.append([label, *map(recalled, hits)])
    yield table(rows)
    for value in (runs["yarn"]["value"], runs["truncation"]["value"]):
        assert f"{half_up(value.mean())} [{recalled(value).partition('[')[2]}" in FRONT
    yarn, parts, mr, short = (runs[name]["value"] for name in RULER)
    gain = yarn - short
    yield f"recovers more in {(gain > 0).sum()} of the 110 prompts and less in {(gain < 0).sum()}"
    gains = (gain, parts - short, mr - short, gain[runs["yarn"]["part"].isin(able)], yarn - parts)
    yield from (*map(points, gains), points(yarn - mr, 1))
    needles = runs["yarn"]["needle"].dropna()
    lost = needles.index[needles < BEYOND]
    counts = [int(runs[name]["value"][lost].sum()) for name in RULER]
    assert counts.pop() == 0
    yield f"cuts off {len(lost)} of the {len(needles)} needles of prompts that ask for one"
    yield "YaRN recovers {} of them, `ntk_by_parts` {} and `mr_rope` {}".format(*counts)


def of_checks() -> Iterator[str]:
    single = losses("float32/newer").join(losses("float32/ntk_by_parts"))
    single["truncation"] = losses("float32/truncation", WINDOW)["none"]
    half = far().join(moved()).rename(columns=lambda name: name.replace(":factor=2", ""))
    gaps = (half.assign(truncation=cut()) - single).loc[single.index].dropna(axis=1).abs() / BEYOND
    assert gaps.shape == (10, 10)
    yield f"by at most {number(gaps.max(axis=None))} % of the perplexity on a document"
    exact, unit = losses("long/float32", 32_768), "code-fmt-format.txt"
    parts = [frame(f"long/{run}") for run in ("perplexity", "moved")]
    half = pd.concat(parts).query("length == 32_768 and unit == @unit").set_index("scaling")
    gaps = (exact.loc[unit] - half.loc[exact.columns, "value"]).abs() / WINDOW
    yield f"by at most {number(gaps.max())} % on one document at 32,768 tokens"
    assert len(gaps) == 4
    tuned, name = losses("tune"), "yarn:factor=1.912,beta_fast=15.46,beta_slow=0.2433"
    searched = tuned.filter(like="yarn:").notna().sum(axis=1) > 1
    gaps = (tuned.loc[kept, name] - tuned.loc[kept, "yarn"] for kept in (searched, ~searched))
    near, held = (difference(gap, 128) for gap in gaps)
    yield f"{signed(near[0])} % relative to YaRN on these"
    yield change(*held)


def needles(method: str, length: int, tasks: str = "single_1|single_2|multikey_1") -> Any:
    """Return the recall of each prompt of RULER's needle tasks, by task and prompt."""
    every = frame(f"long/ruler_{method}")
    rows = every[every["length"] == length]
    task = rows["task"].str.extract(f"({tasks})")[0]
    return rows.assign(key=task + " " + rows["unit"])[task.notna()].set_index("key")["value"]


def keys_found(method: str, length: int) -> pd.Series[str]:
    short = method == "truncation"
    moved = method in ("dual_chunk", "self_extend")
    rows = frame(f"long/passkey{'_cut' * short}{'_moved' * moved}")
    rows = rows[(rows["length"] == length) & (short | (rows["scaling"] == method))]
    assert len(rows) == 50
    return rows.set_index("unit")["found"]


def digits(method: str, length: int) -> str:
    found = keys_found(method, length)
    return f"{(found != 'wrong').sum()} ({(found == 'exact').sum()})"


def of_four_windows() -> Iterator[str]:
    curves, documents = study_figure.perplexities()
    recalls, prompts = study_figure.recalls()
    curves = {"truncation": [(0.0, 0.0, 0.0)] * 3, **curves}
    keys = {
        "truncation",
        *frame("long/passkey")["scaling"],
        *frame("long/passkey_moved")["scaling"],
    }
    rows, empty = [], ["–"] * 3
    for method, name in {"truncation": "truncation", **study_figure.NAMES}.items():
        scores = [change(*score) if any(score) else "0" for score in curves[name]]
        shares = [f"{number(share, 0)} %" for share, *_ in recalls.get(name, [])]
        passkeys = [digits(method, length) for length in study_figure.LENGTHS if method in keys]
        short = f"`{method.replace(':factor=4', '')}`" if method != "truncation" else method
        rows.append([short, *scores, *(shares or empty), *(passkeys or empty)])
    yield table(rows)
    assert (documents, prompts) == (30, 60)
    assert f"30 documents, {prompts} prompts" in FRONT
    yield from of_needles()
    costs = study_figure.losses()
    cut = costs.loc[("none", WINDOW)]
    moved, mr, yarn = (
        costs.loc[(name, 32_768)] for name in ("dual_chunk", "mr_rope:factor=4", "yarn:factor=4")
    )
    yield told(mr - yarn, 2)
    books, code, documentation = by_kind(moved - cut)
    yield f"{books} from truncation, on documentation {documentation} and on code {code}"
    parts, yarn = (
        keys_found(name, 32_768) != "wrong" for name in ("ntk_by_parts:factor=4", "yarn:factor=4")
    )
    yield f"fewer needles and more passkeys than YaRN (p = {mcnemar(parts, yarn):.3f})"
    moved, yarn = (keys_found(name, FAR) != "wrong" for name in ("dual_chunk", "yarn:factor=4"))
    assert mcnemar(moved, yarn) < 0.001
    yield f"{moved.sum()} at 16,384 tokens, and YaRN {yarn.sum()} (p < 0.001)"
    value, low, high = curves["YaRN"][2]
    price = f"{number(value)} % [{number(low)}, {number(high)}]"
    yield price
    assert price in FRONT


def of_needles() -> Iterator[str]:
    names = ("dual_chunk", "yarn", "mr_rope", "ntk_by_parts", "truncation")
    moved, yarn, mr, parts, cut = (needles(name, 32_768) for name in names)
    shares = [recalled(values) for values in (moved, yarn, cut)]
    yield from shares
    yield from (points(one - other[one.index]) for one, other in ((moved, yarn), (yarn, cut)))
    near = needles("truncation", WINDOW) - needles("yarn", WINDOW)
    yield points(near) + " fewer needles"
    _, low, high = ends(of_shares((yarn - mr[yarn.index]).to_numpy()[:, None])[0])
    assert low < 0 < high
    assert parts.mean() < yarn.mean()
    several = [needles(name, 32_768, "multivalue|multiquery") for name in names[1:]]
    several += [needles(name, FAR, "multivalue|multiquery") for name in ("yarn", "truncation")]
    assert all(len(values) == 40 for values in several)
    yield from map(recalled, several)
    _, low, high = ends(of_shares((several[0] - several[3]).to_numpy()[:, None])[0])
    assert low < 0 < high
    left = frame("long/ruler_dual_chunk")["task"].str.contains("multivalue|multiquery").sum()
    yield f"measured on {left} of the 120 prompts that ask for several numbers"
    assert f"recovers {shares[0]}" in FRONT
    assert f"YaRN {shares[1]} and truncation {shares[2]}" in FRONT


def test_the_page_states_what_its_samples_give():
    first = (of_all_documents, of_the_decision, of_moved_positions, of_single_tokens)
    parts = (*first, of_passkeys, of_ruler, of_checks, of_four_windows)
    claims = [claim for part in parts for claim in part()]
    assert faults(STUDY, claims, GIVEN.split()) == []
