"""The numbers in ``results/encodings/README.md`` are computed here again from its samples."""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import ropewalk as rw
from harness.reports import agreement, seeds

STUDY = Path(__file__).parents[1] / "results" / "encodings"
TEXT = (STUDY / "README.md").read_text(encoding="utf-8")
WHERE = ["model", "method", "task", "length", "seed"]
TAIL, PREFIX, KEYS = "perplexity:tail=48", "perplexity:protocol=prefix", "passkey:depths=5,trials=5"
# What ends the name of a model that was trained otherwise than those of the first table.
WITHOUT, TWICE = " without passkey prompts", " of 6000 steps"
# The encodings that were trained for twice the steps, besides rotary.
LONG = ("transformer_xl", "kerple", "alibi", "t5")
LEARNED = 0.5  # the share of passkeys inside the window; no seed is between 4 % and 88 %
ROTARY = ("none", "yarn", "self_extend", "rerope", "lm_infinite")
ROWS = [("rope", method) for method in ROTARY] + [
    (name, "none")
    for name in (
        "xpos", "transformer_xl", "t5", "shaw", "deberta", "kerple", "alibi", "fire",
        "fire-held=true", "untied", "sinusoidal", "learned", "none", "rope_linear",
        "rope_linear-rotated=false",
    )
]  # fmt: skip
NAMES = {
    "rope none": "`rope`", "rope yarn": "`rope`, YaRN", "rope self_extend": "`rope`, Self-Extend",
    "rope rerope": "`rope`, ReRoPE", "rope lm_infinite": "`rope`, LM-Infinite",
    "fire-held=true none": "`fire`, held", "none none": "no encoding (`none`)",
    "rope_linear-rotated=false none": "`rope_linear`, not rotated",
}  # fmt: skip


def first_table(model: str) -> bool:
    """Return whether a model was trained as those of the first table."""
    return not model.endswith((WITHOUT, TWICE))


PARTS = {"encodings": "", "no_passkeys": WITHOUT, "long": TWICE}


@cache
def frame(part: str) -> pd.DataFrame:
    return rw.frame(STUDY / "samples.parquet" / part)


@cache
def samples() -> pd.DataFrame:
    """Return one row per sample.

    ``digits`` says whether the key is in the answer's most likely, ``placed`` how many of its
    digits are the most likely ones at their places, and ``guesses`` how many of these are digits.
    A token of the most likely answer is a word or one character.
    """
    every = pd.concat([frame(part).assign(ending=end) for part, end in PARTS.items()])
    every = every[every["status"] == "ok"]
    model, seed = every["model"].str.extract(r"(.*)-seed(\d)").to_numpy().T
    likely = every["argmax"].fillna("").map(lambda text: re.findall(r" ?[^\W\d]+|.", text)[-5:])
    placed = [sum(map(str.__eq__, key, answer)) for key, answer in
              zip(every["key"].fillna(""), likely, strict=True)]  # fmt: skip
    every = every.assign(
        model=model + every["ending"], method=every["scaling"], seed=seed.astype(int),
        digits=every["found"].isin(["exact", "format"]), placed=placed,
        guesses=likely.map(lambda answer: sum(map(str.isdigit, answer))),
    )  # fmt: skip
    columns = ["value", "weight", "digits", "placed", "guesses"]
    return every.set_index([*WHERE, "unit"])[columns].sort_index()


@cache
def trainings(part: str = "encodings") -> pd.DataFrame:
    table = pd.read_csv(STUDY / "trainings.csv")
    return table[table["training"] == part].set_index("model")


@cache
def scores() -> pd.Series[float]:
    """Return the accuracy or the mean loss in nats of each model, method, task, length and seed."""
    total = samples()[["value", "weight"]].groupby(level=WHERE).sum()
    return total["value"] / total["weight"]


def by_document(model: str, method: str, task: str, length: int) -> pd.DataFrame:
    """Return the mean loss in nats, a row per seed and a column per document."""
    rows = samples().loc[(model, method, task, length)]
    return (rows["value"] / rows["weight"]).unstack()


def of(model: str, method: str, task: str, length: int) -> pd.Series[float]:
    """Return the value of every seed."""
    try:
        return scores().loc[(model, method, task, length)]
    except KeyError:
        return pd.Series(dtype=float)


def learned(model: str) -> list[int]:
    """Return the seeds that recover passkeys inside the window."""
    inside = of(model, "none", KEYS, 256)
    return list(inside.index[inside > LEARNED])


def change(ratios: pd.Series[float]) -> str:
    """Return the geometric mean of ratios, given as logarithms, with Student's t over seeds."""
    half = stats.t.ppf(0.975, len(ratios) - 1) * ratios.std(ddof=1) / math.sqrt(len(ratios))
    return as_changes(ratios.mean(), ratios.mean() - half, ratios.mean() + half)


def as_changes(*logarithms: float) -> str:
    """Return a mean and the ends of its interval as changes."""
    mean, low, high = map(math.exp, logarithms)
    if mean > 5:
        return f"{mean:.1f} times [{low:.1f}, {high:.1f}]"
    return f"{percent(mean)} % [{percent(low)}, {percent(high)}]"


def crossed(differences: pd.DataFrame) -> tuple[float, float]:
    """Return the 95 % interval of a mean with crossed random seeds and documents, in nats.

    Variances by the method of moments, degrees of freedom by Satterthwaite.
    """
    values = differences.to_numpy()
    seeds, documents = values.shape
    rows, columns, mean = values.mean(1), values.mean(0), values.mean()
    rest = values - rows[:, None] - columns + mean
    terms = [
        (documents * rows.var(ddof=1), seeds - 1),
        (seeds * columns.var(ddof=1), documents - 1),
        (-(rest**2).sum() / ((seeds - 1) * (documents - 1)), (seeds - 1) * (documents - 1)),
    ]
    total = max(sum(square for square, _ in terms), terms[0][0], terms[1][0])
    freedom = total**2 / sum(square**2 / count for square, count in terms)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(total / values.size)
    return mean - half, mean + half


