"""What is searched, and the search itself, on objectives whose optimum is known."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import entry, load
from ropewalk.harness.recommend.space import (
    Space,
    closed_form,
    independent,
    of_factors,
    of_options,
    rising,
)
from ropewalk.harness.recommend.tune import search
from ropewalk.scaling import yarn
from ropewalk.scaling.types import Frequencies, Rope

ROPE = Rope(32, 10_000.0, 256)


def bowl(optimum: Sequence[float]) -> tuple[Space, Callable[[Sequence[str]], list[float]]]:
    """Return a space whose methods are points, and a measure that is least at one of them."""
    space = Space("a bowl", (0.5,) * len(optimum), lambda x, _: ",".join(f"{v:.17g}" for v in x))

    def measure(methods: Sequence[str]) -> list[float]:
        points = [[float(text) for text in method.split(",")] for method in methods]
        return [sum((a - b) ** 2 for a, b in zip(x, optimum, strict=False)) for x in points]

    return space, measure


@pytest.mark.parametrize("optimum", [(0.8,), (0.1, 0.9), (0.3, 0.6, 0.2, 0.75)])
def test_a_planted_optimum_is_recovered(optimum):
    """Of one number, which CMA-ES does not take, as of several."""
    space, measure = bowl(optimum)
    done = search(space, 300, 0, measure)
    assert len(done) == 300
    found = [float(text) for text in min(done)[1].split(",")][: len(optimum)]
    assert found == pytest.approx(optimum, abs=0.02)


def test_a_method_is_searched_where_its_options_say():
    space = of_options("yarn", ROPE, 1024)
    ends = [space.method([x] * 3, 1) for x in (0.0, 1.0)]
    assert ends == [
        "yarn:factor=2,beta_fast=4,beta_slow=0.1",
        "yarn:factor=16,beta_fast=128,beta_slow=4",
    ]
    assert closed_form("yarn") == "yarn"
    assert space.method(space.start, 1).endswith("beta_fast=32,beta_slow=1")


def test_given_ranges_are_searched_alone():
    """LOW..HIGH in place of a value; what has a value keeps it, whole numbers stay whole."""
    space = of_options("yarn:factor=4,beta_fast=16..64", ROPE, 1024)
    assert len(space.start) == 1
    assert space.method([0.5], 1) == "yarn:factor=4,beta_fast=32"
    assert closed_form("yarn:factor=4,beta_fast=16..64") == "yarn:factor=4"
    assert of_options("yarn:attention_factor=1..1.5", ROPE, 1024).method([0.5], 1) == (
        "yarn:attention_factor=1.25"
    )
    windows = of_options("self_extend", ROPE, 1024)
    assert [windows.method([x], 1) for x in (0, 1)] == [
        "self_extend:window=4",
        "self_extend:window=192",
    ]
    assert of_options("jet_long:window=1..9", ROPE, 1024).method([0.5], 1) == "jet_long:window=3"
    long = of_options("jet_long:window=1048576..2097152", ROPE, 1024)
    assert long.method([0.0], 1) == "jet_long:window=1048576"


def test_a_users_method_declares_its_own(tmp_path):
    """By the same annotation, and any method by LOW..HIGH."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from typing import Annotated\nfrom scaling import Frequencies, Range, Rope\n"
        "def frequencies(rope: Rope, length: int, *, kept: Annotated[float, Range(0.2, 0.6)] = 0.4,"
        " more: float = 1.0) -> Frequencies:\n    return Frequencies(rope.inv_freq() * kept)\n"
    )
    space = of_options(str(mine), ROPE, 512)
    assert space.method(space.start, 1) == f"{mine}:kept=0.4"
    assert space.method([1.0], 1) == f"{mine}:kept=0.6"
    assert of_options(f"{mine}:more=1..100", ROPE, 512).method([0.5], 1) == f"{mine}:more=10"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("none", "no option with a range"),
        ("yarn:beta=1..2", "has no option 'beta'"),
        ("yarn:beta_fast=64..8", "is no range"),
        ("self_extend:group=1.6..2.4", "is no range; .* whole numbers"),
        ("yarn:beta_fast=..8", "should be a valid number"),
        ("yarn:ramp=1..2", "ramp="),
        ("spline:knots=9", "is invalid: write channels"),
    ],
)
def test_what_cannot_be_searched_is_refused(given, words, tmp_path):
    free = given.startswith(("spline", "channels"))
    with pytest.raises(UserError, match=words):
        _ = of_factors(given, ROPE, 1024, tmp_path) if free else of_options(given, ROPE, 1024)


def test_rising_shares_are_their_own_numbers_again():
    shares = [0.0, 0.1, 0.1, 0.5, 0.98]
    assert rising(independent(shares)) == pytest.approx(shares)
    assert np.all(np.diff(rising(np.random.default_rng(0).random(20).tolist())) >= 0)


@pytest.mark.parametrize("given", ["spline:knots=4", "spline", "channels"])
def test_a_point_of_factors_is_a_file_that_a_run_reads(given, tmp_path):
    """It begins near the method it is given, rises with the channel, and is 1 in the window."""
    begin = yarn.frequencies(ROPE, 1024)
    space = of_factors(given, ROPE, 1024, tmp_path / "factors")
    plugin = load("method", space.method(space.start, 7))
    assert plugin.label == "trial_007"

    def at(length: int) -> Frequencies:
        found = entry(plugin.module, "method")(ROPE, length, **plugin.arguments)
        assert isinstance(found, Frequencies)
        return found

    assert at(256).fingerprint == Frequencies(ROPE.inv_freq()).fingerprint
    factors = (ROPE.inv_freq() / at(1024).inv_freq).numpy()
    assert np.all(np.diff(factors) >= -1e-6)
    wanted = (ROPE.inv_freq() / begin.inv_freq).numpy()
    assert factors == pytest.approx(wanted, rel=1e-5 if given == "channels" else 0.6)
    assert factors[[0, -1]] == pytest.approx(wanted[[0, -1]], rel=1e-5)
