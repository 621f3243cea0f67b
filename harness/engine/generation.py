"""Generate texts: the most likely token each time, until an end token, a stop string or a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.harness.engine.loss import most_likely, nll_of
from ropewalk.harness.engine.prefix_tree import Node
from ropewalk.harness.engine.sdpa import Kept
from ropewalk.tasks.types import Generate, Generated

Decode = Callable[[Sequence[int]], str]


@dataclass
class Generation:
    """A text as it grows: its tokens so far, with the loss of each in nats.

    ``processors`` change the scores of the next token, as ``generate`` of transformers does, by the
    tokens in ``ids``, (1, length), which are on the model's device. ``path`` has the runs of the
    prompt in the order of the positions, ``keys`` the keys and values of the text by layer, which
    among those of other texts begin at ``start``, and ``kept`` by layer what the kernel computed
    from them.
    """

    request: Generate
    decode: Decode
    ends: frozenset[int]
    processors: Sequence[Callable[[Tensor, Tensor], Tensor]] = ()
    path: Sequence[tuple[int, Node]] = ()
    ids: Tensor | None = None
    tokens: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    done: bool = False
    start: int = 0
    keys: dict[int, Sequence[Tensor]] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Any, request: Generate, decode: Decode, path: Sequence[tuple[int, Node]] = ()
    ) -> Generation:
        """Begin a text, by the model's generation config.

        It has the tokens that end a text, and what ``generate(do_sample=False)`` does to scores;
        only a penalized request has its repetition penalty.
        """
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
        ids = pad(prompt, (0, request.max_new_tokens)) if processors else None
        ends = end_tokens(model.generation_config)
        return cls(request, decode, ends, list(processors), path, ids)

    @property
    def newest(self) -> int:
        """The token that goes into the model next."""
        return self.tokens[-1] if self.tokens else self.request.prompt[-1]

    @property
    def position(self) -> int:
        """The position of that token."""
        return len(self.request.prompt) - 1 + len(self.tokens)

    def process(self, scores: Tensor, ahead: int = 0) -> None:
        """Apply the processors to the scores of the next token, (vocabulary,), in place.

        ``ahead`` tokens were given to ``follow`` and not to ``add`` yet.
        """
        if self.ids is not None:
            self.ids = self.ids.to(scores.device)
            processed = scores[None]
            for processor in self.processors:
                processed = processor(self.ids[:, : self.position + ahead + 1], processed)
            scores.copy_(processed[0])

    def follow(self, token: Tensor, ahead: int = 0) -> None:
        """Let the processors see the next token, which is still on its device."""
        if self.ids is not None:
            self.ids[0, self.position + ahead + 1] = token

    def add(self, token: int, loss: float) -> None:
        """Continue the text by a token."""
        self.tokens.append(token)
        self.losses.append(loss)
        ended = token in self.ends or not math.isfinite(loss)
        full = len(self.tokens) == self.request.max_new_tokens
        self.done = ended or full or any(stop in self._text() for stop in self.request.stop)

    def _text(self) -> str:
        return text_of(self.tokens, self.ends, self.decode)

    def response(self) -> Generated:
        """Return the whole text, cut at the first stop string."""
        text = cut(self._text(), self.request.stop)
        return Generated(text, tuple(self.tokens), tuple(self.losses))


def end_tokens(config: Any) -> frozenset[int]:
    """Return the tokens that end a text by a generation config."""
    ends = getattr(config, "eos_token_id", None)
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


def text_of(tokens: Sequence[int], ends: frozenset[int], decode: Decode) -> str:
    """Return generated tokens as a text, without the one that ends it."""
    return decode(tokens[:-1] if tokens[-1] in ends else tokens)


def cut(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first of its stop strings."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text


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
        text.follow(best[0])
        text.add(int(best), float(nll_of(exact, best, best)))
        # A model of state spaces has another cache: it reads the whole text again.
        tokens = [*request.prompt, *text.tokens] if cache is None else [text.newest]
    return text.response()
