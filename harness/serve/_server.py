"""Ask a running server for the log-probabilities of a text, and compare them with ours."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Annotated, Any, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import torch
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.methods import Finding

SECONDS, QUICK_SECONDS = 600.0, 60.0  # for all requests to a server together
MAX_BYTES = 64 * 2**20  # of a reply
PLACES, LISTED = 16, 2000  # llama.cpp: positions asked for, and tokens listed at each
LogProb = Annotated[FiniteFloat, Field(le=0.01)]  # at most 0, but for rounding
Reply = TypeVar("Reply", bound=BaseModel)
Say = Callable[[str], None]
OTHER_START = " with"  # what follows a method's name where the text has another first token
# The mean difference of a loss in nats that a server's rounding and ours cause. In SmolLM2-135M,
# bfloat16 alone causes 0.03 to 0.05 with weights in four bits, llama.cpp's 8-bit products 0.04.
CLOSE = {torch.float32: 0.05, torch.float16: 0.05, torch.bfloat16: 0.12}


class _Model(BaseModel):
    id: str = Field(max_length=1000)


class _Models(BaseModel):
    """A reply of /v1/models."""

    data: list[_Model] = Field(min_length=1)


class _Listed(BaseModel):
    logprob: LogProb


class _Echoed(BaseModel):
    token_logprobs: list[LogProb | None] | None = None


class _Choice(BaseModel):
    logprobs: _Echoed | None = None
    prompt_logprobs: list[dict[str, _Listed] | None] | None = None

    def losses(self) -> list[float | None]:
        """Return the loss of each token of a prompt, None where there is none."""
        if self.logprobs is not None and self.logprobs.token_logprobs:
            return [None if one is None else -one for one in self.logprobs.token_logprobs[:-1]]
        # vLLM lists the prompt's own token first.
        listed = [next(iter((one or {}).values()), None) for one in self.prompt_logprobs or ()]
        return [None if one is None else -one.logprob for one in listed]


class _Completion(BaseModel):
    """A reply of /v1/completions."""

    choices: list[_Choice] = Field(min_length=1)


class _Token(BaseModel):
    id: int
    logprob: LogProb | None


class _Place(BaseModel):
    top_logprobs: list[_Token] = []


class _Next(BaseModel):
    """A reply of llama.cpp's /completion."""

    completion_probabilities: list[_Place] = []

    def loss(self, token: int) -> float | None:
        """Return the loss of a token that may come next, None where it is not listed."""
        listed = [one for place in self.completion_probabilities[:1] for one in place.top_logprobs]
        logs = {one.id: one.logprob for one in listed}
        return None if (log := logs.get(token)) is None else -log


class _UnknownError(Exception):
    """The server does not know a path or an option."""


class _SlowError(UserError):
    """The time for all requests is over."""