def from_window(model: str, method: str, length: int = 2048) -> pd.DataFrame:
    """Return how much higher the loss of every seed and document is than at 256 tokens."""
    return by_document(model, method, TAIL, length) - by_document(model, method, TAIL, 256)


@cache
def reported(part: str = "encodings") -> pd.DataFrame:
    """Return the means over seeds of a report, by model, method, task and length."""
    table = seeds.make(frame(part))
    return table.set_index(["model", "scaling", "task", "length"]).sort_index()


def reported_change(model: str, method: str, length: int = 2048) -> str:
    """Return the report's change from 256 tokens, for random seeds and random documents."""
    part = "long" if model.endswith(TWICE) else "encodings"
    cell = reported(part).loc[(model.removesuffix(TWICE), method, TAIL, length)]
    return as_changes(*(math.log1p(cell[end]) for end in ("change", "low_change", "high_change")))


def percent(ratio: float) -> str:
    value = 100 * (ratio - 1)
    text = f"{abs(value):.1f}" if abs(value) < 9.95 else f"{abs(value):.0f}"
    return ("−" if value < 0 else "+") + text


def perplexity(model: str, method: str, length: int) -> str:
    losses = of(model, method, TAIL, length)
    if losses.empty:
        return "no positions"
    digits = 0 if losses.mean() > math.log(99.95) else 1
    low, mean, high = (math.exp(x) for x in (losses.min(), losses.mean(), losses.max()))
    return f"{mean:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def keys(model: str, method: str, length: int) -> str:
    seeds = learned(model)
    shares = of(model, method, KEYS, length)
    if not seeds:
        return "–"
    if shares.empty:
        return "no positions"
    return ", ".join(f"{100 * shares[seed]:.0f}" for seed in seeds)


def row(model: str, method: str) -> str:
    """Return a row of the study's table."""
    inside, far = of(model, method, TAIL, 256), of(model, method, TAIL, 2048)
    cells = [
        NAMES.get(f"{model.removesuffix(TWICE)} {method}", f"`{model.removesuffix(TWICE)}`"),
        f"{len(learned(model))} of {len(inside)}",
        perplexity(model, method, 256),
        perplexity(model, method, 2048),
        "" if far.empty else reported_change(model, method),
        keys(model, method, 1024),
        keys(model, method, 2048),
    ]
    return "| " + " | ".join(cells) + " |"


def right(model: str, method: str, length: int, what: str = "placed") -> pd.Series[float]:
    """Return the share of the keys' digits that are the most likely at their places, by seed."""
    rows = samples().loc[(model, method, KEYS, length), what]
    return rows.groupby(level="seed").mean() / 5


def row_without(model: str, method: str) -> str:
    """Return a row of the table of models that were trained without passkey prompts."""
    name = model + WITHOUT
    own, with_prompts = lengths(TAIL, name, method), lengths(TAIL, model, method)
    cells = [
        NAMES.get(f"{model} {method}", f"`{model}`"),
        perplexity(name, method, 256),
        perplexity(name, method, 2048),
        ", ".join(percent(ratio) for ratio in np.exp(own)),
        ", ".join(percent(ratio) for ratio in np.exp(with_prompts[own.index])),
        *(
            ", ".join(f"{100 * share:.0f}" for share in right(name, method, length))
            for length in (128, 256, 512, 2048)
        ),
    ]
    return "| " + " | ".join(cells) + " |"


def against(baseline: str, model: str, length: int, method: str = "none") -> pd.Series[float]:
    """Return how much higher each seed's loss is than that of rotary under a method."""
    base = of("rope", baseline, PREFIX, length)
    return (of(model, method, PREFIX, length) - base).dropna()


def lengths(task: str, model: str, method: str = "none") -> pd.Series[float]:
    """Return how much higher each seed's loss is at 2048 than at 256 tokens."""
    return of(model, method, task, 2048) - of(model, method, task, 256)


def at_2048(model: str, method: str = "none") -> pd.Series[float]:
    """Return the share of passkeys at 2048 tokens of each seed that learned to copy."""
    return of(model, method, KEYS, 2048)[learned(model)]


def rank_test(some: pd.Series[float], others: pd.Series[float]) -> float:
    """Return the two-sided p-value of the exact rank test."""
    ranks = stats.rankdata([*some, *others])
    sums = np.array([sum(chosen) for chosen in combinations(ranks, len(some))])
    far = np.abs(sums - sums.mean())
    return float((far >= abs(ranks[: len(some)].sum() - sums.mean()) - 1e-9).mean())


def test_what_was_trained_and_measured_is_that_of_the_text():
    """Models, documents and passkeys, as the page introduces them."""
    flat, table = " ".join(TEXT.split()), trainings().reset_index()
    seeds = table["model"].str.replace(r"-seed\d", "", regex=True).value_counts()
    encodings = seeds.drop("rope_linear-rotated=false")
    assert len(encodings) == 14
    assert encodings.value_counts().to_dict() == {3: 8, 5: 6}
    assert table["parameters"].max() / table["parameters"].min() < 1.02
    assert table["parameters"].div(1e6).round(1).eq(1.1).all()
    assert (trainings()["steps"] == 3000).all()
    assert (trainings("long")["steps"] == 6000).all()
    documents = by_document("rope", "none", TAIL, 256).columns
    modules = documents.str.endswith(".py").sum()
    chapters = documents.str.startswith("topics/").sum()
    assert f"{len(documents)} documents that were not trained on: {modules} modules" in flat
    assert f"and {chapters} chapters" in flat
    low, high = stats.binomtest(23, 25).proportion_ci(method="wilson")
    assert f"interval from {100 * low:.0f} to {100 * high:.0f} %" in flat


def by_depth(model: str, method: str, length: int) -> pd.DataFrame:
    """Return how many of the five keys of each depth are recovered, by seed that learned."""
    rows = samples().loc[(model, method, KEYS, length), "value"].unstack().loc[learned(model)]
    return rows.T.groupby(lambda unit: float(unit.split()[1])).sum().T


