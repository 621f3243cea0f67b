"""Intervals cover as often as they say, differences are paired, and many are corrected for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.reports.stats.needed import needed
from harness.reports.stats.paired import Difference, holm, of_means, of_shares, signs
from scripts.simulate import CASES, ROUNDS, family, simulate
from tasks._intervals import proportion, ratio


def means(
    one: list[float], other: list[float], weights: list[float], names: list[str] | None = None
) -> Difference:
    """Compare sums of two methods."""
    apart = np.array(one)[:, None] - np.array(other)[:, None]
    return of_means(apart, np.array(weights, dtype=float)[:, None], names or [])[0]


STATISTICS = (Path(__file__).parent.parent / "results" / "statistics.md").read_text("utf-8")


def simulated(title: str) -> dict[str, dict[int, float]]:
    """Return one table of the committed simulations: shares in percent by shape and documents."""
    _, _, text = STATISTICS.partition(f"## {title}")
    rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in text.partition("\n## ")[0].splitlines()
        if line.startswith("| ")
    ]
    numbers = [int(number) for number in rows[0][1:]]
    return {row[0]: dict(zip(numbers, map(float, row[1:]), strict=True)) for row in rows[1:]}


COVERED = simulated("The 95 % interval covers the mean")
NAMED = simulated("Two methods of equal mean")


@pytest.mark.parametrize("case", CASES)
def test_the_committed_simulations_keep_what_is_promised(case: str) -> None:
    """Of every shape: 92 % covered from 10 documents on (one in five lost: 20), 6 % named at most.

    Within two standard errors of 2000 rounds.
    """
    for documents, share in COVERED[case].items():
        if documents >= (20 if "lost" in case else 10):
            assert share >= 92 - 1.2
    assert max(NAMED[case].values()) <= 6 + 1.1


@pytest.mark.slow
def test_the_committed_simulations_are_those_of_this_code() -> None:
    """The worst cells, simulated again, give the committed shares."""
    covered = [(name, n, share) for name in CASES for n, share in COVERED[name].items() if n >= 10]
    named = [(name, n, share) for name in CASES for n, share in NAMED[name].items()]
    for name, n, share in sorted(covered, key=lambda cell: cell[2])[:1]:
        found = simulate(CASES[name], n, rounds=ROUNDS, seed=n)
        assert 100 * found.covered == pytest.approx(share, abs=0.3)
    for name, n, share in sorted(named, key=lambda cell: -cell[2])[:1]:
        found = simulate(CASES[name], n, rounds=ROUNDS, seed=n)
        assert 100 * found.named == pytest.approx(share, abs=0.3)


def test_what_no_document_shows_no_interval_covers() -> None:
    """5 % of documents lost by 3 nats: ten documents hold none of them in 60 % of samples."""
    assert COVERED["5 % lost by 3 nats, noise 0.05"][10] <= 100 * (1 - 0.95**10) + 5


@pytest.mark.slow
def test_the_more_methods_the_rarer_a_false_winner() -> None:
    """Of twelve methods, half of which collapse on one document in five, none is named."""
    for collapsing in (0, 6):
        sole, told = family(collapsing, 12, 20, rounds=100, seed=3)
        assert sole <= 0.02
        assert told <= 0.12


def test_too_few_documents_get_no_interval() -> None:
    """Two documents, or one that outweighs the others, do not tell their spread."""
    assert ratio([2.0, 3.0], [1, 1]).interval() == (None, None)
    assert ratio([200.0, 3.0, 1.0], [100, 1, 1]).interval() == (None, None)
    made = means([2.0, 3.0], [1.0, 1.0], [1, 1])
    assert (made.value, made.low, made.high, made.p) == (1.5, None, None, None)
    assert needed(made, 1) is None


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.1, 9), st.integers(50, 200)), min_size=3, max_size=30))
def test_the_interval_lies_around_the_weighted_mean(pairs: list[tuple[float, int]]) -> None:
    """Around the ratio of the sums, and a wider level gives a wider interval."""
    sums, counts = [rate * n for rate, n in pairs], [n for _, n in pairs]
    found = ratio(sums, counts)
    assert found.value == pytest.approx(sum(sums) / sum(counts))
    (low, high), (lower, higher) = found.interval(), found.interval(0.99)
    assert low is not None
    assert high is not None
    assert low <= found.value <= high
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


@pytest.mark.slow
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


def test_symmetric_differences_give_little_more_than_the_paired_t_test() -> None:
    """With documents of one length the interval is scipy's or at most a sixth wider."""
    one = stats.norm.ppf(np.arange(1, 31) / 31)
    found = means(one.tolist(), [0.1] * 30, [1] * 30)
    interval = stats.ttest_rel(one, np.full(30, 0.1)).confidence_interval()
    assert found.low is not None
    assert found.high is not None
    wider = (found.high - found.low) / (interval.high - interval.low)
    assert 1 <= wider <= 1.17


