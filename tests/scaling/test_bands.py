"""Methods that move positions: every relative position is what its paper says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.plugins import entry, load, names, names_code, parameters
from scaling import (
    dual_chunk,
    dynamic_ntk,
    leaky_rerope,
    lm_infinite,
    log_n,
    none,
    ntk,
    rerope,
    self_extend,
    string,
    temperature,
    yarn,
)  # fmt: skip
from scaling.types import Band, Bands, Frequencies, Rope, by_distance
from tests.naive import positions

ROPE = Rope(16, 10_000.0, 48)
PLAIN = none.frequencies(ROPE, 48)
Formula = Callable[[int, int], float | None]


def self_extended(window: int, group: int) -> Formula:
    """LongLM, equation 4, with floors."""

    def relative(m: int, n: int) -> float:
        if m - n < window:
            return m - n
        return m // group - n // group + window - window // group

    return relative


def dual_chunked(chunk: int, largest: int) -> Formula:

    def relative(m: int, n: int) -> float:
        apart = m // chunk - n // chunk
        if apart == 0:
            return m % chunk - n % chunk
        return (min(m % chunk + chunk, largest) if apart == 1 else largest) - n % chunk

    return relative


def lambda_shaped(window: int, sinks: int) -> Formula:
    """LM-Infinite: near, or among the first; between, nothing."""

    def relative(m: int, n: int) -> float | None:
        if m - n < window:
            return m - n
        return window if n < sinks else None

    return relative


# The method, its options, and the relative position of query m and key n worked from the papers.
CASES: list[tuple[Any, dict[str, Any], Formula]] = [
    (rerope, {"window": 9}, lambda m, n: min(m - n, 9)),
    (rerope, {}, lambda m, n: min(m - n, 12)),
    (
        leaky_rerope,
        {"window": 9, "factor": 4.0},
        lambda m, n: m - n if m - n < 9 else 9 + (m - n - 9) / 4,
    ),
    (self_extend, {"window": 9, "group": 4}, self_extended(9, 4)),
    (self_extend, {"window": 12, "group": 1}, lambda m, n: m - n),
    (dual_chunk, {}, dual_chunked(30, 36)),
    (dual_chunk, {"chunk": 36, "largest": 47}, dual_chunked(36, 47)),
    (dual_chunk, {"chunk": 1, "largest": 1}, dual_chunked(1, 1)),
    (string, {"shift": 16, "local": 3}, lambda m, n: m - n if m - n < 16 else m - n - 16 + 3),
    (lm_infinite, {"window": 20, "sinks": 4}, lambda_shaped(20, 4)),
    (lm_infinite, {}, lambda_shaped(48, 10)),
]


def relatives(found: Bands | Frequencies, length: int) -> dict[tuple[int, int], float]:
    """Return every pair's relative position; of bare frequencies the true ones."""
    if isinstance(found, Frequencies):
        found = Bands(length, (by_distance(length, found, 0),))
    return {pair: relative for pair, (relative, _) in positions(found, length).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options", "formula"), CASES)
@pytest.mark.parametrize("length", [1, 13, 49, 110])
def test_relative_positions_are_the_papers(
    method: Any, options: dict[str, Any], formula: Formula, length: int
) -> None:
    """Pair by pair, inside and beyond the window, and no pair that the paper leaves out."""
    wanted = {(m, n): formula(m, n) for m in range(length) for n in range(m + 1)}
    wanted = {pair: relative for pair, relative in wanted.items() if relative is not None}
    found = relatives(method.bands(ROPE, length, **options), length)
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[pair], wanted[pair], rel_tol=1e-6) for pair in wanted)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (rerope, {"window": 96}),
        (leaky_rerope, {"factor": 1.0}),
        (self_extend, {"group": 1}),
        (string, {"shift": 96, "local": 4}),
        (lm_infinite, {"window": 96}),
        (log_n, {"on": none.frequencies}),
        (dynamic_ntk, {}),
        (dynamic_ntk, {"mode": "per_query"}),
        (dynamic_ntk, {"mode": "transformers"}),
    ],
)
def test_a_setting_without_effect_is_the_plain_embedding(method: Any, options: Any) -> None:
    """It is measured as such, once: window as long as the text, group, factor or scale of 1."""
    length = 96 if options.get("window", options.get("shift", options.get("group"))) else 48
    if options == {"factor": 1.0}:
        length = 96
    found = method.bands(ROPE, length, **options)
    assert isinstance(found, Frequencies)
    assert found.fingerprint == PLAIN.fingerprint


