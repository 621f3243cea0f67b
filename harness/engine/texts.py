"""Continue texts together: the newest token of each, in a forward of a constant number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.harness.engine import sdpa
from ropewalk.harness.engine.generation import Generation
from ropewalk.harness.engine.loss import logits_of, most_likely, nll_of
from ropewalk.harness.engine.memory import ROWS, TEXTS, Shape, Sizes, room
from ropewalk.harness.engine.packed_attention import (
    KVCache,
    Pair,
    installed,
    kernel_of,
    views_of,
)
from ropewalk.harness.engine.prefix_tree import Node
from ropewalk.harness.engine.sdpa import LEAST_ROWS, Kept, Kernel, View, padded_length
from ropewalk.harness.engine.structure import language_model
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import Generate, Generated

READ = 8  # tokens after which a GPU is asked whether a text is done
MOST_KEYS = 2**20  # the flash kernel splits keys by this number: no other text may decide it
BLOCKS, PARTS, PART = 128, 32, 128  # of a GPU that are busy with one text; most parts, least keys
PROBES, PROBE_STEP = 8, 97  # texts of the proof, and how much longer each is than the one before
FAR_STEP = 2340  # the same where one call is compared to the kernel, under moved positions
COARSE = 0.05  # mean difference that 16 bits may make between two kernels, relative
_known: WeakKeyDictionary[Any, dict[Any, Mode]] = WeakKeyDictionary()
_agreeing: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()


class Mode(NamedTuple):
    """How texts are continued: in so many rows, of which so many texts use one each.

    With ``parts``, one call computes the attention of all of them. The keys of each are cut into so
    many parts: else the blocks of a GPU would wait for one that reads all keys of a long text.
    ``graph`` replays the kernels of a step instead of launching each.
    """

    rows: int
    texts: int
    parts: int = 0
    graph: bool = False


@dataclass
class Writer:
    """Texts that are continued together.

    ``live`` are the texts by the index of their request; each has a row, in this order. ``room``
    tokens have their keys in memory at once, those of each text in one piece, ``longest`` at most;
    where one call computes the attention of all, each key as every one of the ``views`` turns it.
    """

    model: Any
    longest: int
    mode: Mode
    room: int
    views: Sequence[View] = ()
    live: dict[int, Generation] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, requests: Sequence[Generate], sizes: Sizes) -> Writer:
        """Return what writes these texts, in the fastest way in which none changes another."""
        lengths = [request.length for request in requests]
        shape = Shape.of(model.config.get_text_config(), model.dtype.itemsize).on(model.device)
        views, copies = views_of(model, max(lengths) - 1)
        tokens = room(shape, lengths, sizes, copies)
        alone = len(lengths) == 1 or sum(sorted(lengths)[:2]) > tokens
        same = alone and sdpa.blocked(model.device)  # a CPU computes as many rows anyway
        mode = Mode(ROWS, 1) if same else _mode(model, views, shape)
        return cls(model, max(lengths), mode, tokens, views)

    def __post_init__(self) -> None:
        device, rows = self.model.device, self.mode.rows
        self.state = torch.zeros((4, rows), dtype=torch.long, device=device)
        # Of a step: where keys go, and by view which of them each part of the keys of a row has.
        self.at = self.state
        self.spans: list[tuple[Tensor, Tensor, Tensor]] = []
        self.part = torch.arange(self.mode.parts, device=device)
        self.row = torch.arange(rows * self.mode.parts + 1, dtype=torch.int32, device=device)
        # A mask that is made already keeps transformers from reading the positions.
        mask = torch.zeros((1, 1, 1, 1), device=device)
        self.given = {} if sdpa.blocked(device) else {"attention_mask": mask}
        self.keys: dict[int, list[Tensor]] = {}
        self.kernel: Kernel | None = None
        self.ahead = 0  # tokens that were computed and not read yet
        self.ran = False
        self.graph: Any = None
        self.logits = torch.empty(0)

    def takes(self, request: Generate) -> bool:
        """Return whether there is a row and room for one more text."""
        return len(self.live) < self.mode.texts and self._gap(request.length) is not None

    def _gap(self, length: int) -> int | None:
        """Return where there is room for so many tokens first."""
        start = 0
        for text in sorted(self.live.values(), key=lambda text: text.start):
            if text.start - start >= length:
                break
            start = text.start + text.request.length
        return start if start + length <= self.room else None

    def add(self, index: int, begin: Callable[[], Generation], held: KVCache) -> None:
        """Continue a text from now on that ``takes`` allows; ``held`` has its prompt's keys."""
        text = begin()
        start, read = self._gap(text.request.length), len(text.request.prompt) - 1
        assert start is not None
        text.start = start
        spans = {node: (run.first, min(run.end, read)) for node, run in text.path}
        for (node, layer), pair in held.items():
            first, end = spans.get(node, (0, 0))
            if first < end:
                part = [states[:, :, : end - first] for states in pair]
                if self.mode.parts:
                    at = torch.arange(first, end, device=self.state.device)
                    part = self._turned(layer, part[0], part[1], at)
                for whole, states in zip(self._keys_of(text, layer, pair), part, strict=True):
                    whole[:, :, first:end] = states
        self.live[index] = text

    def _keys_of(self, text: Generation, layer: int, like: Pair) -> Sequence[Tensor]:
        """Return the keys and values of a text in a layer, with room for all of its tokens."""
        if layer not in text.keys:
            length = text.request.length
            rows = padded_length(length, like[0].device)
            if self.mode.parts:
                span = slice(text.start, text.start + length)
                text.keys[layer] = [whole[:, :, span] for whole in self._all_keys(layer, like)]
            else:
                text.keys[layer] = [_zeros(part, rows) for part in like]
            text.kept[layer] = Kept(rows)
        return text.keys[layer]

    def _all_keys(self, layer: int, like: Pair) -> list[Tensor]:
        """Return the keys of all texts by view, then the values.

        The last of each is that of rows without a text.
        """
        if layer not in self.keys:
            kinds = [like[0]] * len(self.views) + [like[1]]
            self.keys[layer] = [_zeros(part, self.room + 1) for part in kinds]
        return self.keys[layer]

    def _turned(self, layer: int, key: Tensor, value: Tensor, positions: Tensor) -> list[Tensor]:
        """Return the keys at some positions by view, then the values."""
        views = [view.turned(layer, key, positions, query=False) for view in self.views]
        return [*views, value]

    def run(self) -> list[tuple[int, Generated]]:
        """Continue the texts until some are done, and return these."""
        texts = [*self.live.values()]
        self.kernel = kernel_of(self.model, self.longest)
        attend = self._attend_at_once if self.mode.parts else self._attend
        with installed(self.model, attend):
            while not any(text.done for text in texts):
                left = min(text.request.max_new_tokens - len(text.tokens) for text in texts)
                count = 1 if sdpa.blocked(self.model.device) else min(READ, left)
                self._place(texts)
                steps = []
                for self.ahead in range(count):
                    steps.append(self._step(texts))
                for tokens, losses in torch.stack(steps).cpu().tolist():
                    for text, token, loss in zip(texts, tokens, losses, strict=True):
                        if not text.done:
                            text.add(int(token), loss)
        self.kernel = None  # it may have a mask
        done = [index for index, text in self.live.items() if text.done]
        return [(index, self.live.pop(index).response()) for index in done]

    def _place(self, texts: Sequence[Generation]) -> None:
        """Send each row its token, position, the start of its text, and the keys of a part."""
        parts = max(self.mode.parts, 1)
        rows = [
            (
                text.newest,
                text.position,
                text.start,
                -(-text.request.length // parts // PART) * PART,
            )
            for text in texts
        ]
        rows += [(rows[0][0], 0, self.room, PART)] * (self.mode.rows - len(rows))
        self.state.copy_(torch.tensor(rows).T)

    def _step(self, texts: Sequence[Generation]) -> Tensor:
        """Continue every text by a token; return tokens and losses, (2, texts), without waiting."""
        count, logits = len(texts), self._logits()
        if sdpa.blocked(self.model.device):
            logits = logits[:count]
        for scores, text in zip(logits, texts, strict=False):
            text.process(scores, self.ahead)
        best = most_likely(logits)
        losses = nll_of(logits, best, best)
        self.state[0, :count] = best[:count]
        self.state[1, :count] += 1
        for token, text in zip(best, texts, strict=False):
            text.follow(token, self.ahead)
        return torch.stack((best[:count].float(), losses[:count]))  # tokens are below 2**24

    def _logits(self) -> Tensor:
        """Return the logits of every row; the second step captures a graph of the first one."""
        if not self.mode.graph or not self.ran:
            self.ran = True
            return self._forward()
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self._forward()
        self.graph.replay()
        return self.logits

    def _forward(self) -> Tensor:
        tokens, positions = self.state[:2]
        self._cut()
        inputs = {"input_ids": tokens[None], "position_ids": positions[None]}
        hidden = language_model(self.model)(**inputs, use_cache=False, **self.given)[0]
        if sdpa.blocked(self.model.device):
            hidden = hidden[:, : max(len(self.live), LEAST_ROWS)]
        return logits_of(self.model, hidden)

    def _cut(self) -> None:
        """Compute where the keys of this step go, and what each row sees of each part."""
        _, positions, starts, size = self.state
        self.at = starts + positions
        before, self.spans = size[:, None] * self.part, []
        for view in self.views:
            begin, end = view.span(positions)
            left = (end - begin)[:, None] - before
            unseen = left <= 0  # an empty part reads a key, which has no weight
            # Of it: the first of its text, which is there.
            first = starts[:, None] + (begin[:, None] + before).masked_fill(unseen, 0)
            seen = torch.minimum(left, size[:, None]).clamp(min=1)
            places = pad(first.flatten(), (0, 1)).int()
            self.spans.append((places, seen.flatten().int(), unseen))

    def _attend_at_once(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> Tensor:
        """Return the attention of every row over the keys of its text, which this row joins."""
        layer, positions = module.layer_idx, self.state[1]
        every = self._all_keys(layer, (key, value))
        for whole, new in zip(every, self._turned(layer, key, value, positions), strict=True):
            whole.index_copy_(2, self.at, new)
        *keys, values = (whole[0].transpose(0, 1) for whole in every)
        outs, weights = list[Tensor](), list[Tensor]()
        for view, own, (first, seen, unseen) in zip(self.views, keys, self.spans, strict=True):
            rows = view.turned(layer, query, positions, query=True)[0].transpose(0, 1)
            each = rows[:, None].expand(-1, self.mode.parts, -1, -1)
            # Keys begin where ``first`` says; how many a row sees is in ``seen``, whatever follows.
            out, lse = torch.ops.aten._flash_attention_forward(
                *(each.flatten(0, 1), own, values, self.row, first),
                *(1, MOST_KEYS, 0.0, False, False), scale=scale, seqused_k=seen,
            )[:2]  # fmt: skip
            outs.append(out.view(each.shape))
            of_parts = lse.T.view(each.shape[:3])
            weights.append(of_parts.masked_fill(unseen[..., None], -torch.inf))
        shares = torch.cat(weights, 1).softmax(1)[..., None]
        merged: Tensor = (shares * torch.cat(outs, 1)).sum(1)
        return merged[None].to(query.dtype)

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> Tensor:
        """Return the same, text by text, by the kernel of the model."""
        assert self.kernel is not None  # texts of other models are not written here
        layer, out = module.layer_idx, torch.zeros_like(query).transpose(1, 2)
        for row, text in enumerate(self.live.values()):
            place, pair = text.position + self.ahead, self._keys_of(text, layer, (key, value))
            for whole, new in zip(pair, (key, value), strict=True):
                whole[:, :, place] = new[:, :, row]
            seen = padded_length(place + 1, query.device)
            before, values = (whole[:, :, :seen] for whole in pair)
            rows, derived = query[:, :, row : row + 1], text.kept[layer]
            attended = self.kernel(module, rows, before, values, place, scale, derived)
            out[:, row] = attended[:, :, 0]
        return out


def _zeros(like: Tensor, rows: int) -> Tensor:
    return like.new_zeros((1, like.shape[1], rows, like.shape[3]))


def _mode(model: Any, views: Sequence[View], shape: Shape) -> Mode:
    """Return the fastest mode in which a text has the same bits together and alone.

    It is proved once per model and number of views; that one call computes what the kernel does is
    checked of every attention. A mixture of experts computes no row independently of the others,
    and has one text at a time.
    """
    parts = _parts(model, views, shape)
    known, key = _known.setdefault(model, {}), (type(kernel_of(model)), len(views) if parts else 0)
    if key not in known:
        modes = _modes(model, parts)
        known[key] = next(
            mode for mode in modes if mode == modes[-1] or _proven(model, mode, views, shape)
        )
    return known[key]


def _parts(model: Any, views: Sequence[View], shape: Shape) -> int:
    """Return in how many parts one call computes the attention of all texts; 0 if none does."""
    if sdpa.blocked(model.device) or not views:
        return 0
    query, key = (
        torch.empty((1, heads, 1, shape.head_dim), dtype=model.dtype, device=model.device)
        for heads in (shape.heads, shape.groups)
    )
    one_device = len({weight.device for weight in model.parameters()}) == 1
    if not one_device or not sdpa.flash_takes(query, key, key):
        return 0
    parts = min(PARTS, max(1, BLOCKS // shape.groups))
    known = _agreeing.setdefault(model, {})
    if (name := views[0].fingerprint) not in known:
        known[name] = _agrees(Probes.of(model, views, shape, FAR_STEP), parts)
    return parts if known[name] else 0


def _modes(model: Any, parts: int) -> list[Mode]:
    """Return the modes of a device, the fastest first; the last needs no proof."""
    if sdpa.blocked(model.device):
        return [Mode(ROWS, ROWS), Mode(ROWS, 1)]
    modes = [Mode(TEXTS, TEXTS), Mode(1, 1)]
    if parts:
        fast = [Mode(TEXTS, TEXTS, parts, True), Mode(TEXTS, TEXTS, parts)]
        modes = [*fast, Mode(1, 1, parts, True), *modes]
    return modes


@dataclass(frozen=True)
class Probes:
    """Texts of different lengths, with keys that are made up."""

    model: Any
    views: Sequence[View]
    shape: Shape
    texts: Sequence[Generate]

    @classmethod
    def of(cls, model: Any, views: Sequence[View], shape: Shape, step: int) -> Probes:
        """Return texts each ``step`` tokens longer than the one before, if the views reach so far.

        Views of any positions are for ``PROBE_STEP`` at most.
        """
        longest, size = views[0].length if views else 0, model.config.get_text_config().vocab_size
        reach = PROBE_STEP if longest is None else max(longest - 5, 0) // (PROBES - 1)
        lengths = [1 + min(step, reach) * number for number in range(PROBES)]
        texts = [Generate([n % size] * of, 4, doc_id="probe") for n, of in enumerate(lengths)]
        return cls(model, views, shape, texts)

    def made_up(self, heads: int, rows: int) -> Tensor:
        """Return states of so many rows, (1, heads, rows, head_dim)."""
        numbers = torch.arange(heads * rows * self.shape.head_dim, device=self.model.device)
        states = 1.4 * numbers.float().square().mul(0.37).sin()
        return states.view(1, heads, rows, self.shape.head_dim).to(self.model.dtype)

    def begun(self, mode: Mode, layers: int, first: int = 0) -> Writer:
        """Return a writer that has begun texts, whose prompts have keys in so many layers."""
        texts, longest = self.texts[first : first + mode.texts], self.texts[-1].prompt
        lengths = [text.length for text in texts]
        writer = Writer(self.model, max(lengths), mode, sum(lengths), self.views)
        keys = self.made_up(self.shape.groups, len(longest))
        held: KVCache = {(0, layer): (keys, keys.flip(2)) for layer in range(layers)}
        prompt = [(0, Node(0, kept(longest), ()))]
        for index, text in enumerate(texts):
            begin = partial(Generation, text, lambda _: "", frozenset(), (), prompt)
            writer.add(index, begin, held)
        return writer


def _agrees(probes: Probes, parts: int) -> bool:
    """Return whether one call computes the attention of all texts as the kernel does of each."""
    shape = probes.shape

    def attended(parts: int) -> Tensor:
        writer = probes.begun(Mode(TEXTS, TEXTS, parts), layers=1)
        writer.kernel = kernel_of(probes.model, writer.longest)
        writer._place([*writer.live.values()])
        writer._cut()
        query, key = (probes.made_up(heads, TEXTS) for heads in (shape.heads, shape.groups))
        attend = writer._attend_at_once if parts else writer._attend
        return attend(probes.views[0].module(0), query, key, key, None)[0, :PROBES].float()

    try:
        wanted = attended(0)
        errors = (attended(parts) - wanted).abs().mean((1, 2)) / wanted.abs().mean((1, 2))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False  # an operator that this GPU or version of PyTorch lacks
    return bool(errors.max() < COARSE)


def _proven(model: Any, mode: Mode, views: Sequence[View], shape: Shape) -> bool:
    """Return whether texts have the same bits in a mode and alone, launched kernel by kernel."""
    probes = Probes.of(model, views, shape, PROBE_STEP if mode.parts else 0)

    def written(mode: Mode) -> list[Generated]:
        responses = []
        for first in range(0, PROBES, mode.texts):
            writer = probes.begun(mode, shape.layers if mode.parts else 0, first)
            done: dict[int, Generated] = {}
            while writer.live:
                done |= writer.run()
            responses += [done[index] for index in sorted(done)]
        return responses

    try:
        return written(mode) == written(mode._replace(texts=1, graph=False))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False  # no graph