def test_depths_at_which_keys_are_found_are_those_of_the_text():
    """Finding 4, and the observation about DeBERTa."""
    alibi, masked = by_depth("alibi", "none", 2048), by_depth("rope", "lm_infinite", 2048)
    assert not masked.drop(columns=1.0).any(axis=None)
    assert alibi.drop(columns=1.0).any(axis=1).sum() == 1
    assert (alibi[1.0] == 5).all()
    assert by_depth("deberta", "none", 1024).to_numpy().tolist() == [[5, 5, 0, 0, 1]]


def test_linear_attention_inside_the_window_is_that_of_the_text():
    flat, rotated = " ".join(TEXT.split()), of("rope_linear", "none", TAIL, 256)
    plain, nothing = (
        of("rope_linear-rotated=false", "none", TAIL, 256),
        of("none", "none", TAIL, 256),
    )
    worse, better = 100 * np.expm1(plain - nothing), -100 * np.expm1(rotated - plain)
    assert f"is {worse.min():.0f} to {worse.max():.0f} % worse than no encoding" in flat
    assert f"is {better.min():.0f} to {better.max():.0f} % better than without" in flat


@pytest.mark.parametrize(("model", "method"), ROWS)
def test_a_row_of_the_table_is_that_of_the_samples(model, method):
    assert row(model, method) in TEXT


def test_changes_in_the_report_are_those_of_the_samples_for_random_seeds_and_documents():
    """Their means, and intervals that contain those of crossed effects, computed here."""
    cells = reported().xs(TAIL, level="task").dropna(subset="change")
    known = scores().xs(TAIL, level="task").index.droplevel("seed").unique()
    past = [cell for cell in known if first_table(cell[0]) and cell[-1] != 256]
    assert set(cells.index) == set(past)
    for (model, method, length), cell in cells.iterrows():
        differences = from_window(model, method, length)
        assert cell["change"] == pytest.approx(math.expm1(differences.to_numpy().mean()))
        low, high = np.expm1(crossed(differences))
        assert cell["low_change"] < low
        assert high < cell["high_change"]


WITHOUT_NAMES = ("rope", "transformer_xl", "t5", "kerple", "alibi")
WITHOUT_ROWS = [*product(["rope"], ROTARY), *product(WITHOUT_NAMES[1:], ["none"])]


@pytest.mark.parametrize(("model", "method"), WITHOUT_ROWS)
def test_a_row_without_passkey_prompts_is_that_of_the_samples(model, method):
    assert row_without(model, method) in TEXT


def without_prompts(task: str, model: str, method: str = "none") -> pd.Series[float]:
    """Return how much more each seed's loss rises if it is trained without passkey prompts."""
    return (lengths(task, model + WITHOUT, method) - lengths(task, model, method)).dropna()


def test_every_model_without_passkey_prompts_has_three_seeds():
    assert "with three seeds each. Three quarters" in " ".join(TEXT.split())
    table = trainings("no_passkeys").reset_index()
    trained = sorted(f"{name}-seed{seed}" for name in WITHOUT_NAMES for seed in (1, 2, 3))
    assert table["model"].tolist() == trained
    for model, method in WITHOUT_ROWS:
        for task in (TAIL, PREFIX, KEYS):
            assert of(model + WITHOUT, method, task, 2048).index.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("model", "method"), WITHOUT_ROWS)
def test_what_passkey_prompts_change_is_narrower_than_6_points_only_for_alibi(model, method):
    _, low, high = parts(change(without_prompts(TAIL, model, method)))
    width = float(high) - float(low.replace("−", "-"))
    assert (width < 6) == (model == "alibi")


def test_perplexity_without_passkey_prompts_is_that_of_the_text():
    """How far the change depends on the prompts, and where Transformer-XL leads."""
    flat = " ".join(TEXT.split())
    rise = np.exp(lengths(TAIL, "rope" + WITHOUT))
    assert f"at eight windows is {rise.min():.1f} to {rise.max():.1f} times that at one" in flat
    kept = [("transformer_xl", "none"), ("kerple", "none"), ("alibi", "none")]
    kept += [("rope", "self_extend"), ("rope", "lm_infinite")]
    most = max(np.exp(lengths(TAIL, model + WITHOUT, method)).max() for model, method in kept)
    assert f"no seed rises by more than {math.ceil(100 * (most - 1))} %" in flat
    worst = np.exp(lengths(TAIL, "t5" + WITHOUT)).max()
    assert f"one seed of T5 rises by {percent(worst).lstrip('+')} %" in flat
    for model, method, name in (
        ("rope", "none", "rotary"), ("rope", "yarn", "YaRN"), ("t5", "none", "T5"),
        ("transformer_xl", "none", "Transformer-XL"),
    ):  # fmt: skip
        assert f"{change(without_prompts(TAIL, model, method))} for {name}" in flat
    near, far = (change(without_prompts(task, "alibi")) for task in (TAIL, PREFIX))
    assert f"For ALiBi it is {near} on the last 48 tokens and {far} on whole windows" in flat
    read = pd.DataFrame({name: of("rope" + WITHOUT, name, PREFIX, 2048) for name in ROTARY})
    order = read[["lm_infinite", "self_extend", "rerope", "yarn", "none"]]
    assert (order.rank(axis=1).to_numpy() == np.arange(1, 6)).all()
    base = of("rope" + WITHOUT, "self_extend", PREFIX, 2048)
    ratios = np.exp(of("transformer_xl" + WITHOUT, "none", PREFIX, 2048) - base)
    first, second, third = (percent(ratio).lstrip("+−") for ratio in ratios)
    assert (ratios < 1).tolist() == [True, False, True]
    assert f"it is {first} and {third} % below rotary under Self-Extend" in flat
    copies = right("transformer_xl" + WITHOUT, "none", 128) > 0.5
    assert copies.tolist() == [True, False, True]
    assert f"and {second} % above it in the one that does not" in flat


