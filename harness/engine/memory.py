"""Compute the bytes that a pass needs beside the weights, from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.prefix_tree import NodePath, PrefixTree, last_reads, packs

FLOAT32, INT64 = 4, 8
BLOCK = 64  # logits whose maximum the head computes first
HALVINGS, LEAST_CHUNK = 4, 256
ROWS = 32  # a chunk is a multiple of this on a CPU: odd ends have other bits
TEXTS = 16  # most texts that a GPU continues together
OTHER, OTHER_GPU = 2048, 8192  # most rows of a chunk where attention is not plain
LEAST_HEAD_ROWS = 64  # fewer rows read the whole head's weights for too little work
MOST_HEAD_ROWS = 2048  # on a GPU more rows make no product faster
Text = tuple[NodePath, int]  # the path of a prompt, and its length with the new tokens


@dataclass(frozen=True)
class Sizes:
    """Tokens of one pack, rows of a layer at once, bytes of its temporaries and of float32 logits.

    They change memory and speed, and leave float32 results on a CPU bit-identical. ``chunk`` is a
    multiple of 32. The rows of a text's first chunk need no mask, with which attention takes 1.3 to
    1.8 times as long: a chunk is as long as its temporaries (``layer``) allow. A GPU has ``texts``
    bytes for the keys of texts that it continues together, or those of the longest text.
    """

    pack: int = 8192
    chunk: int = 32_768
    layer: int = 512 * 2**20
    logits: int = 16 * 2**20
    texts: int = 8 * 2**30

    @property
    def smaller(self) -> tuple[Sizes, ...]:
        """Successively smaller settings: packs halve, and row chunks quarter."""
        least = min(self.chunk, LEAST_CHUNK)
        return tuple(
            Sizes(
                self.pack >> n,
                max(self.chunk >> 2 * n, least),
                self.layer >> n,
                self.logits >> n,
                self.texts >> n,
            )
            for n in range(HALVINGS + 1)
        )

    @property
    def least(self) -> Sizes:
        """The smallest sizes, for a question that ran out of memory with these."""
        return self.smaller[-1]

    def layer_rows(self, each: int, *, causal: bool, gpu: bool) -> int:
        """Return how many rows a layer computes at once if a row takes ``each`` bytes.

        ``causal`` says that attention is plain: on a CPU, other kernels gain nothing from long
        chunks. On a GPU, every chunk is one more launch of each kernel.
        """
        most = self.chunk if causal else min(self.chunk, OTHER_GPU if gpu else OTHER)
        return min(most, max(LEAST_CHUNK, self.layer // each // ROWS * ROWS))

    def head_rows(self, vocabulary: int, *, gpu: bool) -> int:
        """Return how many rows the head computes at once.

        A CPU is fastest where their float32 logits (``logits``) fit into its cache. A GPU needs
        long products and few kernels: their logits may take what a layer's temporaries may.
        """
        if gpu:
            rows = self.layer // (FLOAT32 * vocabulary) // LEAST_HEAD_ROWS * LEAST_HEAD_ROWS
            return max(LEAST_HEAD_ROWS, min(rows, MOST_HEAD_ROWS))
        return max(LEAST_HEAD_ROWS, self.logits // (FLOAT32 * vocabulary))


@dataclass(frozen=True)
class Shape:
    """The shapes of a model that decide its memory; ``itemsize`` in bytes, widths in channels.

    ``gpu`` says that attention has CUDA's kernels, which need no mask. ``gpus`` is the number of
    those that the layers are spread over, 0 where it is not known. ``experts`` are those of one
    token in a mixture, each ``expert`` channels wide.
    """

    width: int
    heads: int
    groups: int
    head_dim: int
    mlp: int
    layers: int
    vocabulary: int
    itemsize: int
    gpu: bool = False
    gpus: int = 1
    experts: int = 0
    expert: int = 0

    @classmethod
    def of(cls, config: Any, itemsize: int) -> Shape:
        """Read a text config; where its layers differ (Gemma 4), the most of them."""
        varied = getattr(config, "per_layer_attributes", None) or ()

        def most(name: str) -> int:
            if name in varied:
                return max(getattr(one, name) or 0 for one in config.per_layer_config)
            return getattr(config, name, None) or 0

        heads = most("num_attention_heads")  # none in a recurrent model
        mlp = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        mlp = max(mlp) if isinstance(mlp, list | tuple) else mlp  # Gemma 3n: one a layer
        return cls(
            width=config.hidden_size,
            heads=heads,
            groups=most("num_key_value_heads") or heads,
            head_dim=most("head_dim") or config.hidden_size // max(heads, 1),
            mlp=mlp,
            layers=config.num_hidden_layers,
            vocabulary=config.vocab_size,
            itemsize=itemsize,
            experts=getattr(config, "num_experts_per_tok", None) or 0,
            expert=getattr(config, "moe_intermediate_size", None) or mlp,
        )

    def on(self, device: torch.device, *, gpus: int = 1) -> Shape:
        """Return the shape on a device, or spread over GPUs."""
        return replace(self, gpu=sdpa.on_gpu(device), gpus=gpus)

    @property
    def keys(self) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.groups * self.head_dim * self.itemsize


@dataclass(frozen=True)
class Moved:
    """What an attention in bands has in memory; zero of each for one without moved positions.

    ``tables`` are cos and sin of all queries and keys, ``bands`` those whose rotated keys a text
    keeps, and ``by_head`` says that each head rotates a key of its own.
    """

    tables: float = 0
    bands: int = 0
    by_head: bool = False

    @property
    def copies(self) -> int:
        """The keys and values of a token that texts keep; 0 where few texts are begun at a time.

        These have heads that differ, or so many bands that no rotated key is kept.
        """
        few = self.by_head or (self.tables and not self.bands)
        return 0 if few else 2 + self.bands


def shared(
    shape: Shape,
    tree: PrefixTree,
    targets: int,
    sizes: Sizes,
    texts: Sequence[Text] = (),
    moved: Moved = Moved(),
) -> int:
    """Return the peak of a tree computed in packs, head and texts included, in bytes."""
    rows = sizes.layer_rows(layer(shape, 1), causal=not moved.tables, gpu=shape.gpu)
    cut = packs(tree, sizes.pack)
    peak = max((_pack(shape, tree, pack, rows, moved) for pack in cut), default=0)
    beside = held(shape, tree, cut, texts) + written(shape, texts, sizes, moved)
    logits = head(shape, targets, sizes)
    if not shape.gpu:
        return peak + beside + logits
    # Its logits are as large as a layer's temporaries, which are freed before: not both count.
    rows = max((tree.rows(pack) for pack in cut), default=0)
    # Hidden states; the place, target, most likely token and loss of each.
    states = rows * (shape.width * shape.itemsize + 3 * INT64 + FLOAT32)
    longest = max((node.end for node in tree.nodes), default=0)
    return max(peak, states + tables(shape, longest, moved) + logits) + beside


def _pack(shape: Shape, tree: PrefixTree, pack: NodePath, chunk: int, moved: Moved) -> int:
    """Return the bytes that grow with a pack's rows, and the temporaries of one chunk of them."""
    size, item = tree.rows(pack), shape.itemsize
    longest = max(tree.nodes[node].end for node in pack)
    forks = any(tree.nodes[node].above for node in pack)
    masked = not shape.gpu and (forks or size > chunk)
    tiles = item * sdpa.TILE * (longest + sdpa.TILE + sdpa.KEY_BLOCK) if masked else 0
    joined = longest * shape.keys if forks else 0
    angles = shape.head_dim * (2 * item + FLOAT32)
    grows = size * (shape.width * item + shape.keys + angles + 2 * INT64)
    beside = tiles + joined + tables(shape, longest, moved)
    own = layer(shape, min(size, chunk), rotated(shape, longest, moved))
    return grows + beside + own


