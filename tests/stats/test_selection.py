"""The choice of a method: winners, bounds on regret, and comparisons with a baseline."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ropewalk.harness.stats.paired import Array, Difference, adjusted, of_means, of_shares
from ropewalk.harness.stats.selection import Selection, select_means, select_shares
from scripts.simulate import EXTREME, LEAD, METHODS, MODERATE, RARE, many
from tests.simulations import committed

MEAN = committed("The 95 % interval covers the mean")  # 100 less a false winner between two
FALSE = committed("False winner among methods of equal mean")
POWER = committed("Power")
COVERED = committed("Coverage of the regret bounds, unequal means")
BOUND = committed("Tightness of the regret bound")


def selected(costs: Array, weights: Array | None = None) -> Selection:
    selection = select_means(costs, np.ones(len(costs)) if weights is None else weights)
    assert selection is not None
    return selection


def error(rounds: int) -> float:
    """Return two standard errors of a rate near 5 %, in percent."""
    return 200 * math.sqrt(0.05 * 0.95 / rounds)


@pytest.mark.parametrize("shape", MODERATE)
def test_two_equal_methods_seldom_have_a_winner(shape):
    """In at most 5 % of samples from 8 documents on, in the committed simulation."""
    assert min(MEAN[shape].values()) >= 95 - error(2000)


@pytest.mark.parametrize("shape", [*EXTREME, "lognormal, sigma 0.75; longer is harder"])
def test_extreme_shapes_are_told_with_their_rates(shape):
    """At most 8 % from 12 documents on."""
    assert min(rate for n, rate in MEAN[shape].items() if n >= 12) >= 92 - error(2000)


def test_many_equal_methods_have_a_winner_no_more_often_than_two():
    """The reason why the winner needs no correction for the number of rivals."""
    for row, rates in FALSE.items():
        shape, _, rest = row.partition("; ")
        if shape not in RARE and not rest.startswith("2 "):
            assert max(rates.values()) <= 5 + error(200)


def test_the_bounds_cover_as_often_as_they_say():
    """94 % from 8 documents on for every shape that is not extreme, with few and many methods."""
    for row, rates in COVERED.items():
        if row.partition("; ")[0] in MODERATE:
            rounds = {2: 1500, 5: 600, 12: 300, 25: 200}[int(row.partition("; ")[2].split()[0])]
            assert min(rates.values()) >= 95 - error(rounds)
    assert {row.partition("; ")[2].split()[0] for row in COVERED} == set(map(str, METHODS))


def test_a_lead_is_found():
    """A lead of one standard deviation on 20 documents, and how tight the bound is there."""
    assert POWER["normal; lead 1, 5 methods"][20] >= 85
    assert POWER["normal; lead 1, 25 methods"][20] >= 65
    assert BOUND["normal; 5 methods"][20] <= 0.47
    assert BOUND["normal; 25 methods"][20] <= 0.75


@pytest.mark.slow
def test_the_committed_rates_are_those_of_this_code():
    """One cell of the table of coverage, simulated again."""
    rate = COVERED["exponential; 5 methods, unequal spreads"][8]
    again = many("exponential", 5, 8, lead=LEAD, unequal=True)
    assert 100 * again.covered == pytest.approx(rate, abs=0.3)


def test_a_clear_winner_and_hopeless_methods():
    """A lead of ten standard deviations wins, has no regret, and leaves no other possible."""
    rng = np.random.default_rng(0)
    costs = 0.1 * rng.standard_normal((10, 4)) + [0.0, 1.0, 2.0, 3.0]
    selection = selected(costs)
    assert (selection.best, selection.winner) == (0, True)
    assert selection.possible.tolist() == [True, False, False, False]
    assert selection.regret[0] == 0
    assert (selection.regret[1:] > [1, 2, 3]).all()
    assert selection.needed(0.01) == 10


def test_two_methods_have_their_paired_interval():
    """With one rival the bound is the end of the interval of the difference, from either side."""
    rng = np.random.default_rng(1)
    costs = rng.exponential(1, (12, 2))
    (less,) = of_means(costs[:, [0]] - costs[:, [1]], np.ones((12, 1)))
    selection = selected(costs)
    assert less.high is not None
    assert selection.upper[0, 1] == pytest.approx(less.high)
    assert selection.upper[1, 0] == pytest.approx(-less.low)
    assert selection.winner == less.significant()


def test_normal_differences_give_nearly_dunnett():
    """The bound on one of three rivals is near Dunnett's one-sided comparison by SciPy."""
    ratios = []
    for seed in range(20):
        costs = np.random.default_rng(seed).standard_normal((40, 4))
        selection = selected(costs)
        limits = stats.dunnett(*costs[:, 1:].T, control=costs[:, 0], alternative="less")
        wide = limits.confidence_interval(0.95).high - (costs[:, 1:].mean(0) - costs[:, 0].mean())
        ratios.append((selection.upper[1:, 0] - selection.value[1:, 0]).mean() / wide.mean())
    assert 0.95 <= np.mean(ratios) <= 1.12


