"""The naive methods against numbers worked by hand."""

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
    qwen_dual_chunk,
    qwen_heat,
    self_group_size,
    self_groups,
    self_logistic,
)

MAPPED = partial(lampe, length=24, mapped=8, head=4, tail=3)
MESA = partial(mesa, length=20, chunk=6, first=2, window=4)
GROUPS = self_groups(100, 0.02, 33)


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        # Qwen's dual chunks of 16 - 4 = 12 tokens: the same chunk 6 - 1, the previous one
        # min(6 + 12, 16) - 8, an earlier one min(23, 16) - 2.
        ([qwen_dual_chunk(30, n, 16, 4) for n in (25, 20, 2)], [5, 8, 14]),
        # dpe, 20 // 4 - 3 // 4 + 8 - 8 / 4; 65000 - 5 + 512; below the window the distance
        (dpe(20, 3, 8, [4]), (11,)),
        (dpe(130_000, 10, 1024, [1, 2]), (129_990, 65_507)),
        (dpe(1033, 10, 1024, [32]), (1023,)),
        # pairs 1 and 2 of groups (2, 4), two pairs each: the others keep the distance 17
        (dpe_top_k(20, 3, 8, [2, 4], 4, {1, 2}), [17, 13, 11, 17]),
        # the sigmoids of LaMPE's authors, rounded down; short prompts have 1536
        ([lampe_mapped_length(n, "llama3") for n in (8191, 16_384, 131_072)], [1536, 1993, 6204]),
        (lampe_mapped_length(8192, "mistral"), 4104),
        (lampe_mapped_length(4096, "llama3.1"), 5672),
        # 24 tokens mapped to 8, f(p) = 8 p // 23: the distance; f(m) + 2 - f(n); the distance - 10
        ([MAPPED(*pair) for pair in ((23, 20), (18, 0), (23, 5), (23, 0))], [3, 8, 9, 13]),
        # GALI, a window of 8 and 12 tokens: G = 12 / 8, up: 2; r: 8 - r + 2 r >= 12, r = 4
        (gali_ids(12, 8, 0), [Fraction(j, 2) for j in range(9)] + [5, 6, 7]),
        # a local window of 6: (12 - 6) / 2 = 3, r = 2
        (gali_ids(12, 8, 6), [Fraction(j, 3) for j in range(6)] + [2, 3, 4, 5, 6, 7]),
        # the last token is at 7, the second at 1/2: 6.5 is half of each neighbour
        (gali(11, 1, 12, 8, 0, 3000), (6, 7, Fraction(1, 2))),
        # chunks of 3 after the window of 8 end at 11, 14, 16; then tokens come one by one
        ([gali_end(m, 16, 8, 3) for m in (7, 8, 11, 14, 16, 20)], [8, 11, 14, 16, 17, 21]),
        (ms_poe_ranks([0.1, 0.3, 0.2]), [2, 0, 1]),
        # P = 19 % 8 = 3, the edge is 16: three keys at their own positions, the rest by stairs of 4
        ([mesa(19, n, 20, 8, 2, 4) for n in (19, 17, 16, 13, 12, 8, 0)], [0, 2, 3, 3, 4, 5, 7]),
        # 20 tokens, the first chunk 2, others 6: 0-1, 2-7, 8-13, and the last 14-19
        ((mesa_last_chunk(20, 6, 2), mesa_last_chunk(21, 6, 2)), (14, 20)),
        ([MESA(9, n) for n in range(10)], [3, 2, *[None] * 6, 1, 0]),
        ([MESA(14, n) for n in (0, 10, 11, 14)], [3, 1, 0, 0]),
        # 3000 + 50 - 612 = 2438 = 1848 + 590: two chunks of 1219
        (mesa_chunk(3000, 2048), 1219),
        # SELF: 33 / (1 + 32 e^(-0.02 x)) reaches 2 at x = 36.3 and 3 at 58.1
        ([self_group_size(x, 0.02, 33) for x in (36, 37, 58, 59)], [1, 2, 2, 3]),
        # 37 tokens in groups 0-36, 44 in 37-58, then threes
        ([GROUPS[at] for at in (37, 38, 39, 50, 81, 82, 100)], [36, 37, 37, 43, 58, 59, 65]),
        (self_logistic(1124, 50, 1024, 0.02, 33), 1024 + 65 - 43),
    ],
)
def test_a_naive_method_by_hand(found, by_hand):
    assert found == by_hand


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        # four windows: s = 0.1 ln 4 + 1 = 1.138629, squared
        (qwen_heat(1_048_576, 262_144), 1.296477),
        (qwen_heat(1000, 262_144), 1),
        (lampe_heat(), 1.143434),
        (ms_poe_ratios([2, 0, 1]), [1.6, 1.2, 1.4]),
        # (1 - 16384^(-1/64)) / (1 - 8192^(-1/64)) = 0.140692 / 0.131341, and its root
        (infoscale(16_384, 128, 8192), 1.0350),
        (mesa_log_n(19, 20, 6, 2, 10), math.log(20) / math.log(10)),
    ],
)
def test_a_naive_scale_by_hand(found, by_hand):
    assert found == pytest.approx(by_hand, abs=5e-5)


def test_what_ranks_heads_by_hand():
    """Products of norms 5 and 0; 0 and 6; 2 and 2. One key weighs e^3 of four: 20.1 > 3 * 5.8."""
    queries = torch.tensor([[3.0, 0, 1, 4, 0, 0], [0, 3, 1, 0, 0, 0]])
    keys = torch.tensor([[1.0, 9, 2, 0, 9, 0], [9, 2, 0, 9, 0, 2]])
    assert dpe_key_pairs(queries, keys, 2) == {0, 1}
    queries = torch.tensor([[[9.0, 9, 9, 9], [6, 0, 0, 0]], [[9, 9, 9, 9], [0, 6, 0, 0]]])
    keys = torch.zeros(1, 4, 4)
    keys[0, 2, 0] = 1
    assert ms_poe_shares(queries, keys) == [0.25, 0]
