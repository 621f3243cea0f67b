"""Methods that move positions: every relative position is what its paper says."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.harness.plugins import load, names_code
from ropewalk.scaling import (
    dpe,
    dual_chunk,
    dynamic_ntk,
    gali,
    info_scale,
    jet_long,
    lampe,
    leaky_rerope,
    lm_infinite,
    log_n,
    mesa,
    ms_poe,
    native,
    none,
    ntk,
    rerope,
    self_extend,
    self_logistic,
    streaming_llm,
    string,
    temperature,
    yarn,
)  # fmt: skip
from ropewalk.scaling.types import Band, Bands, Frequencies, Rope
from tests import naive_methods as naive
from tests.banded import heads_of
from tests.naive import positions

ROPE = Rope(16, 10_000.0, 48)
PLAIN = none.frequencies(ROPE, 48)
# The relative position of query m and key n in a context of a length; None where it is not seen.
Formula = Callable[[int, int, int], float | None]


def dual_chunked(chunk: int, largest: int) -> Formula:

    def relative(m: int, n: int, _: int) -> float:
        apart = m // chunk - n // chunk
        if apart == 0:
            return m % chunk - n % chunk
        return (min(m % chunk + chunk, largest) if apart == 1 else largest) - n % chunk

    return relative


def cached(window: int, sinks: int) -> Formula:
    """StreamingLLM: places in a cache that drops the oldest token but the sinks."""

    def relative(m: int, n: int, _: int) -> float | None:
        cache = list(range(m + 1))
        if len(cache) > sinks + window:
            cache = cache[:sinks] + cache[-window:]
        return len(cache) - 1 - cache.index(n) if n in cache else None

    return relative


def mapped(span: int, near: int, tail: int) -> Formula:
    """LaMPE, where the context has two near bands or more."""
    return lambda m, n, length: (
        naive.lampe(m, n, length, span, near, tail) if length >= 2 * near else m - n
    )


def blended(window: int, chunk: int) -> Formula:
    """GALI: floor, ceiling and the share between them."""

    def relative(m: int, n: int, length: int) -> float:
        low, high, share = naive.gali(m, n, length, 48, window, chunk)
        assert high == low + (share > 0)
        return low + float(share)

    return relative


def chunked(chunk: int, first: int, push: int) -> Formula:
    """Mesa-Extrapolation beyond the window."""
    return lambda m, n, length: (
        naive.mesa(m, n, length, chunk, first, push, trained=48) if length > 48 else m - n
    )


QWEN = {"chunk_size": 48, "local_size": 12, "original_max_position_embeddings": 48}
# The method, its options, and the relative positions worked from the papers.
CASES: list[tuple[Any, dict[str, Any], Formula]] = [
    (rerope, {"window": 9}, lambda m, n, _: min(m - n, 9)),
    (rerope, {}, lambda m, n, _: min(m - n, 12)),
    (
        leaky_rerope,
        {"window": 9, "factor": 4.0},
        lambda m, n, _: m - n if m - n < 9 else 9 + (m - n - 9) / 4,
    ),
    (  # LongLM, equation 4, with floors
        self_extend,
        {"window": 9, "group": 4},
        lambda m, n, _: m - n if m - n < 9 else m // 4 - n // 4 + 9 - 9 // 4,
    ),
    (self_extend, {"window": 12, "group": 1}, lambda m, n, _: m - n),
    (dual_chunk, {}, dual_chunked(30, 36)),
    (dual_chunk, {"chunk": 36, "largest": 47}, dual_chunked(36, 47)),
    (dual_chunk, {"chunk": 1, "largest": 1}, dual_chunked(1, 1)),
    (string, {"shift": 16, "local": 3}, lambda m, n, _: m - n if m - n < 16 else m - n - 16 + 3),
    (
        lm_infinite,
        {"window": 20, "sinks": 4},
        lambda m, n, _: m - n if m - n < 20 else 20 if n < 4 else None,
    ),
    (lm_infinite, {}, lambda m, n, _: m - n if m - n < 48 else 48 if n < 10 else None),
    (streaming_llm, {"window": 20}, cached(20, 4)),
    (streaming_llm, {"sinks": 0, "window": 9}, cached(9, 0)),
    (streaming_llm, {}, cached(44, 4)),
    *(
        (
            dual_chunk,
            {"form": "qwen", "chunk": 48 - local, "largest": 48},
            lambda m, n, _, local=local: naive.qwen_dual_chunk(m, n, 48, local),
        )
        for local in (15, 38)
    ),
    (
        native,
        {"dual_chunk_attention_config": QWEN},
        lambda m, n, _: naive.qwen_dual_chunk(m, n, 48, 12),
    ),
    (
        self_logistic,
        {"window": 9, "rate": 0.02, "capacity": 33.0},
        lambda m, n, _: naive.self_logistic(m, n, 9, 0.02, 33),
    ),
    (self_logistic, {"capacity": 8.0}, lambda m, n, _: naive.self_logistic(m, n, 12, 0.02, 8)),
    *(
        (lampe, {"span": span, "near": near, "tail": tail}, mapped(span, near, tail))
        for near, tail, span in ((8, 3, 20), (4, 0, 8), (7, 6, 90))
    ),
    *(
        (mesa, {"chunk": chunk, "first": first, "push": push}, chunked(chunk, first, push))
        for chunk, first, push in ((16, 3, 4), (30, 10, 2))
    ),
    (
        jet_long,
        {"window": 7},
        lambda m, n, length: m - n if m - n <= 7 else m // -(-length // 48) - n // -(-length // 48),
    ),
    *(
        (gali, {"window": window, "chunk": chunk}, blended(window, chunk))
        for window, chunk in ((0, 20), (5, 13))
    ),
]


def relatives(found: Bands | Frequencies, length: int) -> dict[tuple[int, int], float]:
    """Return every pair's relative position; of bare frequencies the true ones."""
    pairs = positions(found.as_bands(length), length)
    return {pair: relative for pair, (relative, _) in pairs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options", "formula"), CASES)
@pytest.mark.parametrize("length", [13, 48, 49, 64, 110])
def test_relative_positions_are_the_papers(method, options, formula, length):
    """Pair by pair, inside and beyond the window, and no pair that the paper leaves out."""
    rope, options = (replace(ROPE, shipped=options), {}) if method is native else (ROPE, options)
    wanted = {(m, n): formula(m, n, length) for m in range(length) for n in range(m + 1)}
    wanted = {pair: relative for pair, relative in wanted.items() if relative is not None}
    found = relatives(method.bands(rope, length, **options), length)
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[pair], wanted[pair], rel_tol=1e-6) for pair in wanted)


