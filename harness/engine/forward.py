"""Run a model's trunk over packs of token runs, or over one plain sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from harness.engine import lm_head
from harness.engine.gather import ResultCollector
from harness.engine.memory import Shape, of_a_row
from harness.engine.packed_attention import (
    PLAIN,
    KVCache,
    NotShareableError,
    installed,
    kernel_of,
)
from harness.engine.prefix_tree import NodePath, PrefixTree, build_tree, packs
from harness.engine.sdpa import Causal
from harness.engine.sizes import ROWS, Sizes
from harness.engine.trunk import run_pack, trunk_name

PROMPT = 48  # tokens of the longest prompt of the check
EXACT, COARSE = 1e-4, 5e-2  # mean difference that rounding may make, in float32 and in 16 bits
Results = list[tuple[int, NDArray[np.float32], NDArray[np.int64]]]


_known: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()


@torch.inference_mode()
def shareable(model: Any) -> bool:
    """Return whether a pack of runs gives this model's own hidden states; checked once per model.

    It is checked on two prompts with a common beginning and one without, each also run alone by
    the model itself: this shows anything that mixes tokens outside causal attention. Both are at
    plain attention: another, such as that of moved positions, may be for fewer tokens.
    """
    name = model.config._attn_implementation
    if kernel_of(model) is None:
        return False
    known = _known.setdefault(model, {})
    if name not in known:
        with installed(model, PLAIN):
            known[name] = _shares(model)
    return known[name]


def _shares(model: Any) -> bool:
    size = model.config.get_text_config().vocab_size
    text = [(17 * i * i + 3 * i) % size for i in range(84)]
    prompts = tuple(text[:PROMPT]), (*text[:33], *text[40:55]), tuple(text[55:])
    trunk = getattr(model, trunk_name(model))
    alone = [trunk(input_ids=_row(t, model), use_cache=False)[0][0] for t in prompts]
    tree = build_tree(prompts)
    (pack,) = packs(tree, 2**20)
    every = np.ones(sum(len(node.tokens) for node in tree.nodes), np.bool_)
    try:
        hidden, spans, _ = _packed(model, tree, pack, every, Sizes(chunk=ROWS), {}, frozenset())
    except NotShareableError:
        return False
    except (TypeError, AttributeError) as error:  # layers that read a mask, which is None here
        if "'NoneType' object" not in str(error):
            raise
        return False
    bound = EXACT if model.dtype == torch.float32 else COARSE
    for path, wanted in zip(tree.paths, alone, strict=True):
        found = torch.cat([hidden[0, slice(*spans[node])] for node in path]).float()
        unlike = (found - wanted.float()).abs().mean() / wanted.float().std()
        if not float(unlike) < bound:
            return False
    return True


def _row(tokens: Sequence[int], model: Any) -> torch.Tensor:
    return torch.tensor([list(tokens)], device=model.device)


@dataclass
class Forward:
    """The forwards of one prefix tree, pack by pack, and the keys stored between them.

    ``texts`` are the paths of questions that ask for a text: it needs the keys of its prompt after
    the pack that completes this.
    """

    model: Any
    tree: PrefixTree
    sizes: Sizes
    sharing: bool
    texts: Sequence[NodePath] = ()

    def __post_init__(self) -> None:
        """Cut the tree into packs, and record when each node's keys are read for the last time.

        That is 2 n where pack n reads them, 2 n + 1 where the texts after it do.
        """
        self.packs = packs(self.tree, self.sizes.pack)
        self.held: KVCache = {}
        place = {node: number for number, pack in enumerate(self.packs) for node in pack}
        self.last: dict[int, int] = {}
        for node, number in place.items():
            for above in (*self.tree.nodes[node].above, node):
                self.last[above] = 2 * number
        for path in self.texts:
            for node in path:
                self.last[node] = max(self.last[node], 2 * place[path[-1]] + 1)

    def free(self, read: int) -> None:
        """Drop the keys that nothing needs after a read."""
        self.held = {key: pair for key, pair in self.held.items() if self.last[key[0]] > read}

    def measure(self, number: int, gather: ResultCollector) -> Results:
        """Return loss and argmax of every requested row of a pack's nodes."""
        pack = self.packs[number]
        asked = [gather.wanted(node) for node in pack]
        starts = np.cumsum([0, *(len(self.tree.nodes[node].tokens) for node in pack)])
        rows = np.concatenate([r + s for (r, _), s in zip(asked, starts, strict=False)])
        targets = np.concatenate([t for _, t in asked])
        chunk = self.sizes.head_rows(self.model.config.get_text_config().vocab_size)
        hidden = self.hidden(number, rows)
        nll, argmax = lm_head.read(self.model, hidden, rows, targets, chunk)
        ends = np.cumsum([len(r) for r, _ in asked])[:-1]
        return list(zip(pack, np.split(nll, ends), np.split(argmax, ends), strict=True))

    def hidden(self, number: int, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return the hidden states of a pack, (1, rows, width); only needed rows are valid."""
        pack, nodes = self.packs[number], self.tree.nodes
        if not self.sharing:
            (node,) = pack
            trunk = getattr(self.model, trunk_name(self.model))
            tokens = _row(nodes[node].tokens, self.model)
            whole: torch.Tensor = trunk(input_ids=tokens, use_cache=False)[0]
            return whole
        keep = frozenset(node for node in pack if self.last[node] > 2 * number)
        needed = np.zeros(sum(len(nodes[node].tokens) for node in pack), np.bool_)
        needed[rows] = True
        hidden, _, kept = _packed(self.model, self.tree, pack, needed, self.sizes, self.held, keep)
        self.held |= kept
        self.free(2 * number)
        return hidden


def _packed(
    model: Any,
    tree: PrefixTree,
    pack: NodePath,
    needed: NDArray[np.bool_],
    sizes: Sizes,
    above: KVCache,
    keep: frozenset[int],
) -> tuple[torch.Tensor, dict[int, tuple[int, int]], KVCache]:
    """Return a pack's hidden states, the rows of each node, and the keys and values to store."""
    kernel = kernel_of(model, max(tree.nodes[node].end for node in pack))
    each = of_a_row(Shape.of(model.config.get_text_config(), model.dtype.itemsize))
    chunk = sizes.layer_rows(each, causal=isinstance(kernel, Causal))
    with installed(model):
        hidden, run = run_pack(
            model, tree, pack, needed, chunk, kernel=kernel, above=above, keep=keep
        )
    return hidden, run.spans, run.kept
