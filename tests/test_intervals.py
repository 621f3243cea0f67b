"""Intervals cover as often as they say, differences are paired, and many are corrected for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from harness.reports._paired import holm, of_means, of_shares
from tasks._intervals import proportion, ratio

Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
ROUNDS = 3000  # the share of covered rounds is known to 0.4 %

LOSSES: dict[str, Draw] = {  # nats per token of a document
    "normal": lambda rng, size: 2.5 + 0.5 * rng.standard_normal(size),
    "skewed": lambda rng, size: 1.2 + rng.gamma(4, 0.35, size),
    "long-tailed": lambda rng, size: 2.5 + 0.35 * rng.standard_t(4, size),
}
TOKENS: dict[str, Draw] = {
    "equal": lambda _, size: np.full(size, 128.0),
    "up to threefold": lambda rng, size: rng.uniform(0.5, 1.5, size),
    "up to tenfold": lambda rng, size: np.exp(0.5 * rng.standard_normal(size)),
}


@pytest.mark.parametrize("documents", [3, 5, 8, 23, 30])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("losses", LOSSES)
def test_the_interval_of_a_loss_covers_the_truth_in_93_to_97_percent(
    losses: str, tokens: str, documents: int
) -> None:
    """Of 3 to 30 documents of unequal length, whatever the shape of their losses."""
    rng = np.random.default_rng(7 * documents)
    size = (ROUNDS, documents)
    rates, counts = LOSSES[losses](rng, size), TOKENS[tokens](rng, size)
    truth = LOSSES[losses](np.random.default_rng(0), (1, 2_000_000)).mean()
    covered = []
    for rate, count in zip(rates, counts, strict=True):
        low, high = ratio((rate * count).tolist(), count.tolist()).interval()
        if low is not None and high is not None:
            covered.append(low <= truth <= high)
    assert len(covered) > 0.9 * ROUNDS
    assert 0.93 <= np.mean(covered) <= 0.97


def test_too_few_documents_get_no_interval() -> None:
    """Two documents, or one that outweighs the others, do not tell their spread."""
    assert ratio([2.0, 3.0], [1, 1]).interval() == (None, None)
    assert ratio([200.0, 3.0, 1.0], [100, 1, 1]).interval() == (None, None)
    made = of_means([2.0, 3.0], [1.0, 1.0], [1, 1])
    assert (made.value, made.low, made.high, made.p, made.needed) == (1.5, None, None, None, None)


@given(st.lists(st.tuples(st.floats(0.1, 9), st.integers(50, 200)), min_size=3, max_size=30))
def test_the_interval_lies_around_the_weighted_mean(pairs: list[tuple[float, int]]) -> None:
    """Its middle is the ratio of the sums, and a wider level gives a wider interval."""
    sums, counts = [rate * n for rate, n in pairs], [n for _, n in pairs]
    found = ratio(sums, counts)
    assert found.value == pytest.approx(sum(sums) / sum(counts))
    (low, high), (lower, higher) = found.interval(), found.interval(0.99)
    assert low is not None
    assert high is not None
    assert (low + high) / 2 == pytest.approx(found.value)
    assert lower is not None
    assert higher is not None
    assert lower <= low <= high <= higher


def test_wilson_covers_95_percent_over_all_rates() -> None:
    """Exactly, by summing over all outcomes, on average over rates of 0 to 1."""
    for n in (10, 25, 100):
        ends = np.array([proportion(hits, n) for hits in range(n + 1)])
        rates = np.linspace(0.005, 0.995, 199)
        odds = stats.binom.pmf(np.arange(n + 1)[:, None], n, rates)
        inside = (ends[:, :1] <= rates) & (rates <= ends[:, 1:])
        assert 0.93 <= (odds * inside).sum(axis=0).mean() <= 0.97


@pytest.mark.parametrize("trials", [10, 25, 60])
def test_a_difference_of_shares_covers_at_least_93_percent(trials: int) -> None:
    """Exactly, over all outcomes: never less than 93 % and on average up to 97 %.

    Where two methods hardly ever differ no interval of so few outcomes can be as narrow as 95 %.
    """
    outcomes = [(g, lost) for g in range(trials + 1) for lost in range(trials + 1 - g)]
    found = {}
    for gained, lost in outcomes:
        rest = [0] * (trials - gained - lost)
        made = of_shares([1] * gained + [0] * lost + rest, [0] * gained + [1] * lost + rest)
        found[gained, lost] = (made.low, made.high)
    low, high = np.array([found[outcome] for outcome in outcomes], dtype=float).T
    shares = []
    rates = [(up, down) for up in np.arange(0.05, 1, 0.1) for down in np.arange(0.05, 1 - up, 0.1)]
    for up, down in rates:
        odds = stats.multinomial.pmf(
            [(g, lost, trials - g - lost) for g, lost in outcomes],
            trials,
            [up, down, 1 - up - down],
        )
        shares.append(odds[(low <= up - down) & (up - down <= high)].sum())
    assert min(shares) >= 0.93
    assert np.mean(shares) <= 0.97


def test_equal_weights_give_the_paired_t_test() -> None:
    """With documents of one length the difference is scipy's paired t-test, to rounding."""
    rng = np.random.default_rng(3)
    one, other = rng.normal(2.0, 0.5, 12), rng.normal(2.2, 0.5, 12)
    found = of_means(one.tolist(), other.tolist(), [1] * 12)
    known = stats.ttest_rel(one, other)
    interval = known.confidence_interval()
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_pairing_sees_what_two_intervals_hide() -> None:
    """Documents differ by a nat, methods by a hundredth on each: the pairs tell it, surely."""
    rng = np.random.default_rng(4)
    hard = rng.normal(3, 1, 20)
    one, other = hard * 100, (hard + 0.01 + rng.normal(0, 0.005, 20)) * 100
    low, high = ratio(one.tolist(), [100] * 20).interval()
    found = of_means(one.tolist(), other.tolist(), [100] * 20)
    assert low is not None
    assert high is not None
    assert found.low is not None
    assert found.high is not None
    assert high - low > 0.5
    assert -0.02 < found.low < -0.01 < found.high < 0