def test_copying_without_passkey_prompts_is_that_of_the_text():
    """Keys and their digits, and the rank correlation of digits with perplexity."""
    flat = " ".join(TEXT.split())
    keys = scores().xs(KEYS, level="task")
    keys = keys[[model.endswith(WITHOUT) for model in keys.index.get_level_values("model")]]
    found = 25 * keys[keys > 0]
    assert set(found.index) == {("t5" + WITHOUT, "none", 128, 2)}
    assert f"recovers {found.iloc[0]:.0f} of 25 keys at 128 tokens" in flat
    models = [model + WITHOUT for model in WITHOUT_NAMES]
    far = pd.concat([right(model, "none", 2048) for model in models])
    assert f"At 2048 tokens it is at most {100 * far.max():.0f} %" in flat
    digits = pd.concat([right(model, "none", 128) for model in models])
    losses = pd.concat([of(model, "none", TAIL, 256) for model in models])
    correlation = stats.spearmanr(digits, losses).statistic
    low, high = agreement.interval(correlation, len(digits))
    told = f"rank correlation of {correlation:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    assert f"{told}, if the {len(digits)} models are taken as independent" in flat
    assert f"Over the {len(digits)} models of five encodings" in flat
    cells = [(m + WITHOUT, how, n) for m, how in WITHOUT_ROWS for n in (128, 256, 512, 2048)]
    shares = pd.concat([right(*cell) for cell in cells])
    guesses = pd.concat([right(*cell, "guesses") for cell in cells])[shares.to_numpy() < 0.1]
    assert f"only {100 * guesses.mean():.0f} % of the most likely tokens are digits" in flat


@pytest.mark.parametrize(
    ("model", "method"), [*product(["rope"], ROTARY), *product(LONG, ["none"])]
)
def test_a_row_of_twice_the_steps_is_that_of_the_samples(model, method):
    assert row(model + TWICE, method) in TEXT


def test_what_twice_the_steps_change_is_that_of_the_text():
    """Perplexity beside 3000 steps and other encodings, and when every seed learned to copy."""
    flat, name = " ".join(TEXT.split()), "rope" + TWICE
    table = trainings("long")
    least = min(of(model, "none", TAIL, 256).min() for model, method in ROWS if method == "none")
    for model, told in (
        ("rope", "at steps {}, by seed"),
        ("transformer_xl", "Transformer-XL at steps {}, KERPLE"),
        ("kerple", "KERPLE at steps {}, ALiBi"),
        ("alibi", "ALiBi at steps {} and"),
        ("t5", "T5 at steps {} ("),
    ):
        first = table["passkeys from step"].filter(like=f"{model}-").sort_index().astype(int)
        assert told.format(", ".join(map(str, first))) in flat
        assert (of(model + TWICE, "none", KEYS, 256) == 1).all()
        assert of(model + TWICE, "none", TAIL, 256).max() < least
    for model, told in (
        ("rope", "{} for rotary (five"),
        ("transformer_xl", "{} for Transformer-XL (three"),
        ("kerple", "{} for KERPLE (three"),
        ("alibi", "{} for ALiBi (three"),
        ("t5", "{} for T5 (three"),
    ):
        fell = of(model + TWICE, "none", TAIL, 256) - of(model, "none", TAIL, 256)
        assert f"by {told.format(change(fell.dropna()))}" in flat
    far = of("transformer_xl", "none", PREFIX, 2048)
    for method, told in (("self_extend", "Self-Extend"), ("lm_infinite", "LM-Infinite")):
        for task in (TAIL, PREFIX):
            ahead = of(name, method, task, 2048) < of("transformer_xl", "none", task, 2048)
            assert ahead.all()
        more = change(far - of(name, method, PREFIX, 2048))
        assert f"{more} from rotary under {told}" in flat
    costs = trainings()["step, relative to rope"]
    equal = 3000 * costs[costs.index.str.startswith("transformer_xl")].median()
    assert f"3000 steps of Transformer-XL are about {equal:.0f} of rotary" in flat
    costs = trainings("long")
    again = costs.filter(like="transformer_xl", axis=0)["step, relative to rope"].median()
    assert f"and about {3000 * again:.0f} when the costs were" in flat
    more = [100 * (6000 / steps - 1) for steps in (equal, 3000 * again)]
    assert f"had {more[0]:.0f} to {more[1]:.0f} % more time" in flat
    assert f"takes {again:.1f} to {equal / 3000:.2f} times as long" in flat


def test_transformer_xl_still_leads_after_twice_the_steps():
    """Against rotary of the same seed, and seed by seed against all five."""
    flat, name, base = " ".join(TEXT.split()), "transformer_xl" + TWICE, "rope" + TWICE
    own = of(name, "none", PREFIX, 2048)
    shown = (
        ("self_extend", "{} from rotary under Self-Extend of the same seed", "are {} and"),
        ("lm_infinite", "{} from rotary under LM-Infinite. Relative", "and {}. At 2048"),
    )
    for method, told, from_own in shown:
        other = of(base, method, PREFIX, 2048)
        assert told.format(change((own - other).dropna())) in flat
        ratio = (lengths(PREFIX, name) - lengths(PREFIX, base, method)).dropna()
        assert from_own.format(change(ratio)) in flat
        assert own.max() < other.min()
        assert f"(p = {rank_test(own, other):.2f}, two-sided exact rank test" in flat
    near, plain = of(name, "none", PREFIX, 256), of(base, "none", PREFIX, 256)
    assert f"At 256 tokens the difference is {change((near - plain).dropna())}." in flat
    p = stats.ttest_ind(near, plain, equal_var=False).pvalue
    assert f"it is without pairing (p = {p:.2f}, Welch)" in flat
    before = against("self_extend", "transformer_xl", 2048)[own.index]
    assert f"differ by {change(before)} from Self-Extend" in flat
    after = (own - of(base, "self_extend", PREFIX, 2048)).dropna()
    assert f"was not determined: {change(after - before)}." in flat
    assert f"still leads: {change(after)} from rotary under Self-Extend" in flat