@pytest.mark.parametrize("length", [30, 48, 49, 110])
def test_scores_are_scaled_as_the_papers_say(length):
    """The last query's factor: Qwen's and LaMPE's of all queries, Mesa's of each."""
    rope = replace(ROPE, shipped={"dual_chunk_attention_config": QWEN})
    for found, heat in (
        (native.bands(rope, length), naive.qwen_heat(length, 48)),
        (lampe.bands(ROPE, length), naive.lampe_heat()),
    ):
        scale = found.as_bands(length).query_scale
        factor = found.last.attention_factor**2 * (1 if scale is None else float(scale[-1]))
        assert factor == pytest.approx(heat, rel=1e-12)
    if length > 48:
        found = mesa.bands(ROPE, length, chunk=16, first=3, push=4)
        wanted = [naive.mesa_log_n(m, length, 16, 3, 48) for m in range(length)]
        assert found.query_scale.tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("length", [4000, 16_384, 131_072])
@pytest.mark.parametrize(
    ("curve", "window"),
    [("llama2", 4096), ("llama3", 8192), ("mistral", 32_768), ("llama3.1", 131_072)],
)
def test_lampe_has_the_span_of_the_authors(curve, window, length):
    rope = Rope(16, 10_000.0, window)
    span = naive.lampe_mapped_length(length, curve)
    found, wanted = (lampe.bands(rope, length, curve=curve, span=given) for given in (None, span))
    assert found.fingerprint == wanted.fingerprint


@pytest.mark.parametrize("length", [4096 + 1, 8192, 20_000, 131_072])
def test_mesa_cuts_a_text_as_the_authors_do(length):
    assert mesa._chunk(4096, length, 100) == naive.mesa_chunk(length, 4096)