def test_the_verdict_needs_the_mean_and_the_signs() -> None:
    """Lower on every document but one that is lost: neither alone makes a difference sure."""
    lost = [-0.1] * 19 + [1.0]
    found = means(lost, [0.0] * 20, [1] * 20, names=[f"d{i}" for i in range(20)])
    assert signs(found.lower, found.higher) < 0.001
    assert found.p is not None
    assert found.p > 0.05
    assert found.carrier == "d19"
    turned = means([-0.1] * 19 + [2.0], [0.0] * 20, [1] * 20)
    assert turned.p == 1  # the mean says one thing, the signs the other


def test_pairing_sees_what_two_intervals_hide() -> None:
    """Documents differ by a nat, methods by a hundredth on each: the pairs tell it, surely."""
    rng = np.random.default_rng(4)
    hard = rng.normal(3, 1, 20)
    one, other = hard * 100, (hard + 0.01 + rng.normal(0, 0.005, 20)) * 100
    low, high = ratio(one.tolist(), [100] * 20).interval()
    found = means(one.tolist(), other.tolist(), [100] * 20)
    assert low is not None
    assert high is not None
    assert found.low is not None
    assert found.high is not None
    assert high - low > 0.5
    assert -0.02 < found.low < -0.01 < found.high < 0


def test_the_exact_sign_test_by_hand() -> None:
    """4 of 4 changes one way: 2 * (1/16); none either way, and one each: 1."""
    assert of_shares([1] * 25, [1] * 21 + [0] * 4).p == pytest.approx(1 / 8)
    assert of_shares([1] * 25, [1] * 25).p == 1
    assert of_shares([1, 0, 0], [0, 1, 0]).p == 1


def test_holm_by_hand() -> None:
    """0.01 x 3, then 0.03 x 2, then no less than before; what has no probability counts not."""
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([]) == []
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.slow
def test_one_family_in_twenty_at_most_holds_a_false_claim() -> None:
    """Six equal methods against a seventh on the same documents, corrected together."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        losses = rng.normal(3, 1, (1, 12)) + rng.normal(0, 0.2, (7, 12))
        found = [ratio((row - losses[0]).tolist(), [1] * 12).p() for row in losses[1:]]
        wrong += any(p is not None and p < 0.05 for p in holm(found))
    assert wrong / 400 <= 0.065


def told(found: Difference, others: int) -> bool:
    """Return whether a pair is told apart under the correction for so many."""
    return found.enough and found.p is not None and found.p * others < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("others", [1, 66])
def test_the_number_of_documents_needed_has_its_power_under_the_rule_applied(others: int) -> None:
    """Samples of that number of documents like those seen are told apart in 80 % at least."""
    rng = np.random.default_rng(8)
    seen = rng.normal(-0.1, 0.3, 23)
    count = needed(means(seen.tolist(), [0.0] * 23, [1] * 23), others)
    assert count is not None
    assert count > 23
    again = rng.choice(seen, (200, count))
    zero, one = [0.0] * count, [1] * count
    share = np.mean([told(means(row.tolist(), zero, one), others) for row in again])
    assert 0.75 <= share <= 0.99


@pytest.mark.parametrize("others", [1, 20])
def test_the_number_of_trials_needed_has_its_power(others: int) -> None:
    """At that number the sign test tells 36 % gained from 4 % lost in four of five sweeps."""
    found = of_shares([1] * 9 + [0] + [1] * 15, [0] * 9 + [1] + [1] * 15)
    count = needed(found, others)
    assert count is not None
    rng = np.random.default_rng(6)
    share = 0
    for gained, lost, rest in rng.multinomial(count, [0.36, 0.04, 0.6], size=600):
        same = [1] * rest
        one, other = [1] * gained + [0] * lost + same, [0] * gained + [1] * lost + same
        share += told(of_shares(one, other), others)
    assert 0.76 <= share / 600 <= 0.97


def test_no_number_is_needed_where_none_would_tell() -> None:
    """No difference, or a mean and signs that disagree, are told by no number of documents."""
    assert needed(means([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1] * 3), 1) is None
    disagree = means([-0.1] * 19 + [3.0], [0.0] * 20, [1] * 20)
    assert needed(disagree, 1) is None
