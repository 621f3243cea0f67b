"""Generate texts: the most likely token each time, until an end token, a stop string or a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import RepetitionPenaltyLogitsProcessor

from harness.engine.lm_head import losses, most_likely
from tasks.types import Generate, Generated

Decode = Callable[[Sequence[int]], str]


@dataclass
class Generation:
    """A text as it grows: its tokens so far, with the loss of each in nats.

    ``penalty`` is the repetition penalty of a checkpoint's generation config (Qwen2.5: 1.05), which
    ``model.generate(do_sample=False)`` applies too; 1 for none.
    """

    question: Generate
    decode: Decode
    ends: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    done: bool = False
    penalty: float = 1.0

    @classmethod
    def of(cls, model: Any, question: Generate, decode: Decode) -> Generation:
        """Begin a text with nothing; the model's generation config has the tokens that end one."""
        ends = getattr(model.generation_config, "eos_token_id", None)
        every = ends if isinstance(ends, list) else [] if ends is None else [ends]
        penalty = getattr(model.generation_config, "repetition_penalty", None) or 1.0
        return cls(question, decode, frozenset(every), penalty=penalty)

    @property
    def newest(self) -> int:
        """The token that goes into the model next."""
        return self.tokens[-1] if self.tokens else self.question.tokens[-1]

    @property
    def position(self) -> int:
        """The position of that token."""
        return len(self.question.tokens) - 1 + len(self.tokens)

    def penalize(self, scores: torch.Tensor) -> None:
        """Apply the repetition penalty to the scores of the next token, (vocabulary,), in place."""
        if self.penalty != 1:
            before = torch.tensor([[*self.question.tokens, *self.tokens]], device=scores.device)
            found = RepetitionPenaltyLogitsProcessor(self.penalty)(before, scores[None])
            scores.copy_(found[0])

    def add(self, token: int, loss: float) -> None:
        """Continue the text by a token."""
        self.tokens.append(token)
        self.losses.append(loss)
        ended = token in self.ends or not math.isfinite(loss)
        full = len(self.tokens) == self.question.max_new_tokens
        self.done = ended or full or any(stop in self._said() for stop in self.question.stop)

    def _said(self) -> str:
        told = self.tokens[:-1] if self.tokens[-1] in self.ends else self.tokens
        return self.decode(told)

    def answer(self) -> Generated:
        """Return the whole text, cut at the first stop string."""
        text = self._said()
        for stop in self.question.stop:
            text = text.partition(stop)[0]
        return Generated(text, tuple(self.tokens), tuple(self.losses))


def alone(model: Any, question: Generate, decode: Decode) -> Generated:
    """Return a text by the model's own forward and cache: the prompt at once, then every token."""
    draft = Generation.of(model, question, decode)
    tokens, cache = list(question.tokens), None
    while not draft.done:
        inputs = torch.tensor([tokens], device=model.device)
        # Without a cache a model makes one of the kind that its layers need.
        out = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        exact, cache = out.logits[0, -1:].float(), out.past_key_values
        draft.penalize(exact[0])
        best = most_likely(exact)
        draft.add(int(best), float(losses(exact, best, best)))
        tokens = [draft.newest]
    return draft.answer()