class _NoRedirect(HTTPRedirectHandler):
    """Follow no redirect: the text would go to a server that the user did not name."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Server:
    """A server and the name of the model that it serves; all requests share one time limit."""

    def __init__(self, url: str, *, quick: bool = False) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"--server {url}: write its address, http://HOST:PORT.")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.limit = self.left = QUICK_SECONDS if quick else SECONDS
        try:
            self.model = self._call("/v1/models", _Models).data[0].id
        except _UnknownError as error:
            raise UserError(
                f"--server {url} does not name a model (/v1/models): {error}."
            ) from None

    def losses(
        self, text: str, tokens: Sequence[int], say: Say = lambda _: None
    ) -> tuple[dict[int, float], int | None]:
        """Return the loss of target tokens by their place, and how many tokens the server counts.

        The text is sent as a user sends it, so the server's own tokenizer reads it. llama.cpp gives
        no log-probabilities of a prompt; there some places of ``tokens`` are asked one by one.
        """
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        say("Asking the server for the losses of a text")
        for option in ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}):
            try:
                reply = self._call("/v1/completions", _Completion, {**body, **option})
            except _UnknownError:
                continue
            losses = reply.choices[0].losses()
            if known := {at: nll for at, nll in enumerate(losses) if nll is not None}:
                return known, len(losses)
        return self._one_by_one(tokens, say), None

    def _one_by_one(self, tokens: Sequence[int], say: Say) -> dict[int, float]:
        """Return the losses of some tokens, each the next one of a prompt that ends before it.

        Where the server's own next token is the first byte of a character, it lists none.
        """
        losses: dict[int, float] = {}
        for step in range(1, PLACES + 1):
            if step % 4 == 1:
                say(f"Asking the server for the token at {PLACES} places, {step - 1} are done")
            at = max(1, step * (len(tokens) - 1) // PLACES)  # nothing precedes the first
            body = {
                "prompt": list(tokens[:at]),
                "n_predict": 1,
                "n_probs": LISTED,
                "temperature": 0.0,
                "cache_prompt": True,
                "ignore_eos": True,
            }
            try:
                reply = self._call("/completion", _Next, body)
            except _UnknownError:
                break
            except _SlowError:
                if not losses:
                    raise
                break
            if (loss := reply.loss(tokens[at])) is not None:
                losses[at] = loss
        if not losses:
            raise UserError(
                f"--server {self.url} gives no log-probabilities, neither of a prompt (echo, "
                "prompt_logprobs) nor of the next token (llama.cpp's /completion)."
            )
        return losses

    def _call(self, path: str, kind: type[Reply], body: dict[str, Any] | None = None) -> Reply:
        """Return a reply of this kind; raise _UnknownError where the server rejects the request.

        Raises UserError for any other reply, and where the time for all requests is over.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(self.url + path, data, {"Content-Type": "application/json"})
            reply = self._read(request)
        except HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                other = reason(error.headers.get("Location", "nowhere"))
                raise UserError(
                    f"--server {self.url} redirects to {other}; give that address if you mean it."
                ) from None
            raise _UnknownError(reason(error)) from None
        except (HTTPException, OSError, ValueError) as error:
            raise UserError(f"--server {self.url} does not answer: {reason(error)}.") from None
        try:
            return kind.model_validate(json.loads(reply, parse_constant=_reject))
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
        except (ValueError, RecursionError) as error:
            why = reason(error)
        raise UserError(f"--server {self.url}{path} sends an unexpected reply: {why}.")

    def _read(self, request: Request) -> bytes:
        """Return the body of a reply; raise UserError where it takes too long or is too long."""
        began, body = time.monotonic(), bytearray()
        try:
            with build_opener(_NoRedirect).open(request, timeout=max(self.left, 1e-3)) as reply:
                while part := reply.read1(2**16):
                    body += part
                    if len(body) > MAX_BYTES:
                        raise UserError(
                            f"--server {self.url} replies with more than {MAX_BYTES // 2**20} MiB."
                        )
                    if time.monotonic() - began > self.left:
                        raise TimeoutError
        except OSError as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise _SlowError(
                    f"--server {self.url} takes longer than the {self.limit:g} seconds that all "
                    "its replies together may take."
                ) from None
            raise
        finally:
            self.left -= time.monotonic() - began
        return bytes(body)


def _reject(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of JSON")


def server_finding(
    method: str,
    known: Mapping[str, Mapping[int, float]],
    theirs: Mapping[int, float],
    counts: tuple[int, int | None],
    dtype: torch.dtype = torch.float32,
) -> Finding:
    """Return whether a server computes the ``method``, or else what, and where losses diverge.

    ``known`` are our losses by place, for the method and for what explains other numbers; where
    another of these is as close, the finding is a note. ``counts`` are the numbers of tokens that
    we and the server read, ``dtype`` is that of our forward.
    """
    ours, (count, other) = known[method], counts
    if other is not None and other not in {len(k) for k in known.values()} | {count}:
        text = f"it reads {other} tokens where the model's tokenizer has {count}: other tokens"
        return Finding("server", "failed", text)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return Finding("server", "failed", "it gives no log-probability of a token of the text")
    # A mean of few tokens scatters: by the allowed difference itself over the root of their number.
    close = CLOSE.get(dtype, 0.12) * (1 + 2 / math.sqrt(len(shared)))
    differences = {name: _difference(losses, theirs) for name, losses in known.items()}
    own = differences[method]
    best = min(differences, key=lambda name: (differences[name], name != method))
    if own <= close and own <= 2 * differences[best] + 1e-3:
        text = (
            f"{method}: the losses of {len(shared)} tokens differ by {own:.2g} nats on average (at "
            f"most {close:.2g} is allowed)"
        )
        near = [
            name
            for name, difference in differences.items()
            if difference <= 2 * own + 1e-3 and _difference(known[name], ours)
        ]
        # The same rotation with another first token is not another scaling.
        others = [name for name in near if _difference(known[name.partition(OTHER_START)[0]], ours)]
        if near and not others:
            text += "; this text cannot tell whether it reads a begin token"
        if others:
            text += f", and those of {', '.join(others)} are as close: this text cannot tell which"
        return Finding("server", "note" if others else "passed", text)
    gaps = {at: abs(ours[at] - theirs[at]) for at in shared}
    first = next(at for at in shared if gaps[at] >= min(2 * close, max(gaps.values())))
    text = (
        f"its losses differ from {method} by {own:.2g} nats on average (at most {close:.2g} is "
        f"allowed), first at token {first} ({theirs[first]:.3f}, measured {ours[first]:.3f})"
    )
    explained = best != method and differences[best] <= close
    text += f"; they match those of {best}" if explained else "; no known cause explains them"
    return Finding("server", "failed", text)


def _difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return the mean absolute difference of the losses at places that both have."""
    shared = ours.keys() & theirs.keys()
    if not shared:
        return math.inf
    return sum(abs(ours[at] - theirs[at]) for at in shared) / len(shared)