def test_mcnemar_mid_p_by_hand() -> None:
    """4 of 4 changes one way: 2 * (1/16) less half of both ends, 1/16; none either way: 1."""
    assert of_shares([1] * 25, [1] * 21 + [0] * 4).p == pytest.approx(1 / 16)
    assert of_shares([1] * 25, [1] * 25).p == 1
    assert of_shares([1, 0, 0], [0, 1, 0]).p == 1


def test_holm_by_hand() -> None:
    """0.01 x 3, then 0.03 x 2, then no less than before; what has no probability counts not."""
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([]) == []
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_one_family_in_twenty_at_most_holds_a_false_claim() -> None:
    """Six equal methods against a seventh on the same documents, corrected together."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        losses = rng.normal(3, 1, (1, 12)) + rng.normal(0, 0.2, (7, 12))
        found = [ratio((row - losses[0]).tolist(), [1] * 12).p() for row in losses[1:]]
        wrong += any(p is not None and p < 0.05 for p in holm(found))
    assert wrong / 400 <= 0.065


def test_the_number_needed_is_that_of_the_textbook() -> None:
    """A difference of half a standard deviation: 34 pairs for 80 % power at 5 % (Cohen 1988)."""
    spread = np.array([-1.0, 1.0] * 10) * math.sqrt(19 / 20)
    assert of_means((0.5 + spread).tolist(), [0.0] * 20, [1] * 20).needed == 34
    assert of_means([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1] * 3).needed is None


def test_the_number_of_trials_needed_has_its_power() -> None:
    """At that number McNemar's test tells 36 % gained from 4 % lost in four of five sweeps."""
    found = of_shares([1] * 9 + [0] + [1] * 15, [0] * 9 + [1] + [1] * 15)
    assert found.needed is not None
    rng = np.random.default_rng(6)
    draws = rng.multinomial(found.needed, [0.36, 0.04, 0.6], size=600)
    told = 0
    for gained, lost, rest in draws:
        same = [1] * rest
        made = of_shares([1] * gained + [0] * lost + same, [0] * gained + [1] * lost + same)
        told += made.p is not None and made.p < 0.05
    assert 0.74 <= told / 600 <= 0.88