def sharing(shape: Shape, moved: Moved) -> int:
    """Return how many rotated keys there are for a key: one, or one per head that shares it."""
    return shape.heads // shape.groups if moved.by_head else 1


def tables(shape: Shape, length: int, moved: Moved) -> int:
    """Return the cos and sin of queries and of keys that are kept, on every GPU."""
    return int(4 * moved.tables * length) * shape.head_dim * FLOAT32 * max(shape.gpus, 1)


def rotated(shape: Shape, length: int, moved: Moved) -> int:
    """Return the keys of a layer while an attention in bands rotates them."""
    count = shape.heads if moved.by_head else shape.groups
    return 4 * length * count * shape.head_dim * FLOAT32 if moved.tables else 0


def layer(shape: Shape, rows: int, keys: int = 0) -> int:
    """Return the temporaries of one layer over these rows: of its attention or its MLP.

    ``keys`` are bytes of keys that the attention rotates.
    """
    item, inner = shape.itemsize, shape.heads * shape.head_dim
    norm = shape.width * (item + (0 if item == FLOAT32 else 2 * FLOAT32))
    attention = item * (shape.width + 4 * inner) + 2 * shape.keys
    mlp = item * (2 * shape.width + 3 * shape.mlp)
    # Each expert of a token has a copy of its row: inputs, outputs, weighted and reordered.
    mixture = item * shape.experts * (5 * shape.width + 2 * shape.expert)
    return max(rows * norm, rows * attention + keys, rows * max(mlp, mixture))


