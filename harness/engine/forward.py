"""Run a model over packs of token runs, or over one plain sequence, and collect its losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.loss import target_losses
from ropewalk.harness.engine.memory import ROWS, Shape, Sizes, layer
from ropewalk.harness.engine.packed_attention import PLAIN, KVCache, kernel_of
from ropewalk.harness.engine.prefix_tree import NodePath, PrefixTree, build_tree, last_reads, packs
from ropewalk.harness.engine.structure import NotShareableError, implementation, language_model
from ropewalk.harness.engine.trunk import run_pack
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import Generate, LoglikelihoodResponse, ModelRequest

PROMPT = 48  # tokens of the longest prompt of the check
EXACT, COARSE = 1e-4, 5e-2  # mean difference that rounding may make, in float32 and in 16 bits
NOBODY = 0  # target of a row that needs the argmax only
_known: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()


@torch.inference_mode()
def shareable(model: Any) -> bool:
    """Return whether a pack of runs gives this model's own hidden states; checked once per model.

    It is checked on two prompts with a common beginning and one without, each also run alone by
    the model itself: this shows anything that mixes tokens outside causal attention. Both are at
    plain attention: another, such as that of moved positions, may be for fewer tokens.
    """
    name = language_model(model).config._attn_implementation
    if kernel_of(model) is None:
        return False
    known = _known.setdefault(model, {})
    if name not in known:
        with implementation(model, PLAIN):
            known[name] = _shares(model)
    return known[name]


def _shares(model: Any) -> bool:
    size = model.config.get_text_config().vocab_size
    text = [(17 * i * i + 3 * i) % size for i in range(84)]
    prompts = tuple(text[:PROMPT]), (*text[:33], *text[40:55]), tuple(text[55:])
    trunk = language_model(model)
    alone = [trunk(input_ids=_row(t, model), use_cache=False)[0][0] for t in prompts]
    tree = build_tree(prompts)
    spans = tree.spans(tuple(range(len(tree.nodes))))
    try:
        forward = Forward(model, tree, Sizes(chunk=ROWS), sharing=True)  # of one pack
        hidden = forward.hidden(0, np.arange(tree.rows((*spans,))))[0]
    except torch.OutOfMemoryError:
        raise
    except (NotShareableError, TypeError, AttributeError, RuntimeError):
        return False  # its code does not take a pack, as where it reads a mask, which is None here
    bound = EXACT if model.dtype == torch.float32 else COARSE
    for path, wanted in zip(tree.paths, alone, strict=True):
        packed = torch.cat([hidden[slice(*spans[node])] for node in path]).float()
        unlike = (packed - wanted.float()).abs().mean() / wanted.float().std()
        if not float(unlike) < bound:
            return False
    return True


def _row(tokens: Sequence[int], model: Any) -> Tensor:
    return torch.tensor([list(tokens)], device=model.device)


@dataclass
class Forward:
    """The forwards of one prefix tree, pack by pack, and the keys stored between them.

    ``texts`` are the paths of the prompts of texts, whose keys are needed after the pack that
    completes the prompt.
    """

    model: Any
    tree: PrefixTree
    sizes: Sizes
    sharing: bool
    texts: Sequence[NodePath] = ()

    def __post_init__(self) -> None:
        """Cut the tree into packs, and find when each node's keys are read for the last time."""
        self.packs = packs(self.tree, self.sizes.pack)
        self.held: KVCache = {}
        self.last = last_reads(self.tree, self.packs, self.texts)

    def free(self, read: int) -> None:
        """Drop the keys that nothing needs after a read."""
        self.held = {key: pair for key, pair in self.held.items() if self.last[key[0]] > read}

    def measure(self, number: int, collector: ResultCollector) -> list[int]:
        """Collect loss and argmax of every requested row of a pack; return complete requests."""
        pack = self.packs[number]
        wanted = [collector.wanted(node) for node in pack]
        spans = self.tree.spans(pack).values()
        rows = np.concatenate([r + start for (r, _), (start, _) in zip(wanted, spans, strict=True)])
        targets = np.concatenate([t for _, t in wanted])
        hidden = self.hidden(number, rows)
        nll, argmax = target_losses(self.model, hidden, rows, targets, self.sizes)
        ends = np.cumsum([len(r) for r, _ in wanted])[:-1]
        results = zip(pack, np.split(nll, ends), np.split(argmax, ends), strict=True)
        return [index for result in results for index in collector.enter(*result)]

    def hidden(self, number: int, rows: NDArray[np.int64]) -> Tensor:
        """Return the hidden states of a pack, (1, rows, width); only needed rows are valid."""
        pack, nodes = self.packs[number], self.tree.nodes
        if not self.sharing:
            (node,) = pack
            tokens = _row(nodes[node].tokens, self.model)
            trunk = language_model(self.model)
            whole: Tensor = trunk(input_ids=tokens, use_cache=False)[0]
            return whole
        needed = np.zeros(self.tree.rows(pack), np.bool_)
        needed[rows] = True
        kernel = kernel_of(self.model, max(nodes[node].end for node in pack))
        shape = Shape.of(self.model.config.get_text_config(), self.model.dtype.itemsize)
        plain, gpu = isinstance(kernel, sdpa.Causal), sdpa.on_gpu(self.model.device)
        hidden, run = run_pack(
            self.model,
            self.tree,
            pack,
            needed,
            chunk=self.sizes.layer_rows(layer(shape, 1), causal=plain, gpu=gpu),
            kernel=kernel,
            above=self.held,
            keep=frozenset(node for node in pack if self.last[node] > 2 * number),
        )
        self.held |= run.kept
        self.free(2 * number)
        return hidden