@settings(max_examples=20)
@given(st.permutations(range(9)), st.permutations(range(4)), st.integers(0, 99))
def test_the_order_of_documents_and_methods_changes_nothing(rows, columns, seed):
    """The same documents in another order give the same bounds, to rounding."""
    rng = np.random.default_rng(seed)
    costs, weights = rng.standard_normal((9, 4)), rng.integers(50, 200, 9).astype(float)
    one = selected(costs * weights[:, None], weights)
    again = (costs * weights[:, None])[np.ix_(rows, columns)]
    other = selected(again, weights[rows])
    assert other.regret == pytest.approx(one.regret[columns], rel=1e-9, abs=1e-12)
    assert other.possible.tolist() == one.possible[columns].tolist()


def test_fewer_candidates_left_have_less_of_the_error():
    """The bounds of survivors are wider if they were chosen from more."""
    costs = np.random.default_rng(3).standard_normal((12, 3))
    few, some = select_means(costs, np.ones(12)), select_means(costs, np.ones(12), candidates=20)
    assert (some.regret > few.regret).all()


def test_two_documents_give_no_bound_and_equal_ones_no_width():
    """Nothing can be concluded of two documents; methods equal on every document have regret 0."""
    assert select_means(np.zeros((2, 3)), np.ones(2)) is None
    for methods in (2, 3):
        heavy = np.random.default_rng(0).standard_normal((3, methods))
        assert select_means(heavy, np.array([10_000.0, 400.0, 400.0])) is None
    assert selected(np.ones((5, 3))).regret.tolist() == [0, 0, 0]
    assert selected(np.ones((5, 1))).regret.tolist() == [0]


def test_hits_have_no_interval_of_width_zero():
    """Five of five for all: no method is worse, and none surely as good."""
    selection = select_shares(np.ones((5, 3)))
    assert (selection.regret > 0.3).all()
    assert not selection.winner
    (less,) = of_shares(np.zeros((5, 1)))
    assert (less.value, less.p) == (0, 1)
    assert less.low == pytest.approx(-less.high if less.high else None)


def test_hits_of_six_trials_win():
    """All of 6 trials against none is a winner among three methods; 4 of 6 against 2 is not."""
    trials = np.array([[1.0, 0.0, 0.0]] * 6)
    selection = select_shares(trials)
    assert selection.winner
    trials[:2, 0] = 0
    trials[:2, 1] = 1
    again = select_shares(trials)
    assert not again.winner


def test_the_bound_narrows_as_it_is_said():
    """At the number of documents that is needed, the bound is near the margin."""
    rng = np.random.default_rng(4)
    costs = rng.standard_normal((20, 3))
    costs -= costs.mean(axis=0)
    selection = selected(costs)
    count = selection.needed(selection.regret[0] / 2)
    assert 70 <= count <= 90
    more = selected(np.tile(costs, (count // 20, 1)))
    assert more.regret[0] == pytest.approx(selection.regret[0] / 2, rel=0.15)


def test_comparisons_with_a_baseline_err_together_in_one_of_twenty():
    """Six equal methods against a seventh on the same documents."""
    rng, weights, wrong = np.random.default_rng(5), np.ones(14), 0
    for _ in range(200):
        losses = rng.normal(3, 1, (14, 1)) + rng.normal(0, 0.2, (14, 7))
        less = losses[:, 1:] - losses[:, :1]
        corrected = adjusted(less, weights, of_means(less, weights[:, None]), shares=False)
        wrong += any(p is not None and p < 0.05 for p in corrected)
    assert wrong / 200 <= 0.065


def test_correlated_methods_lose_less_than_by_holm():
    """Ten copies of one method with a little noise are nearly one comparison."""
    rng, weights = np.random.default_rng(6), np.ones(30)
    less = rng.normal(0.5, 0.7, (30, 1)) + rng.normal(0, 0.01, (30, 10))
    alone = of_means(less, weights[:, None])
    largest = max(one.p or 0.0 for one in alone)
    assert 0 < max(p or 0.0 for p in adjusted(less, weights, alone, shares=False)) < 3 * largest


def test_a_swapped_difference_is_the_inverse():
    """20 % lower is 25 % higher from the other side."""
    less = Difference(-0.2, -0.5, 0.25, 0.1, 10)
    turned = less.swapped(relative=True)
    assert (turned.value, turned.low, turned.high) == pytest.approx((0.25, -0.2, 1.0))
    plain = less.swapped(relative=False)
    assert (plain.value, plain.low, plain.high) == (0.2, -0.25, 0.5)
