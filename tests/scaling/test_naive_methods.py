"""The naive methods against numbers worked by hand, and against what must hold of every pair."""

import math
from fractions import Fraction
from functools import partial

import pytest
import torch

from tests.naive_methods import (
    dpe,
    dpe_key_pairs,
    dpe_top_k,
    gali,
    gali_end,
    gali_ids,
    infoscale,
    lampe,
    lampe_heat,
    lampe_mapped_length,
    mesa,
    mesa_chunk,
    mesa_last_chunk,
    mesa_log_n,
    ms_poe_ranks,
    ms_poe_ratios,
    ms_poe_shares,
    per_pair,
    qwen_dual_chunk,
    qwen_heat,
    self_group_size,
    self_groups,
    self_logistic,
)

SMALL = {"length": 24, "mapped": 8, "head": 4, "tail": 3}


@pytest.mark.parametrize(
    ("m", "n", "relative"),
    # Chunks of 16 - 4 = 12 tokens; m % 12 and n % 12 are 6, 1; 6, 8; 6, 2; 5, 11; 3, 0.
    # Same chunk 6 - 1; the previous min(6 + 12, 16) - 8; earlier min(23, 16) - 2; and so on.
    [(30, 25, 5), (30, 20, 8), (30, 2, 14), (17, 11, 5), (27, 0, 16)],
)
def test_dual_chunk_by_hand(m, n, relative):
    """Chunks of 12 tokens: the same, the previous and an earlier one."""
    assert qwen_dual_chunk(m, n, 16, 4) == relative


def test_heat_of_dual_chunk_by_hand():
    """Four windows: s = 0.1 ln 4 + 1 = 1.138629, squared 1.296477; none inside the window."""
    assert qwen_heat(1_048_576, 262_144) == pytest.approx(1.296477, abs=5e-7)
    assert math.sqrt(qwen_heat(1_048_576, 262_144)) == pytest.approx(1.138629, abs=5e-7)
    assert qwen_heat(1000, 262_144) == qwen_heat(262_144, 262_144) == qwen_heat(10**6, 0) == 1


@pytest.mark.parametrize(
    ("m", "n", "window", "group", "relative"),
    [
        # 20 // 4 - 3 // 4 + 8 - 8 / 4 = 5 - 0 + 6; 20 // 2 - 3 // 2 + 8 - 4 = 10 - 1 + 4
        (20, 3, 8, 4, 11),
        (20, 3, 8, 2, 13),
        # 65000 - 5 + 512; 16250 - 1 + 896; 4062 - 0 + 992
        (130_000, 10, 1024, 2, 65_507),
        (130_000, 10, 1024, 8, 17_145),
        (130_000, 10, 1024, 32, 5054),
        # below the window it is the distance, whatever the group
        (1033, 10, 1024, 32, 1023),
        # the window is not divided by the group: 20 // 3 - 3 // 3 + 8 - 8 / 3
        (20, 3, 8, 3, 6 - 1 + 8 - 8 / 3),
    ],
)
def test_dpe_by_hand(m, n, window, group, relative):
    """One group alone, and beside others."""
    assert dpe(m, n, window, [group]) == (relative,)
    assert dpe(m, n, window, [1, group, 1]) == (m - n, relative, m - n)


def test_dpe_moves_the_chosen_pairs():
    """Pairs 1 and 2 of groups (2, 4), two pairs each: (13, 13, 11, 11), the others keep 17."""
    assert dpe_top_k(20, 3, 8, [2, 4], 4, {1, 2}) == [17, 13, 11, 17]
    assert dpe_top_k(20, 3, 8, [2, 4], 4, set(range(4))) == per_pair(dpe(20, 3, 8, [2, 4]), 4)
    assert dpe_top_k(9, 3, 8, [2, 4], 4, {1, 2}) == [6] * 4


def test_dpe_chooses_by_the_mean_product_of_norms():
    """Pairs are channels (0, 3), (1, 4), (2, 5); products of norms 5 and 0; 0 and 6; 2 and 2."""
    queries = torch.tensor([[3.0, 0, 1, 4, 0, 0], [0, 3, 1, 0, 0, 0]])
    keys = torch.tensor([[1.0, 9, 2, 0, 9, 0], [9, 2, 0, 9, 0, 2]])
    assert dpe_key_pairs(queries, keys, 1) == {1}
    assert dpe_key_pairs(queries, keys, 2) == {0, 1}


@pytest.mark.parametrize(
    ("model", "length", "mapped"),
    [
        ("llama3", 16_384, 1993),
        ("llama3", 32_768, 4501),
        ("llama3", 131_072, 6204),
        *((model, 8191, 1536) for model in ("llama2", "llama3", "mistral")),
        ("llama2", 8192, 1283),
        ("mistral", 8192, 4104),
        # 82358.524 / (1 + e^(2.788577 - 0.184535)) = 82358.524 / 14.5183: more than the length
        ("llama3.1", 4096, 5672),
    ],
)
def test_mapped_length_of_lampe(model, length, mapped):
    """The sigmoids of the authors, rounded down; short prompts have 1536."""
    assert lampe_mapped_length(length, model) == mapped