def test_kerple_does_not_lead_after_twice_the_steps():
    """Against rotary of the same seed and Transformer-XL, and the keys of its second seed."""
    flat, name, base = " ".join(TEXT.split()), "kerple" + TWICE, "rope" + TWICE
    own, near = (of(name, "none", PREFIX, length) for length in (2048, 256))
    for method, told, from_own in (
        (
            "self_extend",
            "{} from rotary under Self-Extend of",
            "by {} from that of rotary under Self",
        ),
        (
            "lm_infinite",
            "{} from rotary under LM-Infinite. The",
            "by {} from that under LM-Infinite",
        ),
    ):
        change_from = change((own - of(base, method, PREFIX, 2048)).dropna())
        assert f"by {told.format(change_from)}" in flat
        ratio = (lengths(PREFIX, name) - lengths(PREFIX, base, method)).dropna()
        assert from_own.format(change(ratio)) in flat
    less = of("transformer_xl" + TWICE, "none", PREFIX, 2048) - own
    assert f"of Transformer-XL from KERPLE is {change(less)}" in flat
    inside = change((near - of(base, "none", PREFIX, 256)).dropna())
    assert f"at 256 tokens its difference from rotary is {inside}" in flat
    before = against("self_extend", "kerple", 2048)[own.index]
    assert f"the same three seeds differ by {change(before)} from Self-Extend, so" in flat
    costs = trainings("long")
    costs = costs.filter(like="kerple", axis=0)["step, relative to rope"]
    assert f"A step of KERPLE takes {costs.min():.2f} to {costs.max():.2f} times" in flat
    assert f"% and KERPLE {keys(name, 'none', 2048)} %" in flat
    assert at_2048("kerple")[2] == 1
    found = by_depth(name, "none", 2048).loc[2]
    assert found.tolist() == [2, 2, 5, 5, 5]
    assert f"At four windows it recovers {100 * of(name, 'none', KEYS, 1024)[2]:.0f} %" in flat
    p = rank_test(at_2048(name), at_2048(base, "self_extend"))
    assert f"of KERPLE (p = {p:.2f}, two-sided exact rank test" in flat
    assert f"significant either way (p = {p:.2f})" in flat


def test_alibi_loses_the_keys_of_the_first_half_after_twice_the_steps_too():
    """Its perplexity beside rotary of the same seed, and its keys beside those of 3000 steps."""
    flat, name, base = " ".join(TEXT.split()), "alibi" + TWICE, "rope" + TWICE
    own = of(name, "none", PREFIX, 2048)
    for method, told in (
        ("self_extend", "it differs by {} from rotary under Self-Extend of the same seed and"),
        ("lm_infinite", "and by {} from rotary under LM-Infinite. Of the keys"),
    ):
        assert told.format(change((own - of(base, method, PREFIX, 2048)).dropna())) in flat
    found = [f"{100 * at_2048(name)[seed]:.0f}" for seed in (1, 2, 3)]
    assert "three seeds of ALiBi find {}, {} and {} %, and none of the keys".format(*found) in flat
    before = ", ".join(f"{100 * at_2048('alibi')[seed]:.0f}" for seed in (1, 2, 3))
    told = f"recovers {keys(name, 'none', 2048)} %, none of them at depths 0 and 25 %, and after"
    assert f"{told} 3000 steps {before} %" in flat
    assert not by_depth(name, "none", 2048)[[0.0, 0.25]].any(axis=None)


def test_t5_is_between_transformer_xl_and_extended_rotary_after_twice_the_steps():
    """Its perplexity beside that of rotary, Transformer-XL and ALiBi, and its keys."""
    flat, name, base = " ".join(TEXT.split()), "t5" + TWICE, "rope" + TWICE
    own = of(name, "none", PREFIX, 2048)
    unpaired = {}
    for method, told in (
        ("self_extend", "it differs by {} from rotary under Self-Extend of the same seed and"),
        ("lm_infinite", "and by {} from rotary under LM-Infinite. The first is not"),
    ):
        other = of(base, method, PREFIX, 2048)
        assert told.format(change((own - other).dropna())) in flat
        assert stats.ttest_1samp((own - other).dropna(), 0).pvalue > 0.05
        unpaired[method] = stats.ttest_ind(own, other, equal_var=False).pvalue
    assert f"(p = {unpaired['self_extend']:.2f}, Welch). The second is not" in flat
    assert unpaired["lm_infinite"] > 0.05
    least = of("transformer_xl" + TWICE, "none", PREFIX, 2048)
    p = stats.ttest_ind(least, own, equal_var=False).pvalue
    assert stats.ttest_1samp(least - own, 0).pvalue > 0.05
    assert (
        f"of Transformer-XL from T5 is {change(least - own)}, which is not significant if seeds are"
        f" paired, and is without pairing (p = {p:.3f}, Welch)"
    ) in flat
    assert least.max() < own.min()
    told = f"(p = {rank_test(least, own):.2f}, two-sided exact rank test; less is not possible with"
    assert f"{told} three seeds each)" in flat
    before = of("transformer_xl", "none", PREFIX, 2048) - of("t5", "none", PREFIX, 2048)
    before = before[own.index]
    assert f"the same three seeds of the two differ by {change(before)}" in flat
    assert f"to T5 changes by {change(least - own - before)} (uncorrected), so this" in flat
    assert f"of T5 from ALiBi is {change(own - of('alibi' + TWICE, 'none', PREFIX, 2048))}" in flat
    earlier = ", ".join(f"{100 * at_2048('t5')[seed]:.0f}" for seed in (1, 2, 3))
    told = f"T5 recovers {keys(name, 'none', 2048)} %, and after 3000 steps {earlier} % with"
    assert told in flat
    assert (of(name, "none", KEYS, 1024) == 1).all()
    assert f"each of three seeds of T5 at least {100 * at_2048(name).min():.0f} %" in flat
    costs = trainings("long")
    costs = costs.filter(like="t5", axis=0)["step, relative to rope"]
    assert f"A step of T5 takes {costs.min():.2f} to {costs.max():.2f} times" in flat