def held(shape: Shape, tree: PrefixTree, cut: list[NodePath], texts: Sequence[Text] = ()) -> int:
    """Return the largest memory of keys and values between packs; a text reads its prompt's."""
    place = {node: number for number, pack in enumerate(cut) for node in pack}
    change = [0] * (len(cut) + 1)  # where a node is not read after its own pack it adds nothing
    for node, last in last_reads(tree, cut, [path for path, _ in texts]).items():
        tokens = len(tree.nodes[node].tokens)
        change[place[node]] += tokens
        change[(last + 1) // 2] -= tokens
    return max(accumulate(change)) * shape.layers * shape.keys


def room(shape: Shape, lengths: Sequence[int], sizes: Sizes, copies: int) -> int:
    """Return the tokens of texts whose keys are in memory at once, at least those of the longest.

    ``copies`` are those of ``Moved``.
    """
    count = TEXTS if shape.gpu else ROWS
    fast = shape.gpu and copies > 0
    most = 2 * sizes.texts // (shape.layers * shape.keys * copies) if fast else sizes.pack
    return max(max(lengths), min(sum(sorted(lengths)[-count:]), most))


def written(shape: Shape, texts: Sequence[Text], sizes: Sizes, moved: Moved = Moved()) -> int:
    """Return the keys and values of texts that are continued together.

    For moved positions, each band keeps the keys as it rotates them.
    """
    lengths = [length for _, length in texts]
    copies = 2 + moved.bands * sharing(shape, moved)
    together = room(shape, lengths, sizes, moved.copies) if lengths else 0
    return together * shape.layers * shape.keys * copies // 2


def head(shape: Shape, targets: int, sizes: Sizes) -> int:
    """Return the logits of one chunk, and their float32 copy where they are of 16 bits.

    Beside them are the hidden states of the chunk, the largest logit of each block, and one block.
    For a model over several GPUs, the logits are copied from the last to the first.
    """
    rows = min(targets, sizes.head_rows(shape.vocabulary, gpu=shape.gpu))
    copy = 0 if shape.itemsize == FLOAT32 else FLOAT32
    blocks = (shape.vocabulary // BLOCK + BLOCK) * FLOAT32
    logits = shape.vocabulary * (shape.itemsize * (1 + (shape.gpus != 1)) + copy)
    return rows * (logits + shape.width * shape.itemsize + blocks)


def whole(shape: Shape, length: int, attention: int, targets: int, sizes: Sizes) -> int:
    """Return the peak of one plain forward, whose attention needs ``attention`` more bytes."""
    rows = length * (shape.width * shape.itemsize) + layer(shape, length)
    return rows + attention + head(shape, targets, sizes)