@pytest.mark.parametrize(
    ("m", "n", "relative"),
    # f(p) = 8 p // 23; f(3) = f(5) = 1, f(6) = 2: the last token is 5. near = 4 - 1 - f(4) = 2;
    # the corner is 24 - 1 - 5 = 18, far = 18 - f(18) - 2 = 18 - 6 - 2 = 10.
    [
        (3, 0, 3), (23, 20, 3),  # the distance
        (4, 0, 3), (12, 0, 6), (18, 0, 8), (23, 5, 9),  # f(m) + 2 - f(n)
        (19, 0, 9), (23, 0, 13), (23, 4, 9),  # the distance - 10
    ],
)  # fmt: skip
def test_lampe_by_hand(m, n, relative):
    """A prompt of 24 tokens mapped to 8."""
    assert lampe(m, n, **SMALL) == relative


def test_lampe_leaves_short_prompts_alone():
    """Below two heads the positions are plain, and the heat stays: 1.0693147 squared."""
    assert lampe(1022, 0, 1023, 1536) == 1022
    assert lampe(1022, 0, 1024, 1536) != 1022
    assert lampe_heat() == pytest.approx(1.143434, abs=5e-7)


def halves(*values: float) -> list[Fraction]:
    return [Fraction(value) for value in values]


@pytest.mark.parametrize(
    ("end", "window", "ids"),
    [
        # G = 12 / 8, up: 2; r: 8 - r + 2 r >= 12, r = 4
        (12, 0, halves(0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7)),
        # one less: r = 3, and eleven tokens
        (11, 0, halves(0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 7)),
        # G = (12 - 4) / (8 - 4) = 2, as without a window; with 6, (12 - 6) / 2 = 3, r = 2
        (12, 4, halves(0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7)),
        (12, 6, [Fraction(j, 3) for j in range(6)] + halves(2, 3, 4, 5, 6, 7)),
        # G = 20 / 8, up: 3; r: 8 - r + 3 r >= 20, r = 6
        (20, 0, [Fraction(j, 3) for j in range(18)] + halves(6, 7)),
        # one token less of the last group
        (19, 0, [Fraction(j, 3) for j in range(17)] + halves(6, 7)),
        (8, 0, halves(*range(8))),
        (5, 0, halves(*range(5))),
    ],
)
def test_positions_of_gali_by_hand(end, window, ids):
    """A window of 8: fractions for the first tokens, whole positions for the last."""
    assert gali_ids(end, 8, window) == ids
    assert len(ids) == end


def test_gali_by_hand():
    """The last of 12 tokens is at 7, the second at 1/2: D = 6.5, half of each neighbour."""
    assert gali(11, 1, 12, 8, 0, 3000) == (6, 7, Fraction(1, 2))
    assert gali(11, 2, 12, 8, 0, 3000) == (6, 6, 0)
    # Query 9 is at 5 and key 7 at 3.5; a query inside the trained window has whole positions.
    assert gali(9, 7, 12, 8, 0, 3000) == (1, 2, Fraction(1, 2))
    assert gali(5, 1, 12, 8, 0, 3000) == (4, 4, 0)


@pytest.mark.parametrize(
    ("m", "prompt", "end"),
    # A window of 8 and chunks of 3: 8, 11, 14, 16 in a prompt of 16; then one by one.
    [(0, 16, 8), (7, 16, 8), (8, 16, 11), (10, 16, 11), (11, 16, 14), (14, 16, 16), (15, 16, 16),
     (16, 16, 17), (20, 16, 21), (3, 5, 8), (7, 5, 8), (8, 5, 9), (8, 8, 9)],
)  # fmt: skip
def test_chunks_of_gali_by_hand(m, prompt, end):
    """A query has the positions of the end of its chunk; generated tokens are chunks of one."""
    assert gali_end(m, prompt, 8, 3) == end


def test_ranks_and_ratios_of_ms_poe_by_hand():
    """Shares .1, .3, .2 rank 2, 0, 1."""
    assert ms_poe_ranks([0.1, 0.3, 0.2]) == [2, 0, 1]
    ratios = ms_poe_ratios(range(32))
    assert [ratios[0], ratios[-1]] == pytest.approx([1.2, 1.78125])
    assert ms_poe_ratios([2, 0, 1]) == pytest.approx([1.6, 1.2, 1.4])