def test_gali_has_the_fractional_queries_of_the_authors():
    """A window of 8192 and 16,384 tokens: 11,192 to 11,999 are at halves, later ones are whole.

    A chunk ends at 14,192. Its last 2192 tokens are at 6000 to 8191, those before at 0, 0.5, 1, ….
    """
    found = gali.bands(Rope(16, 1e4, 8192), 16_384)
    assert isinstance(found, Bands)
    starts = [band.start for band in found.bands]
    fractional = [int((band.key[band.start :] % 1 > 0).sum()) for band in found.bands]
    assert (starts, fractional) == ([0, 8192, 11_192, 14_192], [0, 0, 404, 0])
    assert found.bands[2].key[11_999:12_001].tolist() == [5999.5, 6000]


def test_dpe_groups_each_eighth_of_the_channels():
    """Every pair of tokens and channels; of a head's channels only those with the largest norms."""
    groups, length = (2, 3, 4, 1, 5, 2, 7, 8), 60
    options: dict[str, Any] = {f"g{at}": size for at, size in enumerate(groups, start=1)}
    found = dpe.bands(ROPE, length, window=9, **options)
    assert isinstance(found, Bands)
    for m, n in [(59, 0), (40, 31), (40, 32), (17, 2), (5, 5)]:
        wanted = naive.dpe(m, n, 9, groups)
        near, far = found.bands
        band = near if m - n < 9 else far
        apart = band.query[m - band.start] - band.key[n]
        row = apart.expand(8) if band.column is None else apart[band.column]
        assert row.tolist() == pytest.approx(wanted)
    rope = Rope(16, 1e4, 48, layers=2, heads=3)
    path = heads_of(2, 3, 8)
    norms = json.loads(Path(path).read_text(encoding="utf-8"))["pair_norms"]
    (_, far) = dpe.bands(rope, length, window=9, heads=path, top=3, **options).as_bands(1).bands
    assert far.column is not None
    for layer, head in product(range(2), range(3)):
        order = sorted(range(8), key=lambda i: -norms[layer][head][i])
        moving = set(order[:3])
        wanted = naive.dpe_top_k(50, 4, 9, groups, 8, moving)
        apart = (far.query[50 - far.start] - far.key[4])[far.column[layer, head]]
        assert apart.tolist() == pytest.approx(wanted)


def test_ms_poe_gives_each_head_its_ratio():
    """By rank, corrected, from the third layer on; the shares 0.1, 0.3, 0.2 rank 2, 0, 1."""
    rope, path = Rope(16, 1e4, 48, layers=4, heads=3), heads_of(4, 3, 8)
    shares = json.loads(Path(path).read_text(encoding="utf-8"))["outlier_shares"]
    found = ms_poe.bands(rope, 60, heads=path)
    assert isinstance(found, Bands)
    (band,) = found.bands
    assert band.column is not None
    for layer, head in product(range(4), range(3)):
        ranks = naive.ms_poe_ranks(shares[layer])
        ratio = naive.ms_poe_ratios(ranks)[head] if layer >= 2 else 1.0
        column = band.column[layer, head]
        assert len(set(column.tolist())) == 1
        apart = band.query[50, column[0]] - band.key[7, column[0]]
        assert math.isclose(float(apart), 43 / ratio, rel_tol=1e-6)


@pytest.mark.parametrize(("method", "options", "length"), [
    (rerope, {"window": 96}, 96), (leaky_rerope, {"factor": 1.0}, 96),
    (self_extend, {"group": 1}, 96), (string, {"shift": 96, "local": 4}, 96),
    (lm_infinite, {"window": 96}, 96), (log_n, {}, 48),
    (jet_long, {}, 48), (jet_long, {"far": "ramped"}, 48), (jet_long, {"group": 1}, 150),
    *((dynamic_ntk, {"mode": mode}, 48) for mode in ("frozen", "per_query", "transformers")),
])  # fmt: skip
def test_a_setting_without_effect_is_the_plain_embedding(method, options, length):
    """It is measured as such, once: window as long as the text, group, factor or scale of 1."""
    found = method.bands(ROPE, length, **options)
    assert isinstance(found, Frequencies)
    assert found.fingerprint == PLAIN.fingerprint


@pytest.mark.parametrize(("length", "group"), [(6144, 3), (6145, 4), (16384, 9)])
def test_the_group_is_the_least_that_the_rule_allows(length, group):
    """With W = 1024 of 4096, W + (length - W) / G = 2730.67 is reached and not left."""
    # (6144 - 1024) / (8192/3 - 1024) = 3 and (16384 - 1024) / (8192/3 - 1024) = 9, to the digit
    rope = Rope(16, 10_000.0, 4096)
    wanted = self_extend.bands(rope, length, group=group)
    assert self_extend.bands(rope, length).fingerprint == wanted.fingerprint