class ResultCollector:
    """The requested rows of every node, and their results.

    Losses need the rows from the one before the first target to the last token; a text needs none,
    but the keys of its prompt. The target of a row is the next token: the node's own, or at its end
    the first one of the node that follows on the path of the request.
    """

    def __init__(self, tree: PrefixTree, requests: Sequence[ModelRequest]) -> None:
        self.tree = tree
        self.requests = requests
        self.results: dict[int, _Results] = {}  # of nodes that unanswered requests wait for
        self.needs: dict[int, list[tuple[int, int]]] = {}  # first and end row
        self.ends: dict[int, dict[int, None]] = {}  # targets after a node's last row, in order
        self.complete: dict[int, list[int]] = {}  # requests by the node that is their last
        for index, (request, path) in enumerate(zip(requests, tree.paths, strict=True)):
            for node, first, end, after in self._parts(request, path):
                self.needs.setdefault(node, []).append((first, end))
                if after is not None:
                    self.ends.setdefault(node, {})[after] = None
            self.complete.setdefault(path[-1], []).append(index)
        self.unanswered = Counter(chain.from_iterable(tree.paths))

    def _parts(
        self, request: ModelRequest, path: NodePath
    ) -> Iterator[tuple[int, int, int, int | None]]:
        """Yield (node, first row, end row, target of the node's last row) along a path."""
        for node in path if not isinstance(request, Generate) else ():
            run = self.tree.nodes[node]
            first = max(request.start - 1 - run.first, 0)
            end = min(request.length, run.end) - run.first
            after = request.tokens[run.end] if request.length > run.end else None
            if first < end:
                yield node, first, end, after

    def wanted(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the requested rows of a node and the target of each, ascending.

        The last row occurs once more for each target that follows the node on a path.
        """
        tokens, ends = self.tree.nodes[node].tokens, [*self.ends.get(node, ())]
        needed = np.zeros(len(tokens), np.bool_)
        for first, end in self.needs.get(node, ()):
            needed[first:end] = True
        rows = np.flatnonzero(needed)
        targets = np.append(kept(tokens).numbers()[1:], NOBODY)[rows]
        more = np.full(len(ends), len(tokens) - 1)
        return np.append(rows, more), np.append(targets, np.array(ends, np.int64))

    def enter(self, node: int, nll: NDArray[np.float32], argmax: NDArray[np.int64]) -> list[int]:
        """Store a node's results, in the order of ``wanted``; return the requests now complete.

        Nodes come after those above them, so that a request's last node is its last to come.
        """
        rows, ends = self.wanted(node)[0], self.ends.get(node, ())
        count = len(rows) - len(ends)
        last = dict(zip(ends, nll[count:].tolist(), strict=True))
        self.results[node] = _Results(rows[:count], nll[:count], argmax[:count], last)
        return self.complete.get(node, [])

    def response(self, index: int) -> LoglikelihoodResponse:
        """Assemble the response to a complete request, once; free rows that no other needs."""
        nll: list[float] = []
        argmax: list[int] = []
        for node, first, end, after in self._parts(self.requests[index], self.tree.paths[index]):
            results = self.results[node]
            own = slice(*np.searchsorted(results.rows, (first, end)))
            nll += results.nll[own].tolist()
            argmax += results.argmax[own].tolist()
            if after is not None:
                nll[-1] = results.ends[after]
        for node in self.tree.paths[index]:
            self.unanswered[node] -= 1
            if not self.unanswered[node]:
                del self.results[node]
        return LoglikelihoodResponse(tuple(nll[:-1]), tuple(argmax))


class _Results(NamedTuple):
    """One node's needed rows, with loss and argmax of each; the last row's loss by target."""

    rows: NDArray[np.int64]
    nll: NDArray[np.float32]
    argmax: NDArray[np.int64]
    ends: dict[int, float]


@torch.inference_mode()
def hidden_states(model: Any, request: ModelRequest, sizes: Sizes) -> Tensor:
    """Return the hidden states that predict the targets of a request, (1, targets, width)."""
    forward = Forward(model, build_tree([request.tokens]), sizes, shareable(model))
    rows = np.arange(request.start - 1, request.length - 1)
    hidden = forward.hidden(0, rows)
    return hidden.index_select(1, torch.from_numpy(rows).to(hidden.device))
