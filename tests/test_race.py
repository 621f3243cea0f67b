"""A race decides from losses alone: who is dropped, when it ends, and how often it errs."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import UserError
from harness.recommend.chances import Array, chances
from harness.recommend.race import (
    BUDGET,
    DOCUMENTS,
    MARGIN,
    ONE,
    OPEN,
    PRICE,
    WORSE,
    Losses,
    Rules,
    Standing,
    affordable,
    decided,
    priced,
    rounds,
    unpriced,
)
from scripts.simulate_race import RARE, SHAPES, simulate

RULES = Rules(rounds(40))
NOTHING = np.zeros(40)


def losses(documents: int, **means: float) -> Losses:
    """Return losses about means, with a spread of 1 % between methods and 1 nat of documents."""
    rng = np.random.default_rng(1)
    shared = rng.standard_normal(40)
    every = {name: shared + mean + 0.01 * rng.standard_normal(40) for name, mean in means.items()}
    return {name: found[:documents] for name, found in every.items()}


def free(far: Losses) -> dict[str, Array]:
    return {name: np.zeros(len(found)) for name, found in far.items()}


def after(far: Losses, prices: Losses | None = None) -> Standing:
    return decided(Standing(tuple(far)), far, prices or free(far), RULES)


@pytest.mark.parametrize("documents", [1, 3, 6, 7, 20, 23, 50, 1000])
def test_rounds_grow_to_all_documents(documents: int) -> None:
    """The first is of six documents at most, each is larger, and one ends at those for a winner."""
    found = rounds(documents)
    assert found[-1] == documents
    assert sorted(set(found)) == list(found)
    assert found[0] <= 7
    assert documents < 30 or 20 in found


def test_who_is_surely_worse_is_dropped_but_two_stay_before_the_end() -> None:
    """Six documents drop what is far behind; a winner needs all, or 60, or the end of a budget."""
    early = after(losses(6, best=2.0, next=2.2, far=4.0, last=5.0))
    assert early.left == ("best", "next")
    assert (early.leader, early.ended, early.sole) == ("best", "", "")
    assert {one.name: (one.why, one.by) for one in early.dropped} == {
        "far": (WORSE, "best"), "last": (WORSE, "best"),
    }  # fmt: skip
    far = losses(20, best=2.0, next=2.2, far=4.0)
    late = after(far)
    assert (late.left, late.ended) == (("best", "next"), "")
    assert affordable(late, far, 9, 0, RULES).sole == "best"
    whole = after(losses(40, best=2.0, next=2.2, far=4.0))
    assert (whole.ended, whole.sole) == (ONE, "best")


def test_where_all_cost_too_much_and_the_model_has_no_number_no_one_is_recommended() -> None:
    """The plain model costs nothing, so this is a race without it, and ends in a sentence."""
    far = losses(20, first=2.0, second=2.1)
    dear = {name: 1 + np.arange(20) / 100 for name in far}
    with pytest.raises(UserError, match="costs more than the tolerance of 1 %"):
        after(far, dear)


def test_few_documents_drop_no_one_whom_one_failure_would_bring_back() -> None:
    """0.3 nats on each of six are not enough, four nats are; twenty tell 0.3 nats."""
    assert "next" in after(losses(6, best=2.0, next=2.3, far=6.0)).left
    assert "next" not in after(losses(20, best=2.0, next=2.3, last=2.01)).left


def test_a_failure_seen_on_one_candidate_is_possible_for_the_leader() -> None:
    """Who fails on one document of 40 keeps those behind the leader that one failure is worth."""
    far = {**losses(40, best=2.0, next=2.02, last=2.0001)}
    assert "next" not in after(far).left
    far["last"] = far["last"] + np.eye(40)[7]
    assert "next" in after(far).left


def test_equal_candidates_end_by_the_margin_and_near_ones_do_not() -> None:
    """Left are those surely within a margin; of two margins apart, one; between, it is open."""
    alike = after(losses(40, a=2.0, b=2.0001))
    assert alike.ended == MARGIN
    assert set(alike.left) == {"a", "b"}
    apart = after(losses(40, a=2.0, b=2.02))
    assert apart.ended == ONE
    open_still = after(losses(20, a=2.0, b=2.006))
    assert open_still.ended == ""
    assert after(losses(40, a=2.0, b=2.0045)).ended == DOCUMENTS


def test_below_three_documents_nothing_is_concluded() -> None:
    """Not even of a difference of ten nats; and three need one that is plain."""
    assert len(after(losses(2, a=2.0, b=12.0, c=13.0)).left) == 3
    assert (chances(np.full((2, 1), 10.0), 0.05) == 1).all()


def test_the_price_is_asked_of_who_would_lead_and_drops_who_costs_too_much() -> None:
    """Whoever was dropped for one that costs too much comes back."""
    far = losses(20, dear=2.0, cheap=2.2, none=4.0)
    rules = Rules((20,))
    spread = losses(20, noise=0.0)["noise"] * 1e-3
    prices: dict[str, Array] = {"none": NOTHING[:20]}
    standing = Standing(tuple(far))
    assert unpriced(standing, far, prices, rules) == "dear"
    prices["dear"] = 0.005 + spread
    early = decided(standing, far, prices, rules)
    assert early.left == ("dear",)
    prices["dear"] = 0.05 + spread
    assert unpriced(standing, far, prices, rules) == "cheap"
    again = decided(early, {"dear": far["dear"]}, prices, rules)
    assert set(again.left) == {"cheap", "none"}
    assert [(one.name, one.why) for one in again.dropped] == [("dear", PRICE)]
    prices["cheap"] = NOTHING[:20]
    here = {name: far[name] for name in again.left}
    assert decided(again, here, prices, rules).sole == "cheap"


def test_at_the_end_every_price_counts() -> None:
    """Who is left and surely costs too much is not among those left."""
    standing = Standing(("a", "b"), leader="a", documents=40, ended=DOCUMENTS)
    dear = 0.1 + 1e-3 * losses(40, noise=0.0)["noise"]
    assert priced(standing, {"a": NOTHING, "b": dear}, RULES).left == ("a",)


def test_a_budget_sets_the_worst_aside_and_says_so() -> None:
    """What it does not carry is not called worse; where not even two go on, the race is over."""
    far = losses(6, a=2.0, b=2.001, c=2.002, d=2.003)
    standing = after(far)
    assert len(standing.left) == 4
    fewer = affordable(standing, far, 100, 97, RULES)
    assert len(fewer.left) == 4 - len(fewer.open)
    assert fewer.open
    assert all(one.why == OPEN for one in fewer.dropped)
    assert fewer.leader in fewer.left
    assert affordable(standing, far, 3, 0, RULES).ended == BUDGET
    assert affordable(standing, far, np.inf, 0, RULES) == standing


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("documents", "lead"), [(3, 0.0), (23, 0.0), (50, 0.01)])
def test_a_wrong_winner_is_rare(shape: str, documents: int, lead: float) -> None:
    """Of 25 equal candidates, or one ahead by 1 %, the wrong one wins in at most 5 % of races."""
    found = simulate(shape, documents, lead=lead, noise=0.02, races=20, seed=documents)
    assert found.wrong == 0
    assert found.lost <= 0.1


@pytest.mark.parametrize("documents", [10, 50])
@pytest.mark.parametrize("shape", list(RARE)[:3])
def test_the_best_is_kept_where_methods_fail_on_rare_documents(shape: str, documents: int) -> None:
    """Whom the documents so far show without a failure may have one, as others were seen to."""
    found = simulate(shape, documents, lead=0.02, races=10, seed=documents)
    assert found.wrong == found.lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_two_percent_is_found(shape: str) -> None:
    """One of 25 that leads by 2 % wins on 50 documents, where methods differ by 1.4 % on each."""
    found = simulate(shape, 50, lead=0.02, noise=0.01, races=10, seed=1)
    assert found.right >= 0.7
    assert found.spent < 0.8
    third = simulate(shape, 50, lead=0.02, noise=0.01, races=10, seed=1, share=1 / 3)
    assert third.lowest == 1
    assert third.spent < 0.34