def test_two_encodings_read_better_than_truncation_after_twice_the_steps():
    """At four windows KERPLE and Transformer-XL, ALiBi only at two, and none at eight."""
    flat = " ".join(TEXT.split())
    changes = reported("long").reset_index().set_index(["task", "length"])
    for model, name in (("kerple", "KERPLE"), ("transformer_xl", "Transformer-XL")):
        own = changes[changes["model"] == model]
        value, low, high = 100 * own.loc[(TAIL, 1024), ["change", "low_change", "high_change"]]
        assert high < 0 < own.loc[(TAIL, 2048), "high_change"]
        told = f"{value:.1f} % [{low:.0f}, {high:.1f}]".replace("-", "−")
        assert f"{told} for {name}" in flat
    told = []
    for model in ("transformer_xl", "alibi"):
        own = changes[changes["model"] == model]
        value, low, high = 100 * own.loc[(TAIL, 512), ["change", "low_change", "high_change"]]
        told.append(f"({value:.1f} % [{low:.0f}, {high:.1f}])".replace("-", "−"))
    assert "At 512 tokens, Transformer-XL {} and ALiBi {} are better too".format(*told) in flat
    assert (own.loc[[(TAIL, 1024), (TAIL, 2048)], "high_change"] > 0).all()
    own = changes[changes["model"] == "t5"]
    value, low, high = 100 * own.loc[(TAIL, 1024), ["change", "low_change", "high_change"]]
    told = f"{value:.1f} % [{low:.0f}, +{high:.1f}]".replace("-", "−")
    assert f"T5 is not significantly better at any length ({told} at 1024)" in flat
    assert (own.loc[[(TAIL, n) for n in (512, 1024, 2048)], "high_change"] > 0).all()


def test_what_twice_the_steps_do_not_change_is_that_of_the_text():
    """Failure without a method, the order of methods, and keys at eight windows."""
    flat, name = " ".join(TEXT.split()), "rope" + TWICE
    for length in (512, 1024, 2048):
        assert not of(name, "none", KEYS, length).any()
    methods = ["lm_infinite", "self_extend", "rerope", "yarn", "none"]
    losses = pd.DataFrame({method: of(name, method, PREFIX, 2048) for method in methods})
    assert (losses.rank(axis=1).to_numpy() == np.arange(1, 6)).all()
    assert f"Under Self-Extend the five seeds recover {keys(name, 'self_extend', 2048)} %" in flat
    base = at_2048(name, "self_extend")
    p, xl, t5 = (rank_test(at_2048(m), base) for m in ("kerple", "transformer_xl", "t5"))
    assert f"of these three after 3000 steps (p = {p:.2f}, {xl:.2f} and {t5:.2f})" in flat
    xl, t5 = (rank_test(at_2048(m + TWICE), base) for m in ("transformer_xl", "t5"))
    assert f"Transformer-XL (p = {xl:.2f}) or T5 (p = {t5:.2f}) after as many" in flat
    xl, t5 = (keys(m + TWICE, "none", 2048) for m in ("transformer_xl", "t5"))
    assert xl == t5
    assert f"After 6000, Transformer-XL and T5 each recover {xl} %" in flat
    rows = samples().xs((name, KEYS), level=("model", "task"))[["value", "digits"]].astype(float)
    shares = rows.groupby(level=["method", "length", "seed"]).mean()
    both = shares.loc[[("rerope", 1024, 4), ("rerope", 2048, 2)]].round(2).to_numpy()
    assert both.tolist() == [[0.28, 0.6], [0.0, 0.28]]
    gaps = (shares["digits"] - shares["value"]).drop([("rerope", 1024, 4), ("rerope", 2048, 2)])
    assert gaps.max() < 0.05


def test_changes_from_self_extend_are_those_of_the_samples():
    """Findings 6 and 9, number by number."""
    flat = " ".join(TEXT.split())
    for model, name in (
        ("transformer_xl", "Transformer-XL"), ("t5", "T5"), ("kerple", "KERPLE"),
        ("alibi", "ALiBi"), ("fire", "FIRE"),
    ):  # fmt: skip
        assert f"{change(against('self_extend', model, 2048))} for {name}" in flat
        if model not in ("kerple", "alibi"):
            assert f"{change(against('lm_infinite', model, 2048))} for {name}" in flat
    first = against("self_extend", "transformer_xl", 2048)
    assert f"the change for Transformer-XL is {change(first.drop(3))}" in flat
    inside = against("self_extend", "transformer_xl", 256)
    assert f"the change for Transformer-XL is {change(inside)}" in flat
    every = scores().drop([name for name in scores().index.levels[0] if not first_table(name)])
    for task, length in product((TAIL, PREFIX), (256, 2048)):
        least = every.xs((task, length), level=("task", "length")).groupby("seed").idxmin()
        assert {model for model, *_ in least} == {"transformer_xl"}
    for method, name in (
        ("lm_infinite", "LM-Infinite"), ("rerope", "ReRoPE"), ("yarn", "YaRN"),
        ("ntk_by_parts", "NTK-by-parts"), ("ntk", "NTK-aware"), ("pi", "PI"),
    ):  # fmt: skip
        assert f"{change(against('self_extend', 'rope', 2048, method))} for {name}" in flat
    assert f"recover {keys('rope', 'self_extend', 2048)} % of the keys" in flat


def test_a_seed_either_learned_to_copy_or_did_not():
    """No share of passkeys inside the window is between 4 and 88 %."""
    inside = scores().xs(KEYS, level="task").xs(256, level="length")
    inside = inside[inside.index.get_level_values("model").map(first_table)]
    assert set(inside.round(2)) == {0.0, 0.04, 0.88, 0.96, 1.0}


