"""Continue several texts together, a token of each at a time, from keys that a pack computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from harness.engine import lm_head
from harness.engine.generate import Generation
from harness.engine.packed_attention import KVCache, Pair, installed, kernel_of, running
from harness.engine.prefix_tree import Node
from harness.engine.sdpa import Kernel, blocked, room
from harness.engine.sizes import ROWS, Sizes
from harness.engine.trunk import trunk_name
from tasks.types import Generate, ModelResponse

PROBED = 8  # texts of the check whether texts may be continued together
_known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@dataclass
class Text:
    """A draft, the runs of its prompt in the order of the positions, and keys by layer.

    ``made`` is by layer what the kernel keeps of them.
    """

    draft: Generation
    path: Sequence[tuple[int, Node]] = ()
    keys: dict[int, Pair] = field(default_factory=dict)
    made: dict[int, dict[Any, Any]] = field(default_factory=dict)


@dataclass
class Step:
    """One forward of the newest token of every text; ``held`` has the keys of the prompts."""

    texts: Sequence[Text]
    held: KVCache
    kernel: Kernel

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention of every text's row over its own keys, which this row joins."""
        parts, layer = [], module.layer_idx
        for row, text in enumerate(self.texts):
            place = text.draft.position
            if layer not in text.keys:
                text.keys[layer] = _joined(text, layer, (key, value), self.held)
            pair = text.keys[layer]
            for whole, new in zip(pair, (key, value), strict=True):
                whole[:, :, place] = new[:, :, row]
            seen = room(place + 1, query.device)
            before, values = (whole[:, :, :seen] for whole in pair)
            asked = query[:, :, row : row + 1]
            made = text.made.setdefault(layer, {})
            found = self.kernel(module, asked, before, values, place, scale, made)
            parts.append(found.transpose(1, 2))
        odd = query.shape[2] - len(parts)
        if odd:
            parts.append(query.new_zeros((1, odd, query.shape[1], query.shape[3])))
        return torch.cat(parts, 1)


def _joined(text: Text, layer: int, like: Pair, held: KVCache) -> Pair:
    """Return room for the keys and values of a whole text, with those of its prompt."""
    question = text.draft.question
    rows, read = room(question.length, like[0].device), len(question.tokens) - 1
    pair = []
    for part, new in enumerate(like):
        whole = new.new_zeros((1, new.shape[1], rows, new.shape[3]))
        for index, node in text.path:
            count = min(node.end, read) - node.first
            if count > 0:
                whole[:, :, node.first : node.first + count] = held[index, layer][part][
                    :, :, :count
                ]
        pair.append(whole)
    return pair[0], pair[1]


def write(model: Any, texts: Sequence[Text], held: KVCache, sizes: Sizes) -> list[ModelResponse]:
    """Continue texts until all are done, with the bits of each alone in float32 on a CPU."""
    left = [text for text in texts if not text.draft.done]
    kernel = kernel_of(model, max(text.draft.question.length for text in texts))
    assert kernel is not None  # texts of other models are not written here
    with installed(model):
        while left:
            _step(model, Step(left, held, kernel), sizes)
            left = [text for text in left if not text.draft.done]
    return [text.draft.answer() for text in texts]


def _step(model: Any, step: Step, sizes: Sizes) -> None:
    """Add a token to every text."""
    drafts = [text.draft for text in step.texts]
    tokens = [draft.newest for draft in drafts]
    positions = [draft.position for draft in drafts]
    if blocked(model.device):
        odd = -len(tokens) % ROWS
        tokens, positions = tokens + tokens[:1] * odd, positions + [0] * odd
    inputs, places = (torch.tensor([row], device=model.device) for row in (tokens, positions))
    with running(step):
        hidden = getattr(model, trunk_name(model))(
            input_ids=inputs, position_ids=places, use_cache=False
        )[0]
    rows, likeliest = np.arange(len(drafts)), np.full(len(drafts), lm_head.LIKELIEST)
    chunk = sizes.head_rows(model.config.get_text_config().vocab_size)

    def penalize(first: int, logits: torch.Tensor) -> None:
        for draft, scores in zip(drafts[first:], logits, strict=False):
            draft.penalize(scores)

    losses, best = lm_head.read(model, hidden, rows, likeliest, chunk, penalize)
    for draft, token, loss in zip(drafts, best.tolist(), losses.tolist(), strict=True):
        draft.add(token, loss)


def together(model: Any, texts: Mapping[int, Text], most: int) -> Iterator[list[int]]:
    """Yield which texts are continued together, of ``most`` tokens in all, a longer one alone.

    A model whose rows are not computed apart, such as a mixture of experts, or on a GPU, has one at
    a time: another count of rows has other bits, and might have other tokens.
    """
    if len(texts) > 1 and not (blocked(model.device) and _apart(model)):
        most = 0
    group: list[int] = []
    tokens = 0
    for place, text in texts.items():
        length = text.draft.question.length
        if group and tokens + length > most:
            yield group
            group, tokens = [], 0
        group.append(place)
        tokens += length
    if group:
        yield group


def _apart(model: Any) -> bool:
    """Return whether texts have the same bits together and alone; checked once per model."""
    if model not in _known:
        size = model.config.get_text_config().vocab_size
        one, other = ([Text(_probe(n % size)) for n in range(1, PROBED + 1)] for _ in range(2))
        apart = [write(model, [text], {}, Sizes())[0] for text in other]
        _known[model] = write(model, one, {}, Sizes()) == apart
    return _known[model]


def _probe(token: int) -> Generation:
    question = Generate((token,), 4, doc_id="probe")
    return Generation(question, lambda _: "", frozenset())
