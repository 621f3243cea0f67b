"""Generate texts: the most likely token each time, until an end token, a stop string or a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ropewalk.harness.engine.loss import LIKELIEST, most_likely, nll_of, target_losses
from ropewalk.harness.engine.memory import ROWS, Sizes
from ropewalk.harness.engine.packed_attention import KVCache, Pair, installed, kernel_of, running
from ropewalk.harness.engine.prefix_tree import Node
from ropewalk.harness.engine.sdpa import Kept, Kernel, blocked, on_gpu, padded_length
from ropewalk.harness.engine.structure import language_model
from ropewalk.tasks.types import Generate, Generated

Decode = Callable[[Sequence[int]], str]
PROBES = 8  # texts of the check whether texts may be continued together
_known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@dataclass
class Generation:
    """A text as it grows: its tokens so far, with the loss of each in nats.

    ``processors`` change the scores of the next token, as ``generate`` of transformers does.
    ``path`` has the runs of the prompt in the order of the positions, ``keys`` the keys and values
    of the text by layer, and ``kept`` by layer what the kernel computed from them.
    """

    request: Generate
    decode: Decode
    ends: frozenset[int]
    processors: Sequence[Callable[[Tensor, Tensor], Tensor]] = ()
    path: Sequence[tuple[int, Node]] = ()
    tokens: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    done: bool = False
    keys: dict[int, Pair] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Any, request: Generate, decode: Decode, path: Sequence[tuple[int, Node]] = ()
    ) -> Generation:
        """Begin a text, by the model's generation config.

        It has the tokens that end a text, and what ``generate(do_sample=False)`` does to scores;
        only a penalized request has its repetition penalty.
        """
        ends = getattr(model.generation_config, "eos_token_id", None)
        every = ends if isinstance(ends, list) else [] if ends is None else [ends]
        prompt = torch.tensor([request.prompt], device=model.device)
        processors = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request.max_new_tokens,
            use_cache=False,
            **({} if request.penalized else {"repetition_penalty": 1.0}),
            custom_generate=lambda *_, logits_processor, **__: logits_processor,
        )
        return cls(request, decode, frozenset(every), list(processors), path)

    @property
    def newest(self) -> int:
        """The token that goes into the model next."""
        return self.tokens[-1] if self.tokens else self.request.prompt[-1]

    @property
    def position(self) -> int:
        """The position of that token."""
        return len(self.request.prompt) - 1 + len(self.tokens)

    def process(self, scores: Tensor) -> None:
        """Apply the processors to the scores of the next token, (vocabulary,), in place."""
        if self.processors:
            tokens = torch.tensor([[*self.request.prompt, *self.tokens]], device=scores.device)
            processed = scores[None]
            for processor in self.processors:
                processed = processor(tokens, processed)
            scores.copy_(processed[0])

    def add(self, token: int, loss: float) -> None:
        """Continue the text by a token."""
        self.tokens.append(token)
        self.losses.append(loss)
        ended = token in self.ends or not math.isfinite(loss)
        full = len(self.tokens) == self.request.max_new_tokens
        self.done = ended or full or any(stop in self._text() for stop in self.request.stop)

    def _text(self) -> str:
        return self.decode(self.tokens[:-1] if self.tokens[-1] in self.ends else self.tokens)

    def response(self) -> Generated:
        """Return the whole text, cut at the first stop string."""
        text = self._text()
        for stop in self.request.stop:
            text = text.partition(stop)[0]
        return Generated(text, tuple(self.tokens), tuple(self.losses))


def alone(model: Any, request: Generate, decode: Decode) -> Generated:
    """Return a text by the model's own forward and cache: the prompt at once, then every token."""
    text = Generation.of(model, request, decode)
    tokens, cache = list(request.prompt), None
    while not text.done:
        inputs = torch.tensor([tokens], device=model.device)
        # Without a cache a model makes one of the kind that its layers need.
        out = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        exact, cache = out.logits[0, -1:].float(), getattr(out, "past_key_values", None)
        text.process(exact[0])
        best = most_likely(exact)
        text.add(int(best), float(nll_of(exact, best, best)))
        # A model of state spaces has another cache: it reads the whole text again.
        tokens = [*request.prompt, *text.tokens] if cache is None else [text.newest]
    return text.response()


