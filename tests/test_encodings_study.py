"""The numbers of ``results/encodings/README.md`` are computed here again from its samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

import ropewalk as rw
from ropewalk.harness.reports import seeds
from ropewalk.harness.stats.paired import holm
from tests import ROOT
from tests.study import change, faults, number, over_seeds, signed, table

STUDY = ROOT / "results" / "encodings"
TAIL, WHOLE, KEYS = "perplexity:tail=48", "perplexity:protocol=prefix", "passkey:depths=5,trials=5"
FIRST, TEXT_ONLY, LONG = "encodings", "no_passkeys", "long"
# Numbers of the recipe, and lengths.
GIVEN = "1.1 9 54 14 1 6 2 3 4 5 7 8 10 0.2 0.1 23 25 48 64 95 128 256 512 1024 2048 3000 6000"
METHODS = ("none", "yarn", "self_extend", "rerope", "lm_infinite")
NAMES = ("transformer_xl", "t5", "kerple", "alibi")


@cache
def frame(part: str) -> pd.DataFrame:
    return rw.frame(STUDY / "samples.parquet" / part)


@cache
def samples(part: str) -> pd.DataFrame:
    """Return the measured samples by model, scaling, task, length, seed and unit."""
    rows = frame(part).query("status == 'ok'")
    names = rows["model"].str.extract(r"(?P<model>.*)-seed(?P<seed>\d)")
    rows = rows.assign(model=names["model"], seed=names["seed"].astype(int))
    keys = ["model", "scaling", "task", "length", "seed", "unit"]
    return rows.set_index(keys)[["value", "weight", "depth"]].sort_index()


@cache
def scores(part: str) -> pd.DataFrame:
    """Return the mean loss in nats, or the share of passkeys: one column per seed."""
    rows = samples(part)[["value", "weight"]].groupby(level=[0, 1, 2, 3, 4]).sum()
    return (rows["value"] / rows["weight"]).unstack()


def of(part: str, model: str, method: str, task: str, length: int) -> pd.Series[float]:
    """Return the score of every seed; nothing if the model cannot read the length."""
    return scores(part).reindex([(model, method, task, length)]).iloc[0].dropna()


def keys(part: str, model: str, method: str, length: int) -> pd.Series[float]:
    """Return the share of passkeys of each seed that recovers more than half at 256 tokens."""
    inside = of(part, model, "none", KEYS, 256)
    return of(part, model, method, KEYS, length).reindex(inside.index[inside > 0.5]).dropna()


def rise(part: str, model: str, method: str) -> pd.Series[float]:
    return of(part, model, method, TAIL, 2048) - of(part, model, method, TAIL, 256)


def less(part: str, model: str, baseline: str, method: str = "none") -> str:
    """Return the change of perplexity on whole windows from rotary under a method, seed by seed."""
    base = of(part, "rope", baseline, WHOLE, 2048)
    return over_seeds((of(part, model, method, WHOLE, 2048) - base).dropna())


@cache
def means(part: str) -> pd.DataFrame:
    columns = ["model", "scaling", "task", "length"]
    return seeds.make(frame(part)).set_index(columns).sort_index()


def mean_change(part: str, model: str, method: str, length: int = 2048) -> str:
    """Return the change from 256 tokens, with an interval for random seeds and documents."""
    cell = means(part).loc[(model, method, TAIL, length)]
    return change(*(float(cell[end]) for end in ("change", "change_low", "change_high")))


def trainings(part: str) -> pd.DataFrame:
    every = pd.read_csv(STUDY / "trainings.csv", dtype={"passkeys from step": "Int64"})
    return every[every["training"] == part].set_index("model")


def perplexity(part: str, model: str, method: str, length: int) -> str:
    losses = of(part, model, method, TAIL, length)
    if losses.empty:
        return "no positions"
    ends = np.exp([losses.mean(), losses.min(), losses.max()])
    return "{} ({}–{})".format(*(f"{end:.{int(ends[0] < 99.95)}f}" for end in ends))


def shares(values: pd.Series[float]) -> str:
    return ", ".join(f"{100 * value:.0f}" for value in values) or "–"


def row(part: str, model: str, method: str) -> list[str]:
    inside = of(part, model, "none", KEYS, 256)
    failed = of(part, model, method, TAIL, 2048).empty
    return [
        f"`rope · {method}`" if model == "rope" else f"`{model}`",
        f"{(inside > 0.5).sum()} of {len(of(part, model, method, TAIL, 256))}",
        perplexity(part, model, method, 256),
        perplexity(part, model, method, 2048),
        "–" if failed else mean_change(part, model, method),
        *(shares(keys(part, model, method, length)) for length in (1024, 2048)),
    ]


def row_without_prompts(model: str, method: str) -> list[str]:
    own = rise(TEXT_ONLY, model, method)
    return [
        f"`rope · {method}`" if model == "rope" else f"`{model}`",
        perplexity(TEXT_ONLY, model, method, 256),
        perplexity(TEXT_ONLY, model, method, 2048),
        ", ".join(map(signed, np.expm1(own))),
        ", ".join(map(signed, np.expm1(rise(FIRST, model, method)[own.index]))),
    ]


def tables() -> Iterator[str]:
    rope = [("rope", method) for method in METHODS]
    others = [(model, "none") for model in scores(FIRST).index.levels[0] if model != "rope"]
    yield table(row(FIRST, *cell) for cell in (*rope, *others))
    some = [*rope, *((name, "none") for name in NAMES)]
    yield table(row(LONG, *cell) for cell in some)
    yield table(row_without_prompts(*cell) for cell in some)
    cells = ((FIRST, "self_extend"), (LONG, "self_extend"), (LONG, "lm_infinite"))
    yield table([f"`{name}`", *(less(part, name, base) for part, base in cells)] for name in NAMES)
    fell = scores(LONG).xs((TAIL, 256), level=(2, 3)) - scores(FIRST).xs((TAIL, 256), level=(2, 3))
    yield from (over_seeds(fell.loc[(name, "none")].dropna()) for name in ("rope", *NAMES))


def what_was_measured() -> Iterator[str]:
    models = trainings(FIRST)
    assert models["parameters"].max() / models["parameters"].min() < 1.02
    documents = samples(FIRST).loc[("rope", "none", TAIL, 256, 1)].index
    modules = documents.str.endswith(".py")
    yield f"{len(documents)} documents: {modules.sum()} modules of Python and {(~modules).sum()}"
    inside = scores(FIRST).xs((KEYS, 256), level=("task", "length")).stack()
    assert not inside.between(0.05, 0.87).any()
    yield "recovers either at most 4 % or at least 88 %"


def findings() -> Iterator[str]:
    steady = [(name, "none") for name in ("alibi", "t5", "kerple", "transformer_xl")]
    steady += [("fire-held=true", "none"), ("rope", "self_extend"), ("rope", "lm_infinite")]
    most = max(np.expm1(rise(FIRST, *cell)).max() for cell in steady)
    yield f"rises by at most {math.ceil(100 * most)} % in every seed"
    rising = np.expm1(pd.concat([rise(FIRST, name, "none") for name in ("shaw", "fire", "xpos")]))
    yield f"by {number(rising.min(), 0)} to {number(rising.max(), 0)} % with Shaw, FIRE and xPos"
    better = means(FIRST).xs(TAIL, level="task").query("change_high < 0 and length > 256").index
    assert [*better] == [("transformer_xl", "none", 512), ("transformer_xl", "none", 1024)]
    yield from (mean_change(FIRST, *cell) for cell in better)
    assert (rise(FIRST, "alibi", "none") < 0).all()
    assert not of(FIRST, "rope", "none", KEYS, 512).any()
    far = [keys(FIRST, name, "none", 2048).min() for name in ("kerple", "transformer_xl", "shaw")]
    yield f"recover at least {number(min(far), 0)} % of the keys"
    for cell, most in ((("rope", "lm_infinite"), 1), (("alibi", "none"), 3)):
        found = samples(FIRST).loc[(*cell, KEYS, 2048)].query("value > 0")["depth"]
        assert sorted(found.groupby("seed").nunique())[-4:] == [1, 1, 1, most]
    held = keys(FIRST, "fire-held=true", "none", 2048)
    most = of(FIRST, "fire", "none", KEYS, 512).max()
    yield f"finds at most {number(most, 0)} % of the keys at two windows and none beyond"
    yield f"the same weights find {number(held.min(), 0)} to {number(held.max(), 0)} %"
    for task in (TAIL, WHOLE):
        for length in (256, 2048):
            every = scores(FIRST).xs((task, length), level=("task", "length"))
            assert {model for model, _ in every.idxmin()} == {"transformer_xl"}
    losses = scores(FIRST).xs((WHOLE, 2048), level=(2, 3))
    gaps = losses.drop(("rope", "self_extend")) - losses.loc[("rope", "self_extend")]
    odds = [stats.ttest_1samp(gap.dropna(), 0).pvalue for _, gap in gaps.iterrows()]
    assert len(odds) == 20
    corrected = dict(zip(gaps.index, holm(odds), strict=True))
    least = corrected["transformer_xl", "none"]
    yield f"after correction for all 20 comparisons (p = {least:.2f}, Holm)"
    assert all(corrected[model, "none"] > 0.05 for model in ("t5", "kerple", "alibi", "fire"))
    kerple, rotary = keys(FIRST, "kerple", "none", 2048), keys(FIRST, "rope", "self_extend", 2048)
    odds = stats.mannwhitneyu(kerple, rotary, method="exact").pvalue
    yield f"(p = {odds:.3f}, exact rank test)"
    order = ["lm_infinite", "self_extend", "rerope", "yarn", "ntk_by_parts", "ntk", "pi"]
    ranks = losses.loc["rope"].loc[order].rank()
    assert ranks.eq(np.arange(1, 8), axis=0).all(axis=None)
    yield from (less(FIRST, "rope", order[1], name) for name in order if name != order[1])
    step = trainings(FIRST)["step, relative to rope"]
    yield f"takes from {step.min():.1f} (no encoding) to {step.max():.1f} times (DeBERTa)"


def twice_the_steps() -> Iterator[str]:
    own = of(LONG, "transformer_xl", "none", WHOLE, 2048)
    for name in ("self_extend", "lm_infinite"):
        assert own.max() < of(LONG, "rope", name, WHOLE, 2048).min()
    t5, kerple = (of(LONG, name, "none", WHOLE, 2048) for name in ("t5", "kerple"))
    yield from (over_seeds(own - t5), over_seeds(own - kerple))
    steps = 3000 * trainings(FIRST).filter(like="transformer", axis=0)["step, relative to rope"]
    yield f"3000 steps of Transformer-XL take as long as {steps.median():.0f} of rotary"
    half = of(FIRST, "transformer_xl", "none", WHOLE, 2048)
    yield over_seeds(half - of(LONG, "rope", "self_extend", WHOLE, 2048))
    depths = samples(LONG).loc[("alibi", "none", KEYS, 2048)].query("value > 0")["depth"]
    assert depths.min() == 0.5
    steps = trainings(LONG)["passkeys from step"]
    yield f"inside the window first at steps {steps.min()} to {steps.max()}"


def without_prompts() -> Iterator[str]:
    plain = np.exp(rise(TEXT_ONLY, "rope", "none"))
    yield f"{plain.min():.1f} to {plain.max():.1f} times as high as at 256"
    kept = [*((name, "none") for name in NAMES), ("rope", "self_extend"), ("rope", "lm_infinite")]
    most = max(np.expm1(rise(TEXT_ONLY, *cell)).max() for cell in kept)
    yield f"no seed rises by more than {math.ceil(100 * most)} %"
    more = [rise(TEXT_ONLY, name, "none") - rise(FIRST, name, "none") for name in ("rope", "alibi")]
    yield from (over_seeds(gap.dropna()) for gap in more)
    found = scores(TEXT_ONLY).xs(KEYS, level="task").stack().loc[lambda share: share > 0]
    assert [*found.index] == [("t5", "none", 128, 2)]
    yield f"One seed of T5 recovers {25 * found.iloc[0]:.0f} of 25 keys at 128 tokens"


def test_the_page_states_what_its_samples_give():
    parts = (tables, what_was_measured, findings, twice_the_steps, without_prompts)
    claims = [claim for part in parts for claim in part()]
    assert faults(STUDY, claims, GIVEN.split()) == []