@pytest.mark.parametrize(("length", "group"), [(6144, 3), (6145, 4), (16384, 9)])
def test_the_group_is_the_least_that_the_rule_allows(length: int, group: int) -> None:
    """With W = 1024 of 4096, W + (length - W) / G = 2730.67 is reached and not left."""
    # (6144 - 1024) / (8192/3 - 1024) = 3 and (16384 - 1024) / (8192/3 - 1024) = 9, to the digit
    rope = Rope(16, 10_000.0, 4096)
    wanted = self_extend.bands(rope, length, group=group)
    assert self_extend.bands(rope, length).fingerprint == wanted.fingerprint


@pytest.mark.parametrize("method", [leaky_rerope, self_extend])
@given(length=st.integers(1, 700))
@settings(max_examples=40)
def test_an_unset_factor_keeps_within_the_window(method: Any, length: int) -> None:
    """No relative position is beyond the trained window, and inside it nothing is changed."""
    found = method.bands(ROPE, length)
    if length <= ROPE.trained_length:
        assert isinstance(found, Frequencies)
    else:
        limit = 2 / 3 if method is self_extend else 1
        assert found.reach <= ROPE.trained_length * limit + 1


@pytest.mark.slow
@given(length=st.integers(2, 120), shorter=st.integers(1, 119))
@settings(max_examples=10)
def test_a_shorter_context_is_the_beginning_of_a_longer(length: int, shorter: int) -> None:
    """Fixed options: the bands at a length are those of a longer one, cut off."""
    shorter = min(shorter, length)
    for method, options, _ in CASES:
        whole = method.bands(ROPE, length, **options)
        part = method.bands(ROPE, shorter, **options)
        if isinstance(whole, Bands):
            assert whole.upto(shorter).fingerprint == part.fingerprint


def test_queries_scale_as_the_papers_say() -> None:
    """log n: ln(m+1) / ln(window) beyond it; Llama 4: 1 + 0.1 ln(1 + floor((m+1) / window))."""
    found, steps = log_n.bands(ROPE, 100), temperature.bands(ROPE, 100)
    for m in range(100):
        wanted = max(1.0, math.log(m + 1) / math.log(48))
        assert float(found.query_scale[m]) == pytest.approx(wanted)
        assert float(steps.query_scale[m]) == pytest.approx(1 + 0.1 * math.log(1 + (m + 1) // 48))


def test_a_scale_combines_with_any_method() -> None:
    """With frequencies, with moved positions, with another scale, and with their options."""
    moved = log_n.bands(ROPE, 100, on=partial(rerope.bands, window=9))
    assert isinstance(moved, Bands)
    assert relatives(moved, 100) == relatives(rerope.bands(ROPE, 100, window=9), 100)
    scaled = log_n.bands(ROPE, 100, on=partial(yarn.frequencies, factor=8, beta_fast=16))
    wanted = yarn.frequencies(ROPE, 100, factor=8, beta_fast=16)
    assert scaled.last.fingerprint == wanted.fingerprint
    both = log_n.bands(ROPE, 100, on=temperature.bands)
    one, other = (method.bands(ROPE, 100).query_scale for method in (log_n, temperature))
    assert torch.equal(both.query_scale, one * other)


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("yran", "no method is called 'yran'; did you mean 'yarn'"),
        ("yarn:factr=8", "yarn has no option 'factr'; did you mean 'factor'"),
        ("yarn:factor=x", "yarn: factor=x should be"),
        ("yarn:factor=8+factor=4", "yarn: option 'factor' is given twice"),
    ],
)
def test_what_a_method_builds_on_is_checked(on: str, words: str) -> None:
    """An unknown method, option or value is refused by name, in the words used without on=."""
    with pytest.raises(UserError, match=re.escape(words)):
        load("method", f"rerope:on={on}")