def test_shares_of_ms_poe_by_hand():
    """Of four keys one weighs e^3 and three 1: 20.1 > 3 * 5.8; with equal keys none does."""
    queries = torch.tensor([[[9.0, 9, 9, 9], [6, 0, 0, 0]], [[9, 9, 9, 9], [0, 6, 0, 0]]])
    keys = torch.zeros(1, 4, 4)
    keys[0, 2, 0] = 1
    assert ms_poe_shares(queries, keys) == [0.25, 0]


def test_infoscale_by_hand():
    """(1 - 16384^(-1/64)) / (1 - 8192^(-1/64)) = 0.140692 / 0.131341, its root 1.0350."""
    assert infoscale(16_384, 128, 8192) == pytest.approx(1.0350, abs=5e-5)
    assert infoscale(131_072, 128, 8192) == pytest.approx(1.1316, abs=5e-5)
    assert math.log(131_072) / math.log(8192) == pytest.approx(1.3077, abs=5e-5)
    assert infoscale(8192, 128, 8192) == 1
    assert infoscale(1, 128, 8192) == 0
    assert infoscale(100, 128, 8192) < 1


@pytest.mark.parametrize(
    ("n", "relative"),
    # P = 19 % 8 = 3, the edge is 16: three keys at their own positions, the rest by stairs of 4.
    [(19, 0), (17, 2), (16, 3), (13, 3), (12, 4), (9, 4), (8, 5), (0, 7)],
)
def test_stairs_of_mesa_by_hand(n, relative):
    """Of 20 tokens with chunks of 8, as the last query sees them."""
    assert mesa(19, n, 20, 8, 2, 4) == relative
    assert mesa(19, n, 20, 8, 2, 4, trained=20) == 19 - n


def test_chunks_of_mesa_by_hand():
    """20 tokens, the first chunk 2, others 6: 0-1, 2-7, 8-13, and the last 14-19."""
    assert mesa_last_chunk(20, 6, 2) == 14
    assert mesa_last_chunk(21, 6, 2) == 20
    seen = partial(mesa, length=20, chunk=6, first=2, window=4)
    assert [seen(1, n) for n in range(2)] == [1, 0]
    assert [seen(7, n) for n in range(8)] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [seen(9, n) for n in range(10)] == [3, 2, *[None] * 6, 1, 0]
    # P = 19 % 6 = 1, the edge is 18. Query 14 is itself on a stair: 18 - 4 // 4 = 17.
    assert [seen(14, n) for n in range(15)] == [17 - (18 - (18 - n) // 4) for n in range(15)]
    assert (seen(14, 0), seen(14, 10), seen(14, 11), seen(14, 14)) == (3, 1, 0, 0)


def test_mesas_other_numbers_by_hand():
    """Log-n counts the keys in the cache; the width of a chunk follows the prompt's length."""
    assert mesa_log_n(19, 20, 6, 2, 10) == pytest.approx(math.log(20) / math.log(10))
    assert mesa_log_n(13, 20, 6, 2, 10) == 1  # 2 + 6 keys
    # 3000 + 50 - 612 = 2438 = 1848 + 590: two chunks of 1219; 4308 - 562 = 3746 = 2 * 1848 + 50
    assert mesa_chunk(3000, 2048) == 1219
    assert mesa_chunk(4308, 2048) == 1848


def test_groups_of_self_by_hand():
    """33 / (1 + 32 e^(-0.02 x)) reaches 2 at x = 36.3 and 3 at 58.1: 37 groups of 1, 22 of 2."""
    assert [self_group_size(x, 0.02, 33) for x in (0, 36, 37, 58, 59)] == [1, 1, 2, 2, 3]
    groups = self_groups(100, 0.02, 33)
    # 37 tokens in groups 0-36, then pairs: token 50 is the 13th after them, in group 36 + 7
    assert (groups[1], groups[37], groups[38], groups[39], groups[50]) == (0, 36, 37, 37, 43)
    # 37 + 44 = 81 tokens in groups 0-58; token 100 is the 19th after them, in group 58 + 7
    assert (groups[81], groups[82], groups[100]) == (58, 59, 65)
    assert self_logistic(1124, 50, 1024, 0.02, 33) == 1024 + 65 - 43 == 1046
    assert self_logistic(1073, 50, 1024, 0.02, 33) == 1023
    assert self_logistic(1074, 50, 1024, 0.02, 33) == 1024


@pytest.mark.parametrize("capacity", [4, 8, 33])
def test_sizes_of_self_are_the_codes(capacity):
    """The code inverts the function: sizes s from ceil(inverse(s)) to below inverse(s + 1)."""

    def inverse(size: int) -> float:
        return (math.log(size * (capacity - 1)) - math.log(capacity - size)) / 0.02

    for size in range(1, capacity - 1):
        for group in range(math.ceil(inverse(size)), math.ceil(inverse(size + 1))):
            assert self_group_size(group, 0.02, capacity) == size
    # Beyond, also where a float64 rounds the function up to its capacity.
    assert self_group_size(10_000, 0.02, capacity) == capacity - 1
