"""Ask a running server for the log-probabilities of a text: by echo, or token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from harness.errors import UserError, reason

SECONDS = 600.0
MOST = 64 * 2**20  # bytes of an answer
PLACES, LISTED = 16, 2000  # of llama.cpp: positions that are asked, and tokens listed at each
STRANGE = (KeyError, IndexError, TypeError, ValueError, AttributeError)  # an answer of other form


class Server:
    """A server and the name of the model that it serves."""

    def __init__(self, url: str) -> None:
        """Connect; raise UserError where nothing that serves a model answers."""
        if not url.startswith(("http://", "https://")):
            message = f"--server {url}: write its address, http://HOST:PORT."
            raise UserError(message)
        self.url = url.rstrip("/").removesuffix("/v1")
        try:
            self.model = str(self._call("/v1/models")["data"][0]["id"])
        except (HTTPError, *STRANGE) as error:
            message = f"--server {url} does not name a model (/v1/models): {reason(error)}."
            raise UserError(message) from None

    def losses(self, text: str, tokens: Sequence[int]) -> tuple[dict[int, float], int | None]:
        """Return the loss of target tokens by their place, and how many tokens the server counts.

        The text is sent as a user sends it, so its own tokenizer reads it; llama.cpp gives no
        log-probabilities of a prompt, so there some places are asked one by one, in ``tokens``.
        """
        asked = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        for more in ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}):
            try:
                found = _of_prompt(self._call("/v1/completions", {**asked, **more})["choices"][0])
            except (HTTPError, *STRANGE):
                continue
            if found:
                return {at: nll for at, nll in enumerate(found) if nll is not None}, len(found)
        return self._one_by_one(tokens), None

    def _one_by_one(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return the losses of some tokens, each the next one of a prompt that ends before it.

        Where the server's own next token is the first byte of a letter, it lists none.
        """
        found = {}
        for step in range(1, PLACES + 1):
            at = max(1, step * (len(tokens) - 1) // PLACES)  # nothing comes before the first
            asked = {
                "prompt": list(tokens[:at]), "n_predict": 1, "n_probs": LISTED, "temperature": 0.0,
                "cache_prompt": True, "ignore_eos": True,
            }  # fmt: skip
            try:
                first = self._call("/completion", asked).get("completion_probabilities") or [{}]
                listed = first[0].get("top_logprobs", ())
                likely = {one["id"]: -float(one["logprob"]) for one in listed}
            except (HTTPError, *STRANGE):
                break
            if tokens[at] in likely:
                found[at] = likely[tokens[at]]
        if not found:
            message = (
                f"--server {self.url} gives no log-probabilities, neither of a prompt (echo, "
                "prompt_logprobs) nor of the next token (llama.cpp's /completion)."
            )
            raise UserError(message)
        return found

    def _call(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        data = None if asked is None else json.dumps(asked).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return json.loads(answer.read(MOST))
        except HTTPError:
            raise
        except (URLError, HTTPException, OSError, ValueError) as error:
            message = f"--server {self.url} does not answer: {reason(error)}."
            raise UserError(message) from None


def _of_prompt(choice: dict[str, Any]) -> list[float | None]:
    """Return the loss of each token of a prompt, None where there is none, as of the first."""
    echoed = (choice.get("logprobs") or {}).get("token_logprobs")
    if echoed:
        return [None if one is None else -float(one) for one in echoed[:-1]]
    listed = choice.get("prompt_logprobs") or []
    return [None if not one else -float(_chosen(one)) for one in listed]


def _chosen(one: dict[str, Any]) -> float:
    """Return the log-probability of the prompt's own token: vLLM lists it first."""
    first = next(iter(one.values()))
    return float(first["logprob"] if isinstance(first, dict) else first)