@pytest.mark.parametrize(
    ("on", "words"),
    [("self_extend", "moves positions"), ("dynamic_ntk:mode=transformers", "only runs as it is")],
)
def test_a_method_that_gives_no_frequencies_is_refused(on: str, words: str) -> None:
    """What moves positions itself, or runs as it is served, has no frequencies to build on."""
    built = load("method", f"rerope:on={on}")
    with pytest.raises(ValueError, match=words):
        rerope.bands(ROPE, 100, **built.arguments)


def test_a_method_builds_on_a_users_file(tmp_path: Path) -> None:
    """A path takes options as any method does; its content is in the digest, its text recorded."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from scaling import Frequencies\n\n\n"
        "def frequencies(rope, length, *, by: float = 2.0, less: float = 0.0):\n"
        "    return Frequencies(rope.inv_freq() / (by - less))\n"
    )
    built = load("method", f"log_n:on={mine}:by=5+less=1")
    assert built.options == {"on": f"{mine}:by=5+less=1"}
    assert built.digest == load("method", str(mine)).digest
    found = log_n.bands(ROPE, 40, **built.arguments)
    assert isinstance(found, Frequencies)
    assert torch.equal(found.inv_freq, ROPE.inv_freq() / 4)
    assert load("method", "log_n:on=yarn").digest is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("yarn:factor=8", False),
        ("log_n:on=rerope:window=9", False),
        ("./mine.py", True),
        ("mine.module", True),
        ("log_n:on=./mine.py", True),
        ("log_n:on=rerope:on=./mine.py:x=1", True),
    ],
)
def test_code_named_anywhere_in_a_method_is_found_without_running_it(
    given: str, code: bool
) -> None:
    """A record that names a user's file, inside on= too, is known before any of it runs."""
    assert names_code("method", given) is code


OPTIONS = {
    "base": "1e6", "factor": "8", "group": "3", "kind": "uni", "mode": "per_query", "on": "ntk",
    "layerwise kind": "ntk", "p": "1", "sinks": "2", "truncate": "false", "window": "7",
}  # fmt: skip


@pytest.mark.parametrize("method", sorted({*names("method")} - {"longrope"}))  # it needs a table
def test_an_option_means_the_same_after_on(method: str) -> None:
    """What a method is told directly, it is told alike where another one builds on it."""
    known = parameters(load("method", method).module, "method")
    for option in known.keys() & OPTIONS.keys():
        given = f"{method}:{option}={OPTIONS.get(f'{method} {option}', OPTIONS[option])}"
        direct = load("method", given)
        wanted = entry(direct.module, "method")(ROPE, 100, **direct.arguments)
        built = load("method", f"log_n:on={given.replace(',', '+')}").arguments["on"]
        assert built(ROPE, 100).fingerprint == wanted.fingerprint, given


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (rerope, {"window": 0}),
        (leaky_rerope, {"factor": 0.5}),
        (leaky_rerope, {"window": 48}),
        (self_extend, {"group": 0}),
        (self_extend, {"window": 40}),
        (dual_chunk, {"chunk": 40}),
        (dual_chunk, {"largest": 48}),
        (string, {"shift": 4, "local": 5}),
        (lm_infinite, {"sinks": -1}),
        (temperature, {"floor": 0}),
        (dynamic_ntk, {"mode": "per_query", "block": 0}),
        (dynamic_ntk, {"mode": "frozen", "block": 0}),
    ],
)
def test_an_option_out_of_range_is_refused(method: Any, options: Any) -> None:
    """With a sentence, before anything is measured."""
    with pytest.raises(ValueError, match=r"must be|set "):
        method.bands(ROPE, 100, **options)