def test_findings_hold_in_every_seed_that_they_name():
    """Findings 1 to 5 and 9, recomputed seed by seed."""
    for length in (512, 1024, 2048):
        assert not of("rope", "none", KEYS, length).any()
    names = ("alibi", "t5", "kerple", "transformer_xl", "fire-held=true")
    kept = [*((name, "none") for name in names), ("rope", "self_extend"), ("rope", "lm_infinite")]
    most = max(np.exp(lengths(TAIL, model, method)).max() for model, method in kept)
    assert f"rises by at most {math.ceil(100 * (most - 1))} % at eight" in " ".join(TEXT.split())
    rising = pd.concat([lengths(TAIL, model) for model in ("shaw", "fire", "xpos")])
    assert np.exp(rising).round(2).between(1.05, 1.23).all()
    for model in ("kerple", "transformer_xl", "shaw"):
        assert at_2048(model).min() >= 0.92
    assert (at_2048("t5") >= 0.92).sum() == 4
    assert (lengths(TAIL, "alibi") < 0).all()
    assert (at_2048("alibi") == 0.2).sum() == 4
    assert not of("fire", "none", KEYS, 1024).any()
    assert of("fire", "none", KEYS, 512).max() == 0.08
    read = pd.DataFrame({name: of("rope", name, PREFIX, 2048) for name in ROTARY})
    assert (read.idxmin(axis=1) == "lm_infinite").all()
    assert at_2048("rope", "lm_infinite").isin([0.16, 0.2]).all()
    assert at_2048("fire-held=true").between(0.96, 1.0).all()
    methods = ["lm_infinite", "self_extend", "rerope", "yarn", "ntk_by_parts", "ntk", "pi"]
    losses = pd.DataFrame({name: of("rope", name, PREFIX, 2048) for name in methods})
    assert (losses.rank(axis=1).to_numpy() == np.arange(1, 8)).all()


def test_only_passkeys_show_a_use_of_more_than_the_last_window_at_eight_windows():
    """Finding 2: perplexity at 256 tokens is that of a text that is truncated to the window."""
    flat, cells = " ".join(TEXT.split()), reported().xs(TAIL, level="task")
    better = [cell for cell in cells.index[cells["high_change"] < 0] if cell[-1] > 256]
    assert better == [("transformer_xl", "none", 512), ("transformer_xl", "none", 1024)]
    near, far = (reported_change(*cell) for cell in better)
    assert f"at 512 ({near}) and at 1024 ({far}; seeds" in flat
    truncated = by_document("rope", "none", TAIL, 256)  # ReRoPE changes the model there too
    assert crossed(by_document("rope", "rerope", TAIL, 2048) - truncated)[0] > 0


def test_training_steps_and_costs_are_those_of_the_table():
    """When rotary and Transformer-XL learned to copy, and what the encodings cost."""
    table = trainings()
    steps = table["passkeys from step"]
    rope = steps[[f"rope-seed{seed}" for seed in (1, 2, 3, 4, 5)]]
    assert [None if pd.isna(step) else int(step) for step in rope] == [2100, 1700, None, 2800, 2000]
    recurrent = steps[steps.index.str.startswith("transformer_xl")]
    assert (recurrent.min(), recurrent.max()) == (1300, 1800)
    cost = table["step, relative to rope"].round(1)
    assert (cost.min(), cost.max()) == (0.9, 2.2)
    assert cost.idxmax().startswith("deberta")
    forward = table["forward of 2048 tokens, relative to rope"]
    assert round(forward["alibi-seed1"], 1) == 2.2
    fire = forward[[f"fire-seed{seed}" for seed in (1, 2, 3, 4, 5)]]
    assert round(fire.median()) == 7
    assert forward.idxmax().startswith("fire")
    flat, minutes = " ".join(TEXT.split()), table["minutes of training"]
    assert f"{minutes.min():.0f} to {minutes.max():.0f} minutes each" in flat
    later = trainings("no_passkeys")
    names = [f"{name}-seed1" for name in ("alibi", "kerple", "t5")]
    one, two, three = later[forward.name][names].map("{:.1f}".format)
    assert f"are {one}, {two} and {three} instead" in flat
    one, two, three = forward[names].map("{:.1f}".format)
    assert f"instead of {one}, {two} and {three}" in flat


NAMED = {
    "transformer_xl": "Transformer-XL", "t5": "T5", "kerple": "KERPLE", "alibi": "ALiBi",
    "fire": "FIRE",
}  # fmt: skip


def pairs(model: str, length: int = 2048) -> tuple[pd.Series[float], pd.Series[float]]:
    """Return the losses of a model and of rotary under Self-Extend, seed by seed."""
    return of(model, "none", PREFIX, length), of("rope", "self_extend", PREFIX, length)


def holm(values: dict[str, float]) -> dict[str, float]:
    """Return p-values corrected by Holm."""
    result, least = {}, 0.0
    for rank, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, value * (len(values) - rank)))
        result[name] = least
    return result


def test_transformer_xl_is_significantly_better_only_without_pairing():
    """Finding 6: 20 comparisons, all paired by seed or none."""
    flat = " ".join(TEXT.split())
    paired, apart = {}, {}
    known = scores().index.droplevel("seed").unique()
    for model, method, task, length in known:
        here = (task, length) == (PREFIX, 2048) and first_table(model)
        if not here or (model, method) == ("rope", "self_extend"):
            continue
        own = of(model, method, PREFIX, 2048)
        base = of("rope", "self_extend", PREFIX, 2048)
        both = own.index.intersection(base.index)
        paired[f"{model} {method}"] = stats.ttest_rel(own[both], base[both]).pvalue
        apart[f"{model} {method}"] = stats.ttest_ind(own, base, equal_var=False).pvalue
    assert len(paired) == 20
    corrected, unpaired = holm(paired), holm(apart)
    assert (pairs("transformer_xl")[0] < pairs("transformer_xl")[1]).all()
    assert f"(p = {corrected['transformer_xl none']:.2f}, report `diff" in flat
    assert f"(p = {unpaired['transformer_xl none']:.2f}, Welch)" in flat
    for model in ("t5", "kerple", "alibi", "fire"):
        assert min(corrected[f"{model} none"], unpaired[f"{model} none"]) > 0.05


