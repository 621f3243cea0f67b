"""Ask a running server for the log-probabilities of a text."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from ropewalk.harness.errors import UserError, foreign

log = logging.getLogger("ropewalk")
SECONDS, QUICK_SECONDS = 600.0, 60.0  # to wait for one reply
PLACES, LISTED = 16, 2000  # llama.cpp: positions asked for, and tokens listed at each


class Server:
    """A server and the name of the model that it serves."""

    def __init__(self, url: str, *, quick: bool = False) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"--server {url}: write its address, http://HOST:PORT.")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout = QUICK_SECONDS if quick else SECONDS
        models = self._call("/v1/models")
        with self._reading():
            self.model = models["data"][0]["id"]

    def losses(self, text: str, tokens: Sequence[int]) -> tuple[dict[int, float], int | None]:
        """Return the loss of target tokens by their place, and how many tokens the server counts.

        The text is sent as a user sends it, so the server's own tokenizer reads it. llama.cpp gives
        no log-probabilities of a prompt; there some places of ``tokens`` are asked one by one.
        """
        log.info("Asking the server for the losses of a text.")
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        count, logs = None, dict[int, Any]()
        for option in ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}):
            reply = self._call("/v1/completions", {**body, **option})
            with self._reading():
                listed = _of_prompt(reply["choices"][0]) if reply else []
                logs = {at: value for at, value in enumerate(listed) if value is not None}
            if logs:
                count = len(listed)
                break
        else:
            logs = self._one_by_one(tokens)
        with self._reading():
            losses = {at: -float(value) for at, value in logs.items()}
        if not losses or not all(map(math.isfinite, losses.values())):
            raise UserError(
                f"--server {self.url} gives no log-probabilities, neither of a prompt (echo, "
                "prompt_logprobs) nor of the next token (llama.cpp's /completion)."
            )
        return losses, count

    def _one_by_one(self, tokens: Sequence[int]) -> dict[int, Any]:
        """Return log-probabilities of some tokens, each the next one of a prompt that ends there.

        Where the server's own next token is the first byte of a character, it lists none.
        """
        logs: dict[int, Any] = {}
        for step in range(1, PLACES + 1):
            at = max(1, step * (len(tokens) - 1) // PLACES)  # nothing precedes the first
            body = {
                "prompt": list(tokens[:at]),
                "n_predict": 1,
                "n_probs": LISTED,
                "temperature": 0.0,
                "cache_prompt": True,
                "ignore_eos": True,
            }
            reply = self._call("/completion", body)
            if reply is None:
                break
            with self._reading():
                places = reply.get("completion_probabilities") or [{}]
                rows = places[0].get("top_logprobs", [])
                for row in rows:
                    if row["id"] == tokens[at]:
                        logs[at] = row["logprob"]
        return logs

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of a reply; None where the server does not know a path or an option."""
        method = "GET" if body is None else "POST"
        with foreign(f"--server {self.url} does not answer"):
            reply = httpx2.request(method, self.url + path, json=body, timeout=self.timeout)
            if body is not None and reply.is_error:
                return None
            return reply.raise_for_status().json()

    def _reading(self) -> Any:
        return foreign(f"--server {self.url} sends an unexpected reply")


def _of_prompt(choice: Mapping[str, Any]) -> list[Any]:
    """Return the log-probability of each token of a prompt, None where there is none."""
    if echoed := (choice.get("logprobs") or {}).get("token_logprobs"):
        return list(echoed[:-1])
    rows = choice.get("prompt_logprobs") or ()  # vLLM lists the prompt's own token first
    return [next(iter(row.values()))["logprob"] if row else None for row in rows]