@pytest.mark.slow
def test_a_query_has_the_base_of_its_own_length() -> None:
    """block=1: query m and its keys turn at dynamic NTK's frequencies for m + 1."""
    found = dynamic_ntk.bands(ROPE, 60, factor=2.0, mode="per_query", block=1)
    assert isinstance(found, Bands)
    pairs = positions(found, 60)
    assert len(pairs) == 60 * 61 // 2
    for (m, n), (relative, band) in pairs.items():
        own = dynamic_ntk.frequencies(ROPE, m + 1, factor=2.0)
        assert (relative, band.frequencies.fingerprint) == (m - n, own.fingerprint)


@pytest.mark.slow
def test_a_block_of_queries_has_the_base_of_its_end() -> None:
    """block=8: lengths are rounded up to whole blocks; inside the window nothing is scaled."""
    found = dynamic_ntk.bands(ROPE, 61, mode="per_query", block=8)
    assert isinstance(found, Bands)
    for (m, _), (_, band) in positions(found, 61).items():
        length = m + 1 if m < 48 else -(-(m + 1) // 8) * 8
        own = dynamic_ntk.frequencies(ROPE, length)
        assert band.frequencies.fingerprint == own.fingerprint


def test_the_served_type_is_known_by_its_parameters_and_the_whole_context() -> None:
    """mode=transformers: its recorded frequencies are those of the length, and so is its key."""
    one, again, other = (dynamic_ntk.bands(ROPE, n, mode="transformers") for n in (60, 60, 90))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    strong = dynamic_ntk.bands(ROPE, 60, factor=4.0, mode="transformers")
    assert strong.fingerprint != one.fingerprint
    wanted = ntk.frequencies(ROPE, 60, factor=60 / 48)
    assert one.frequencies.fingerprint == wanted.fingerprint


def band(first: list[int], end: list[int], **given: Any) -> Band:
    rows = torch.arange(len(first), dtype=torch.float64)
    given = {"query": rows, "key": rows, **given}
    return Band(torch.tensor(first), torch.tensor(end), frequencies=PLAIN, **given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: band([0, 0], [1, 3]), "query 1 must meet keys first..end within 0..2"),
        (lambda: band([0, -1], [1, 1]), "within"),
        (lambda: band([0, 2], [1, 1]), "within"),
        (lambda: band([0, 0], [1, 2], key=torch.zeros(1).double()), "1 have a position"),
        (lambda: band([0], [1], query=torch.zeros(1)), "float64"),
        (lambda: band([0], [1], query=torch.tensor([math.nan]).double()), "finite"),
        (lambda: band([0], [1], query=torch.zeros(2).double()), "rows of one length"),
        (lambda: Bands(2, (band([0, 0], [1, 1]),) * 2), "query 0 meets a key in two bands"),
        (lambda: Bands(2, (band([0, 0], [1, 2]), band([0, 1], [0, 2]))), "query 1 meets a key"),
        (lambda: Bands(2, (band([0, 0], [1, 0]),)), "query 1 meets no key"),
        (lambda: Bands(3, (band([0, 0], [1, 2]),)), "query 2 meets no key"),
    ],
)
def test_bands_that_are_no_attention_are_refused(make: Callable[[], Any], words: str) -> None:
    """A pair in the future, a pair twice, a query without a key: never a silent number."""
    with pytest.raises(ValueError, match=words):
        make()


def test_equal_bands_are_one_and_others_are_not() -> None:
    """The fingerprint is that of the numbers: positions, bounds, frequencies, scale, length."""
    same = [rerope.bands(ROPE, 90, window=12).fingerprint, rerope.bands(ROPE, 90).fingerprint]
    assert same[0] == same[1]
    others = [
        rerope.bands(ROPE, 91),
        rerope.bands(ROPE, 90, window=11),
        rerope.bands(ROPE, 90, on=partial(ntk.frequencies, factor=2)),
        log_n.bands(ROPE, 90, on=rerope.bands),
        self_extend.bands(ROPE, 90, window=12),
        dynamic_ntk.bands(ROPE, 90, mode="per_query"),
    ]
    assert len({*same, *(found.fingerprint for found in others)}) == 1 + len(others)