@dataclass
class Step:
    """One forward of the newest token of every text; ``held`` has the keys of the prompts."""

    texts: Sequence[Generation]
    held: KVCache
    kernel: Kernel

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> Tensor:
        """Return the attention of every text's row over its own keys, which this row joins."""
        parts, layer = [], module.layer_idx
        for row, text in enumerate(self.texts):
            place = text.position
            if layer not in text.keys:
                text.keys[layer] = _prompt_keys(text, layer, (key, value), self.held)
                text.kept[layer] = Kept(text.keys[layer][0].shape[2])
            pair = text.keys[layer]
            for whole, new in zip(pair, (key, value), strict=True):
                whole[:, :, place] = new[:, :, row]
            seen = padded_length(place + 1, query.device)
            before, values = (whole[:, :, :seen] for whole in pair)
            rows, kept = query[:, :, row : row + 1], text.kept[layer]
            out = self.kernel(module, rows, before, values, place, scale, kept)
            parts.append(out.transpose(1, 2))
        odd = query.shape[2] - len(parts)
        if odd:
            parts.append(query.new_zeros((1, odd, query.shape[1], query.shape[3])))
        return torch.cat(parts, 1)


def _prompt_keys(text: Generation, layer: int, like: Pair, held: KVCache) -> Pair:
    """Return keys and values with room for the whole text, those of its prompt filled in."""
    rows = padded_length(text.request.length, like[0].device)
    read = len(text.request.prompt) - 1
    pair = []
    for part, new in enumerate(like):
        whole = new.new_zeros((1, new.shape[1], rows, new.shape[3]))
        for index, node in text.path:
            count = min(node.end, read) - node.first
            if count > 0:
                own = held[index, layer][part][:, :, :count]
                whole[:, :, node.first : node.first + count] = own
        pair.append(whole)
    return pair[0], pair[1]


def write(model: Any, texts: Sequence[Generation], held: KVCache, sizes: Sizes) -> list[Generated]:
    """Continue texts until all are done, with the bits of each alone in float32 on a CPU."""
    left = [text for text in texts if not text.done]
    kernel = kernel_of(model, max(text.request.length for text in texts))
    assert kernel is not None  # texts of other models are not written here
    with installed(model):
        while left:
            _step(model, Step(left, held, kernel), sizes)
            left = [text for text in left if not text.done]
    return [text.response() for text in texts]


def _step(model: Any, step: Step, sizes: Sizes) -> None:
    tokens = [text.newest for text in step.texts]
    positions = [text.position for text in step.texts]
    if blocked(model.device):
        odd = -len(tokens) % ROWS
        tokens, positions = tokens + tokens[:1] * odd, positions + [0] * odd
    inputs, places = (torch.tensor([row], device=model.device) for row in (tokens, positions))
    with running(step.attend):
        hidden = language_model(model)(input_ids=inputs, position_ids=places, use_cache=False)[0]
    rows, likeliest = np.arange(len(step.texts)), np.full(len(step.texts), LIKELIEST)
    vocabulary = model.config.get_text_config().vocab_size
    chunk = sizes.head_rows(vocabulary, gpu=on_gpu(model.device))

    def process(first: int, logits: Tensor) -> None:
        for text, scores in zip(step.texts[first:], logits, strict=False):
            text.process(scores)

    losses, best = target_losses(model, hidden, rows, likeliest, chunk, process)
    for text, token, loss in zip(step.texts, best.tolist(), losses.tolist(), strict=True):
        text.add(token, loss)


def together(model: Any, texts: Mapping[int, Generation], most: int) -> Iterator[list[int]]:
    """Yield which texts are continued together, of ``most`` tokens in all, a longer one alone.

    A model whose rows are not computed independently, such as a mixture of experts, or on a GPU,
    has one at a time: another count of rows has other bits, and might have other tokens.
    """
    if len(texts) > 1 and not (blocked(model.device) and _independent(model)):
        most = 0
    group: list[int] = []
    tokens = 0
    for place, text in texts.items():
        length = text.request.length
        if group and tokens + length > most:
            yield group
            group, tokens = [], 0
        group.append(place)
        tokens += length
    if group:
        yield group


def _independent(model: Any) -> bool:
    """Return whether texts have the same bits together and alone; checked once per model."""
    if model not in _known:
        size = model.config.get_text_config().vocab_size
        probes = [Generate((n % size,), 4, doc_id="probe") for n in range(1, PROBES + 1)]

        def written(*requests: Generate) -> list[Generated]:
            texts = [Generation(request, lambda _: "", frozenset()) for request in requests]
            return write(model, texts, {}, Sizes())

        alone = [written(probe)[0] for probe in probes]
        _known[model] = written(*probes) == alone
    return _known[model]
