"""Intervals cover as often as they say, differences are paired, and many are corrected for."""

import numpy as np
import pytest
from scipy import stats

from ropewalk.harness.stats.paired import Difference, holm, of_means, of_shares
from ropewalk.tasks._intervals import proportion, ratio
from scripts.simulate import CASES, single
from tests.simulations import committed


def means(one: list[float], other: list[float], weights: list[float]) -> Difference:
    apart = np.array(one)[:, None] - np.array(other)[:, None]
    return of_means(apart, np.array(weights, dtype=float)[:, None])[0]


COVERED = committed("The 95 % interval covers the mean")


@pytest.mark.slow
def test_the_committed_simulations_are_those_of_this_code():
    worst = min((share, name, n) for name in CASES for n, share in COVERED[name].items())
    share, name, documents = worst
    assert 100 * single(name, documents) == pytest.approx(share, abs=0.3)


def test_what_no_document_shows_no_interval_covers():
    """5 % of documents lost by 3 nats: eight documents hold none of them in 66 % of samples."""
    assert COVERED["5 % lost by 3 nats, noise 0.05"][8] <= 100 * (1 - 0.95**8) + 5


def test_too_few_documents_get_no_interval():
    assert ratio([2.0, 3.0], [1, 1]).interval() == (None, None)
    assert ratio([200.0, 3.0, 1.0], [100, 1, 1]).interval() == (None, None)
    made = means([2.0, 3.0], [1.0, 1.0], [1, 1])
    assert (made.value, made.low, made.high, made.p) == (1.5, None, None, None)


def test_wilson_by_hand():
    """Of six hits in six: 1 / (1 + z^2 / n) = 1 / (1 + 3.8415 / 6)."""
    assert proportion(6, 6) == (pytest.approx(0.6097, abs=1e-4), 1.0)
    assert proportion(0, 6) == (0.0, pytest.approx(1 - 0.6097, abs=1e-4))


def test_wilson_covers_95_percent_over_all_rates():
    """Exactly, by summing over all outcomes, on average over rates of 0 to 1."""
    for n in (10, 25, 100):
        ends = np.array([proportion(hits, n) for hits in range(n + 1)])
        rates = np.linspace(0.005, 0.995, 199)
        odds = stats.binom.pmf(np.arange(n + 1)[:, None], n, rates)
        inside = (ends[:, :1] <= rates) & (rates <= ends[:, 1:])
        assert 0.93 <= (odds * inside).sum(axis=0).mean() <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("trials", [10, 25, 60])
def test_a_difference_of_shares_covers_at_least_93_percent(trials):
    """Exactly, over all outcomes: never less than 93 % and on average up to 97 %.

    Where two methods hardly ever differ no interval of so few outcomes can be as narrow as 95 %.
    """
    outcomes = [(g, lost) for g in range(trials + 1) for lost in range(trials + 1 - g)]
    found = {}
    for gained, lost in outcomes:
        rest = [0] * (trials - gained - lost)
        (made,) = of_shares(np.array([1.0] * gained + [-1.0] * lost + rest)[:, None])
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


def test_symmetric_differences_give_little_more_than_the_paired_t_test():
    one = stats.norm.ppf(np.arange(1, 31) / 31)
    found = means(one.tolist(), [0.1] * 30, [1] * 30)
    interval = stats.ttest_rel(one, np.full(30, 0.1)).confidence_interval()
    wider = (found.high - found.low) / (interval.high - interval.low)
    assert 1 <= wider <= 1.17


def test_holm_by_hand():
    """0.01 x 3, then 0.03 x 2, then no less than before; what has no probability counts not."""
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([]) == []
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.slow
def test_one_family_in_twenty_at_most_holds_a_false_claim():
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        losses = rng.normal(3, 1, (1, 12)) + rng.normal(0, 0.2, (7, 12))
        found = [ratio((row - losses[0]).tolist(), [1] * 12).p() for row in losses[1:]]
        wrong += any(p is not None and p < 0.05 for p in holm(found))
    assert wrong / 400 <= 0.065