def test_change_from_a_models_own_window_is_that_of_the_samples():
    """Finding 6: how much more a model changes from 256 to 2048 tokens than rotary extended."""
    flat, p = " ".join(TEXT.split()), {}
    for method in ("self_extend", "lm_infinite"):
        more = {m: against(method, m, 2048) - against(method, m, 256) for m in NAMED}
        values = holm({m: stats.ttest_1samp(more[m], 0).pvalue for m in NAMED})
        p |= {(m, method): value for m, value in values.items()}
        first, fire = change(more["transformer_xl"]), change(more["fire"])
        assert (
            f"by {first} against {'LM-Infinite' if method == 'lm_infinite' else 'Self-E'}" in flat
        )
        assert f"{fire}. Only" in flat if method == "lm_infinite" else f"by {fire} and" in flat
    assert [of for of in p if p[of] < 0.05] == [("fire", "lm_infinite")]


def test_what_five_seeds_can_find_is_computed_from_their_spread():
    """Finding 6: the increase that a paired t-test of five seeds finds with a power of 80 %."""
    least = {}
    critical = stats.t.ppf(0.975, 4)
    for model, name in NAMED.items():
        own, base = pairs(model)
        spread = (own - base).std(ddof=1) / math.sqrt(5)
        shifts = np.linspace(0, 1, 2001)
        power = stats.nct.sf(critical, 4, shifts / spread)
        least[name] = math.exp(shifts[int(np.argmax(power >= 0.8))]) - 1
    low, high = min(least, key=least.__getitem__), max(least, key=least.__getitem__)
    told = f"{100 * least[low]:.0f} % ({low}) to {100 * least[high]:.0f} % ({high})"
    assert f"only an increase of {told}" in " ".join(TEXT.split())


def test_seeds_that_learned_late_have_the_highest_perplexities():
    losses = of("rope", "self_extend", PREFIX, 2048)
    assert set(losses.nlargest(2).index) == {3, 4}


def test_keys_of_kerple_and_of_self_extend_differ_significantly_only_without_pairing():
    """Finding 7: an exact rank test, and Student's t of the seeds that both learned."""
    own, base = at_2048("kerple"), at_2048("rope", "self_extend")
    assert own.min() > base.max()
    assert f"(p = {rank_test(own, base):.3f}, two-sided exact rank test" in " ".join(TEXT.split())
    assert stats.ttest_1samp((own - base).dropna(), 0).pvalue > 0.05


def test_single_seeds_contradict_each_other_over_documents():
    """Finding 8."""
    differences = by_document("kerple", "none", PREFIX, 2048)
    differences = differences - by_document("rope", "self_extend", PREFIX, 2048)
    means = differences.mean(axis=1)
    for seed in (1, 3):
        assert stats.ttest_1samp(differences.loc[seed], 0).pvalue < 1e-6
    worse, better = 100 * (math.exp(means[1]) - 1), 100 * (1 - math.exp(means[3]))
    told = f"{worse:.0f} % worse than Self-Extend with seed 1 and {better:.0f} % better with seed 3"
    assert told in " ".join(TEXT.split())


def test_the_order_of_methods_depends_on_the_measure():
    """Finding 9: PI against NTK-aware on the last 48 tokens."""
    losses = of("rope", "pi", TAIL, 2048) - of("rope", "ntk", TAIL, 2048)
    assert (losses < 0).all()
    value, low, high = (end.strip("−+ ") for end in parts(change(losses)))
    assert f"PI is {value} % [{high}, {low}] below NTK-aware" in " ".join(TEXT.split())


def parts(told: str) -> tuple[str, str, str]:
    value, _, rest = told.partition(" % [")
    low, _, high = rest.rstrip("]").partition(", ")
    return value, low, high


@pytest.mark.parametrize(
    ("model", "method", "baseline", "from_own"),
    [*product([*NAMED, *(m + TWICE for m in LONG)], ["none"], ["self_extend", "lm_infinite"],
              [False, True]),
     *(("rope", m, "self_extend", False)
       for m in ("lm_infinite", "rerope", "yarn", "ntk_by_parts", "ntk", "pi"))],
)  # fmt: skip
def test_random_documents_move_no_interval_by_two_points(model, method, baseline, from_own):
    """Findings 6 and 9 with seeds and documents both random, and after twice the steps."""

    def less(length: int) -> pd.DataFrame:
        base = by_document("rope" + TWICE * model.endswith(TWICE), baseline, PREFIX, length)
        return (by_document(model, method, PREFIX, length) - base).dropna()

    differences = less(2048) - less(256) if from_own else less(2048)
    seeds = differences.mean(axis=1)
    half = stats.t.ppf(0.975, len(seeds) - 1) * seeds.std(ddof=1) / math.sqrt(len(seeds))
    own = np.exp([seeds.mean() - half, seeds.mean() + half])
    both = np.exp(crossed(differences))
    most = 2.6 if model in ("kerple" + TWICE, "t5" + TWICE) else 2
    assert np.abs(100 * (both - own)).max() < most
    assert ((own - 1).prod() > 0) == ((both - 1).prod() > 0)  # 0 is inside or outside of both


def test_keys_in_any_format_are_those_of_the_samples():
    """What the scores in the exact format leave out."""
    keys = samples().xs(KEYS, level="task")
    shares = keys[["value", "digits"]].astype(float).groupby(level=[*WHERE[:2], "length", "seed"])
    more = shares.mean()
    more = (more["digits"] - more["value"]).loc[lambda gap: gap > 0]
    first = {("rope", "self_extend", 2048, 1): 0.24, ("rope", "rerope", 1024, 1): 0.6}
    for where, gap in first.items():
        assert round(more[where], 2) == gap
    shown = [*ROWS, *(("rope", method) for method in ROTARY)]
    rest = more.drop(list(first))
    rest = rest[[where[:2] in shown and where[2] > 256 for where in rest.index]]
    assert rest.max() <= 0.12
