"""What lm-eval would give the model, as questions: its own code makes the tokens."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from types import SimpleNamespace
from typing import Any

from tasks.types import Generate, Loglikelihood, ModelRequest

ROOM = 2**40  # tokens; more than any prompt, so that nothing is cut
# What is left of a task's generation settings where the answer is greedy.
GREEDY = {"attention_mask", "do_sample", "temperature", "top_p", "top_k", "min_p"}


def asker(tokenizer: Any, length: int) -> Callable[[Any], tuple[ModelRequest, ...]]:
    """Return a function from a request of lm-eval to its questions.

    A rolling text has windows of ``length`` tokens, the last target included; lm-eval, whose
    windows end before it, has the same with a ``max_length`` of one less.
    """
    lm = _class()(tokenizer)

    def questions(request: Any) -> tuple[ModelRequest, ...]:
        rolling = request.request_type == "loglikelihood_rolling"
        if lm.prefix_token_id is None and (rolling or not request.args[0]):
            message = "a text from its first token on needs a begin or an end token before it"
            raise ValueError(f"{message}, and the tokenizer has neither")
        lm.room, lm.asked = length - 1 if rolling else ROOM, []
        getattr(lm, request.request_type)([request], disable_tqdm=True)
        return tuple(lm.asked)

    questions.lm = lm  # type: ignore[attr-defined]
    return questions


@cache
def _class() -> Any:
    """Return HFLM, lm-eval's model of transformers, that notes its inputs and computes nothing."""
    from lm_eval.models.huggingface import HFLM

    class Noting(HFLM):  # type: ignore[misc]
        room = ROOM

        def __init__(self, tokenizer: Any) -> None:
            model = SimpleNamespace(device="cpu", config=SimpleNamespace(model_type="llama"))
            super().__init__(pretrained=model, tokenizer=_own(tokenizer), batch_size=1)
            self.asked: list[ModelRequest] = []

        @property
        def max_length(self) -> int:
            return self.room

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            for _, context, targets in requests:
                tokens = [*context, *targets]
                self.asked.append(Loglikelihood(tokens, len(context), doc_id="request"))
            return [(0.0, False)] * len(requests)

        def _model_generate(
            self, context: Any, max_length: int, stop: list[str], **options: Any
        ) -> Any:
            if options.get("do_sample") or set(options) - GREEDY:
                raise ValueError(f"its answers are not greedy: {_told(options)}")
            (tokens,) = context.tolist()
            new, stops = max_length - len(tokens), tuple(filter(None, stop))
            question = Generate(tokens, new, stops, doc_id="request")
            self.asked.append(question)
            return context

    return Noting


def _own(tokenizer: Any) -> Any:
    """Return a copy, which may get a padding token; HFLM decodes an end token where none is."""
    own = deepcopy(tokenizer)
    decode = own.decode
    own.decode = lambda tokens, **options: None if tokens is None else decode(tokens, **options)
    return own


def _told(options: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items() if k != "attention_mask")
