"""Ask a running server for the log-probabilities of a text: by echo, or token by token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException
from threading import Thread
from typing import Annotated, Any, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from harness.errors import UserError, reason

SECONDS, QUICK_SECONDS = 600.0, 60.0  # for all requests to a server together
MOST = 64 * 2**20  # bytes of a reply
PLACES, LISTED = 16, 2000  # of llama.cpp: positions that are asked, and tokens listed at each
LogProb = Annotated[FiniteFloat, Field(le=0.01)]  # of 0 and less, but for rounding
Reply = TypeVar("Reply", bound=BaseModel)
Say = Callable[[str], None]


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
        """Return the loss of each token of a prompt, None where there is none, as of the first."""
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


class _Unknown(Exception):
    """The server does not know a path or an option."""


class _Slow(UserError):
    """The time for all requests is over."""


class _Stay(HTTPRedirectHandler):
    """Follows no redirect: the text would go to a server that the user did not name."""

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
        except _Unknown as error:
            raise UserError(
                f"--server {url} does not name a model (/v1/models): {error}."
            ) from None

    def losses(
        self, text: str, tokens: Sequence[int], say: Say = lambda _: None
    ) -> tuple[dict[int, float], int | None]:
        """Return the loss of target tokens by their place, and how many tokens the server counts.

        The text is sent as a user sends it, so its own tokenizer reads it; llama.cpp gives no
        log-probabilities of a prompt, so there some places are asked one by one, in ``tokens``.
        """
        asked = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        say("Asking the server for the losses of a text")
        for more in ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}):
            try:
                reply = self._call("/v1/completions", _Completion, {**asked, **more})
            except _Unknown:
                continue
            if found := reply.choices[0].losses():
                return {at: nll for at, nll in enumerate(found) if nll is not None}, len(found)
        return self._one_by_one(tokens, say), None

    def _one_by_one(self, tokens: Sequence[int], say: Say) -> dict[int, float]:
        """Return the losses of some tokens, each the next one of a prompt that ends before it.

        Where the server's own next token is the first byte of a letter, it lists none.
        """
        found: dict[int, float] = {}
        for step in range(1, PLACES + 1):
            if step % 4 == 1:
                say(f"Asking the server for the token at {PLACES} places, {step - 1} are done")
            at = max(1, step * (len(tokens) - 1) // PLACES)  # nothing precedes the first
            asked = {
                "prompt": list(tokens[:at]), "n_predict": 1, "n_probs": LISTED, "temperature": 0.0,
                "cache_prompt": True, "ignore_eos": True,
            }  # fmt: skip
            try:
                reply = self._call("/completion", _Next, asked)
            except _Unknown:
                break
            except _Slow:
                if not found:
                    raise
                break
            listed = [one for place in reply.completion_probabilities[:1]
                      for one in place.top_logprobs]  # fmt: skip
            likely = {one.id: -one.logprob for one in listed if one.logprob is not None}
            if tokens[at] in likely:
                found[at] = likely[tokens[at]]
        if not found:
            raise UserError(
                f"--server {self.url} gives no log-probabilities, neither of a prompt (echo, "
                "prompt_logprobs) nor of the next token (llama.cpp's /completion)."
            )
        return found

    def _call(self, path: str, kind: type[Reply], asked: dict[str, Any] | None = None) -> Reply:
        """Return a reply of this kind; raise _Unknown where the server does not know the request.

        Raises UserError for any other reply, and where the time for all requests is over.
        """
        data = None if asked is None else json.dumps(asked).encode()
        try:
            request = Request(self.url + path, data, {"Content-Type": "application/json"})
            body = self._timed(request)
        except HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                told = reason(error.headers.get("Location", "nowhere"))
                raise UserError(
                    f"--server {self.url} redirects to {told}; give that address if you mean it."
                ) from None
            raise _Unknown(reason(error)) from None
        except (HTTPException, OSError, ValueError) as error:
            raise UserError(f"--server {self.url} does not answer: {reason(error)}.") from None
        try:
            return kind.model_validate(json.loads(body, parse_constant=_refused))
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
        except (ValueError, RecursionError) as error:
            why = reason(error)
        raise UserError(
            f"--server {self.url}{path} replies with something else than expected: {why}."
        )

    def _timed(self, request: Request) -> bytes:
        """Return the body of a reply; raise UserError where the time is over or it is too long.

        A thread waits for it: a server that sends one byte at a time would pass any time limit of
        a socket.
        """
        done: list[bytes | BaseException] = []
        thread = Thread(target=_fetch, args=(request, self.left, done), daemon=True)
        begun = time.monotonic()
        thread.start()
        thread.join(max(self.left, 0))
        self.left -= time.monotonic() - begun
        if not done or isinstance(done[0], TimeoutError):
            raise _Slow(
                f"--server {self.url} takes longer than the {self.limit:g} seconds that all its "
                "replies together may take."
            )
        if isinstance(done[0], BaseException):
            raise done[0]
        if len(done[0]) > MOST:
            raise UserError(f"--server {self.url} replies with more than {MOST // 2**20} MiB.")
        return done[0]


def _fetch(request: Request, seconds: float, done: list[bytes | BaseException]) -> None:
    """Append the body of a reply, or what was raised."""
    try:
        with build_opener(_Stay).open(request, timeout=max(seconds, 1e-3)) as reply:
            done.append(reply.read(MOST + 1))
    except Exception as error:  # noqa: BLE001  # the caller raises it
        done.append(error)


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of JSON")