def test_queries_scale_as_the_papers_say():
    """Each from its paper: log n, Llama 4's steps, and InfoScale by the keys that are seen."""
    methods = log_n, temperature, info_scale
    logs, steps, spread = (method.bands(ROPE, 100).query_scale.tolist() for method in methods)
    for m in range(100):
        assert logs[m] == pytest.approx(max(1.0, math.log(m + 1) / math.log(48)))
        assert steps[m] == pytest.approx(1 + 0.1 * math.log(1 + (m + 1) // 48))
        assert spread[m] == pytest.approx(max(1.0, naive.infoscale(m + 1, 16, 48)), rel=1e-12)


def test_a_scale_combines_with_any_method():
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


def test_a_method_builds_on_a_users_file(tmp_path):
    """A path takes options as any method does; its content is in the digest, its text recorded."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from ropewalk.scaling import Frequencies\n\n\n"
        "def frequencies(rope, length, *, by: float = 2.0, less: float = 0.0):\n"
        "    return Frequencies(rope.inv_freq() / (by - less))\n"
    )
    built = load("method", f"log_n:on={mine}:by=5+less=1")
    assert built.options == {"layers": "all", "on": f"{mine}:by=5+less=1"}
    assert built.digest == load("method", str(mine)).digest
    found = log_n.bands(ROPE, 40, **built.arguments)
    assert isinstance(found, Frequencies)
    assert torch.equal(found.inv_freq, ROPE.inv_freq() / 4)
    assert load("method", "log_n:on=yarn").digest is None


def test_code_named_anywhere_in_a_method_is_found_without_running_it():
    for given in ("yarn:factor=8", "log_n:on=rerope:window=9"):
        assert not names_code("method", given)
    for given in ("./mine.py", "mine.module", "log_n:on=rerope:on=./mine.py:x=1"):
        assert names_code("method", given)


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 8])
def test_a_block_of_queries_has_the_base_of_its_end(block):
    """Lengths are rounded up to whole blocks; inside the window nothing is scaled."""
    found = dynamic_ntk.bands(ROPE, 61, mode="per_query", block=block)
    assert isinstance(found, Bands)
    pairs = positions(found, 61)
    assert len(pairs) == 61 * 62 // 2
    for (m, n), (relative, band) in pairs.items():
        length = m + 1 if m < 48 else -(-(m + 1) // block) * block
        own = dynamic_ntk.frequencies(ROPE, length)
        assert (relative, band.frequencies.fingerprint) == (m - n, own.fingerprint)


def band(first: list[int], end: list[int], **given: Any) -> Band:
    rows = torch.arange(len(first), dtype=torch.float64)
    given = {"query": rows, "key": rows, **given}
    return Band(torch.tensor(first), torch.tensor(end), frequencies=PLAIN, **given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: band([0, 0], [1, 3]), "query 1 must meet keys first..end within 0..2"),
        (lambda: band([0, 0], [1, 2], key=torch.zeros(1).double()), "within 0..1"),
        (lambda: band([0], [1], query=torch.tensor([math.nan]).double()), "finite"),
        (lambda: Bands(2, (band([0, 0], [1, 1]),) * 2), "query 0 meets a key in two bands"),
        (lambda: Bands(2, (band([0, 0], [1, 2]), band([0, 1], [0, 2]))), "query 1 meets a key"),
        (lambda: Bands(2, (band([0, 0], [1, 0]),)), "query 1 meets no key"),
    ],
)
def test_bands_that_are_no_attention_are_refused(make, words):
    """A pair in the future, a pair twice, a query without a key: never a silent number."""
    with pytest.raises(ValueError, match=words):
        make()


def test_equal_bands_are_one_and_others_are_not():
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
        dynamic_ntk.bands(ROPE, 90, mode="transformers"),
        dynamic_ntk.bands(ROPE, 91, mode="transformers"),
        dynamic_ntk.bands(ROPE, 90, factor=4.0, mode="transformers"),
        jet_long.bands(ROPE, 90, window=7, far="ramped"),  # which differ in their phase alone
        jet_long.bands(ROPE, 90, window=8, far="ramped"),
    ]
    assert len({*same, *(found.fingerprint for found in others)}) == 1 + len(others)
