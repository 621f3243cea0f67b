"""Published methods one query and one key at a time, in plain Python and float64.

A position function takes a query m and a key n and returns their relative position, or None where
the query does not see the key. Only pairs with n <= m are asked for. Nothing here is shared with
``scaling`` or ``harness``, and everything is as slow and as literal as its source, so that the two
can be compared. Where paper and released code differ, the docstring says which one this is.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import torch

Number = float | Fraction


def channel_pairs(x: torch.Tensor) -> list[list[complex]]:
    """Return the channels i and i + width/2 of vectors (tokens, width) as complex numbers."""
    real, imaginary = x.double().chunk(2, -1)
    return torch.complex(real, imaginary).tolist()


def per_pair(groups: Sequence[Number], pairs: int) -> list[Number]:
    """Repeat one value per channel group for each pair of equally large groups."""
    size = pairs // len(groups)
    assert size * len(groups) == pairs
    return [value for value in groups for _ in range(size)]


# --- Dual chunk attention, as Qwen serves it ------------------------------------------------------


def qwen_dual_chunk(m: int, n: int, chunk_size: int, local_size: int) -> int:
    """Return DCA's relative position as served for Qwen2.5-1M (arXiv:2501.15383).

    vLLM, ``rotary_embedding/dual_chunk_rope.py`` (the caches of q, qc and k). It differs from the
    DCA paper: positions count up to chunk_size itself, and earlier chunks all lie at one position.
    """
    c = chunk_size - local_size
    if m // c == n // c:
        return m % c - n % c
    if m // c == n // c + 1:
        return min(m % c + c, chunk_size) - n % c
    return min(2 * c - 1, chunk_size) - n % c


def qwen_heat(length: int, trained: int) -> float:
    """Return the factor of the logits, s squared, for a whole prompt of ``length`` tokens.

    vLLM, ``backends/dual_chunk_flash_attn.py``: s multiplies the keys and again the softmax scale
    (in decoding, the queries). Without a trained length (0) there is none.
    """
    if trained == 0:
        return 1.0
    return max(1.0, 0.1 * math.log(length / trained) + 1) ** 2


# --- DPE ------------------------------------------------------------------------------------------


def dpe(m: int, n: int, window: int, groups: Sequence[int]) -> tuple[float, ...]:
    """Return DPE's relative position of every channel group (arXiv:2504.18857).

    LuLuLuyi/DPE, ``dpe_for_llama.py``, the prefill: window / group is not floored there. Decoding
    floors it, which is the same for groups that divide the window.
    """
    if m - n < window:
        return (float(m - n),) * len(groups)
    return tuple(m // g - n // g + window - window / g for g in groups)


def dpe_key_pairs(queries: torch.Tensor, keys: torch.Tensor, k: int) -> set[int]:
    """Return the k channel pairs of a head with the largest mean of |query pair| |key pair|.

    LuLuLuyi/DPE, ``dimension_selection/qk_2_norm_select_dim.py``: the norms are those of the query
    and the key of the same token. Both arguments are (tokens, width) of one layer and query head.
    """
    both = zip(channel_pairs(queries), channel_pairs(keys), strict=True)
    tokens = [[abs(a) * abs(b) for a, b in zip(q, key, strict=True)] for q, key in both]
    means = [sum(column) / len(tokens) for column in zip(*tokens, strict=True)]
    return set(sorted(range(len(means)), key=lambda pair: -means[pair])[:k])


def dpe_top_k(
    m: int, n: int, window: int, groups: Sequence[int], pairs: int, moving: set[int]
) -> list[Number]:
    """Return DPE's relative position of every channel pair of a head where only some pairs move.

    LuLuLuyi/DPE, ``dpe_for_llama.py`` with ``select_topk_dim``: the others keep m - n.
    """
    group = per_pair(dpe(m, n, window, groups), pairs)
    return [group[pair] if pair in moving else m - n for pair in range(pairs)]


# --- LaMPE ----------------------------------------------------------------------------------------

LAMPE_SIGMOIDS = {  # scar-on/LaMPE, llama_cache1.py, remap_uselen: slope, offset, ceiling
    "llama2": (8.673006440952035e-05, -0.648012322406978, 2489.1055552214357),
    "llama3": (0.00010493097327094324, -2.466638011138158, 6204.409324666837),
    "mistral": (0.00010493097327094324, -2.466638011138158, 24576),
    "llama3.1": (4.505261149632588e-05, -2.788576860718702, 82358.52413056031),
}


def lampe_mapped_length(length: int, model: str) -> int:
    """Return the largest position U that LaMPE maps a prompt's tokens to (arXiv:2508.02308).

    scar-on/LaMPE, ``llama_cache1.py``, ``remap_uselen``. For short prompts U may exceed the length.
    """
    if length < 8192 and model != "llama3.1":
        return 1536
    a, b, ceiling = LAMPE_SIGMOIDS[model]
    return int(ceiling / (1 + math.exp(-(a * length + b))))


def lampe(m: int, n: int, length: int, mapped: int, head: int = 512, tail: int = 200) -> int:
    """Return LaMPE's relative position in a prompt of ``length`` tokens (arXiv:2508.02308).

    scar-on/LaMPE, ``llama_cache1.py``, ``forward``, with bands as decoding splits them. The
    prefill of the code counts distances ``head`` and ``length - last`` twice, once in each band,
    and computes the floor in float32, which is one lower at a few positions.
    """
    if length < 2 * head or m - n < head:
        return m - n

    def f(p: int) -> int:
        return mapped * p // (length - 1)

    last = tail  # the last token that shares the mapped position of token ``tail``
    while last + 1 < length and f(last + 1) == f(tail):
        last += 1
    near = head - 1 - f(head)
    corner = length - 1 - last
    far = corner - f(corner) - near
    if m - n > corner:
        return m - n - far
    return f(m) + near - f(n)


def lampe_heat() -> float:
    """Return the factor of all logits: both cos and sin are multiplied by 0.1 ln 2 + 1."""
    return (0.1 * math.log(2) + 1) ** 2


# --- GALI -----------------------------------------------------------------------------------------


def gali_end(m: int, prompt: int, trained: int, chunk: int) -> int:
    """Return the number of tokens that are there when query m is computed (arXiv:2502.02659).

    adlnlp/Gali, ``models/DPI/help_funcs.py``, ``get_chunk_size_list``: the first ``trained``
    tokens, then ``chunk`` each up to the end of the prompt, then one per generated token.
    """
    if m >= max(prompt, trained):
        return m + 1
    end = trained
    while end <= m:
        end += chunk
    return min(end, max(prompt, trained))


@cache
def gali_ids(end: int, trained: int, window: int) -> list[Fraction]:
    """Return the position of every one of ``end`` tokens, whole numbers and fractions of G.

    adlnlp/Gali, ``models/DPI/help_funcs.py``, ``construct_new_pi`` with start_pos 0.
    """
    if end <= trained:
        return [Fraction(i) for i in range(end)]
    group = math.ceil(Fraction(end - window, trained - window))
    replaced = 0
    while trained - replaced + group * replaced < end:
        replaced += 1
    fine = end - (trained - replaced)
    return [Fraction(j, group) for j in range(fine)] + [
        Fraction(i) for i in range(replaced, trained)
    ]


def gali(
    m: int, n: int, prompt: int, trained: int, window: int, chunk: int
) -> tuple[int, int, Number]:
    """Return GALI's relative position, floored and as a ceiling, and phi, the share of the latter.

    adlnlp/Gali, ``models/DPI/patches/Llama.py``, ``attention_score_approximate``, in exact
    arithmetic and without noise. The query is rounded up. The code computes phi in the dtype of
    the logits, so that in bfloat16 it is lost beyond position 128.
    """
    ids = gali_ids(gali_end(m, prompt, trained, chunk), trained, window)
    distance = math.ceil(ids[m]) - ids[n]
    below = math.floor(distance)
    return below, math.ceil(distance), distance - below


# --- Ms-PoE ---------------------------------------------------------------------------------------


def ms_poe_shares(queries: torch.Tensor, keys: torch.Tensor) -> list[float]:
    """Return, per query head, the share of keys that the last query weighs above 3x the mean.

    VITA-Group/Ms-PoE, ``utils/modify_arch/llama.py``, ``_head_wise_statistics``: from unrotated
    queries (query heads, tokens, width) and keys (key heads, tokens, width).
    """
    shares = []
    for head, query in enumerate(queries[:, -1].double()):
        key = keys[head * len(keys) // len(queries)].double()
        weights = [math.exp(logit) for logit in (key @ query * len(query) ** -0.5).tolist()]
        mean = sum(weights) / len(weights)
        shares.append(sum(weight > 3 * mean for weight in weights) / len(weights))
    return shares


def ms_poe_ranks(shares: Sequence[float]) -> list[int]:
    """Return the rank of every head, 0 for the largest share (arXiv:2403.04797).

    The code gives head i the index of the head of rank i, which is the inverse permutation. Heads
    of equal shares are ranked in their order; torch's argsort leaves that open.
    """
    order = sorted(range(len(shares)), key=lambda head: -shares[head])
    return [order.index(head) for head in range(len(shares))]


def ms_poe_ratios(ranks: Sequence[int], low: float = 1.2, high: float = 1.8) -> list[float]:
    """Return the compression ratio of every head. The high one itself is never reached."""
    return [low + (high - low) * rank / len(ranks) for rank in ranks]


# --- InfoScale ------------------------------------------------------------------------------------


def infoscale(k: int, head_dim: int, trained: int) -> float:
    """Return the factor of the logits of a query with k visible keys (arXiv:2501.08570).

    HT-NEKO/Information-Entropy-Invariance, ``model/my_gau_alpha_eval/layer.py``: not clamped, so
    below 1 for k < trained. The T5 of the same authors clamps it at 1.
    """
    return math.sqrt((1 - k ** (-2 / head_dim)) / (1 - trained ** (-2 / head_dim)))


# --- Mesa-Extrapolation ---------------------------------------------------------------------------


def mesa_last_chunk(length: int, chunk: int, first: int) -> int:
    """Return where the last chunk of a prompt begins."""
    begin = first
    while begin + chunk < length:
        begin += chunk
    return begin


def mesa(
    m: int, n: int, length: int, chunk: int, first: int, window: int, trained: int = 0
) -> int | None:
    """Return Mesa-Extrapolation's relative position, or None (arXiv:2410.15859).

    soacker/Mesa-Extrapolation, ``methods/mesa_extrapolation.py``, ``chunk_forward`` and
    ``flash_attention_chunk_forward``: a middle chunk sees itself and the first, as if adjacent; the
    last sees all keys, by stairs of ``window`` tokens if the prompt is longer than ``trained``.
    """
    if m < first:
        return m - n
    if m < mesa_last_chunk(length, chunk, first):
        begin = first + (m - first) // chunk * chunk
        if n >= begin:
            return m - n
        return first + m - begin - n if n < first else None
    if length <= trained:
        return m - n
    edge = length - (length - 1) % chunk - 1

    def stair(i: int) -> int:
        return i if i > edge else edge - (edge - i) // window

    return stair(m) - stair(n)


def mesa_log_n(m: int, length: int, chunk: int, first: int, trained: int) -> float:
    """Return the factor of the logits of a query: log-n, of the keys in the cache up to it."""
    keys = m + 1
    if first <= m < mesa_last_chunk(length, chunk, first):
        keys = first + (m - first) % chunk + 1
    return max(1.0, math.log(keys) / math.log(trained))


def mesa_chunk(
    length: int, trained: int, last_context: int = 512, first: int = 100, new: int = 50
) -> int:
    """Return the width of the chunks by the authors' rule, ``PositionSet.set_align_position``.

    For prompts longer than the window, and for no more than ``new`` generated tokens.
    """
    rest, widest = length + new - last_context - first, trained - 2 * first
    if rest % widest < 200:
        return widest
    return rest // (rest // widest + 1)


# --- SELF -----------------------------------------------------------------------------------------


def self_group_size(group: int, rate: float, capacity: int) -> int:
    """Return how many tokens SELF's group has, counted from 0 (arXiv:2505.17296).

    alexeipc/SELF-LLM, ``attn_method/logistic.cu``. The logistic function stays below the capacity,
    and so does the code; a float64 reaches it and would give groups of one token more.
    """
    grown = capacity / (1 + (capacity - 1) * math.exp(-rate * group))
    return min(math.floor(grown), capacity - 1)


@cache
def self_groups(tokens: int, rate: float, capacity: int) -> list[int]:
    """Return the group of the i-th token, i from 1 to ``tokens``; entry 0 is 0."""
    groups, group = [0], 0
    while len(groups) <= tokens:
        groups += [group] * self_group_size(group, rate, capacity)
        group += 1
    return groups[: tokens + 1]


def self_logistic(m: int, n: int, window: int, rate: float, capacity: int) -> int:
    """Return SELF's relative position (arXiv:2505.17296).

    alexeipc/SELF-LLM, ``self_extend_patch/Llama.py``, the prefill. Its Mistral and Qwen2 files
    drop the window's offset, and decoding reverses the far keys.
    """
    if m - n < window:
        return m - n
    groups = self_groups(1 << m.bit_length(), rate, capacity)
    return window + groups[m - window] - groups[n]
