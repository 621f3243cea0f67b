"""A small HTTP server that runs a tiny model and speaks as vLLM, SGLang, llama.cpp or OpenAI."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import ropewalk as rw
from ropewalk.harness.patching.patch import patched
from tests.tiny import tiny_tokenizer

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "server": "someone"}
Reply = tuple[int, Any]
Change = Callable[[int, str, dict[str, Any]], Reply | None]


class Engine:
    """What computes: a model under a scaling, by whole forwards and a plain loop."""

    def __init__(
        self, folder: Path, style: str, scaling: str = "yarn:factor=5", *, limit: int = 4096,
        cache: str = "fp8",
    ) -> None:  # fmt: skip
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer, self.style, self.limit = tiny_tokenizer(), style, limit
        self.cache = f'vllm:cache_config_info{{cache_dtype="{cache}",a="b"}} 1.0'
        target = rw.export(folder, scaling=scaling, length="5x", to="transformers").target
        self.rotation, self.lock = target.rotation, threading.Lock()

    def logs(self, tokens: list[int]) -> torch.Tensor:
        """Return the log-probabilities behind every token, (n, vocabulary)."""
        with self.lock, torch.inference_mode(), patched(self.model, self.rotation):
            return self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)

    def generate(
        self, prompt: list[int], new: int, stop: list[str], only: int | None, ends: set[int]
    ) -> list[tuple[int, float, int]]:
        """Return tokens, each with its log-probability and the likeliest one."""
        found: list[tuple[int, float, int]] = []
        while len(found) < new:
            row = self.logs([*prompt, *(token for token, _, _ in found)])[-1]
            best = int(row.argmax())
            token = best if only is None else only
            found.append((token, float(row[token]), best))
            text = self.tokenizer.decode([token for token, _, _ in found])
            if token in ends or any(word in text for word in stop):
                break
        return found

    def __call__(self, path: str, body: dict[str, Any]) -> Reply:
        """Return the reply of a path."""
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            model = {"id": "tiny", "owned_by": OWNERS[self.style]}
            if self.style in ("vllm", "sglang"):
                model["max_model_len"] = self.limit
            return 200, {"data": [model]}
        known: Mapping[str, Callable[..., Reply]] = {
            "vllm": {
                "/version": lambda _: (200, {"version": "0.99"}),
                "/metrics": lambda _: (200, self.cache),
                "/v1/completions": self.completion,
            },
            "sglang": {
                "/get_server_info": lambda _: (200, {"version": "0.98", "max_running_requests": 3}),
                "/generate": self.sglang,
            },
            "llamacpp": {"/props": self.props, "/completion": self.llama},
            "server": {"/v1/completions": self.completion},
        }[self.style]  # type: ignore[assignment]
        return known[path](body) if path in known else (404, {"error": {"message": "no such path"}})

    def props(self, _: Any) -> Reply:
        settings = {"n_ctx": self.limit}
        return 200, {
            "build_info": "b1", "total_slots": 2, "default_generation_settings": settings
        }  # fmt: skip

    def completion(self, body: dict[str, Any]) -> Reply:
        """Answer as the completions API does, with the options of vLLM where it is one."""
        prompt, new = body["prompt"], body["max_tokens"]
        vllm = self.style == "vllm"
        if vllm and len(prompt) + new > self.limit:
            return 400, {"error": {"message": f"at most {self.limit} tokens"}}
        (only,) = body.get("allowed_token_ids") or [None]
        ends = set() if body.get("ignore_eos") else {0}
        found = self.generate(prompt, new, body.get("stop") or [], only, ends)
        text = self.tokenizer.decode([token for token, _, _ in found], skip_special_tokens=True)

        def name(token: int) -> str:
            named = vllm and body.get("return_tokens_as_token_ids")
            return f"token_id:{token}" if named else self.tokenizer.decode([token])

        values: list[Any] = [value for _, value, _ in found]
        tokens, tops = [t for t, _, _ in found], list[Any]()
        choice: dict[str, Any] = {"text": text}
        if body.get("echo"):
            logs = self.logs(prompt)[:-1]
            own = logs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
            tops = [None, *({name(int(row.argmax())): float(row.max())} for row in logs)]
            values, tokens = [None, *own, *values], [*prompt, *tokens]
        choice["logprobs"] = {
            "tokens": [name(token) for token in tokens], "token_logprobs": values,
            "top_logprobs": tops,
        }  # fmt: skip
        if vllm and body.get("prompt_logprobs") is not None:
            rows: list[Any] = [None]
            for token, row in zip(prompt[1:], self.logs(prompt)[:-1], strict=True):
                best, rank = int(row.argmax()), int((row > row[token]).sum()) + 1
                entry = {str(token): {"logprob": float(row[token]), "rank": rank}}
                rows.append(entry | {str(best): {"logprob": float(row[best]), "rank": 1}})
            choice["prompt_logprobs"] = rows
        return 200, {"choices": [choice]}

    def sglang(self, body: dict[str, Any]) -> Reply:
        tokens, options = body["input_ids"], body["sampling_params"]
        new, stop = options["max_new_tokens"], options.get("stop") or []
        found = self.generate(tokens, new, stop, None, {0})
        start = body["logprob_start_len"] % (len(tokens) + 1)
        logs = self.logs(tokens)
        rows = [
            [None if at == start else float(logs[at - 1, tokens[at]]), tokens[at], None]
            for at in range(start, len(tokens))
        ]
        tops = [
            None if at == start else [[float(logs[at - 1].max()), int(logs[at - 1].argmax()), None]]
            for at in range(start, len(tokens))
        ]
        return 200, {
            "meta_info": {
                "prompt_tokens": len(tokens),
                "input_token_logprobs": rows,
                "input_top_logprobs": tops,
                "output_token_logprobs": [[value, token, None] for token, value, _ in found],
                "output_top_logprobs": [[[value, best, None]] for _, value, best in found],
            }
        }

    def llama(self, body: dict[str, Any]) -> Reply:
        ((only, _),) = body.get("logit_bias") or [[None, None]]
        stop = body.get("stop") or []
        found = self.generate(body["prompt"], body["n_predict"], stop, only, {0})
        listed = [{"id": token, "logprob": value} for token, value, _ in found]
        tokens = [token for token, _, _ in found]
        return 200, {"tokens": tokens, "completion_probabilities": listed}


class Quiet(ThreadingHTTPServer):
    """Reports no client that went away."""

    def handle_error(self, *_: Any) -> None:
        """Say nothing: stderr is what a test reads of the command."""


def command(ids: str) -> None:
    """Serve as ``vllm serve FOLDER --port N --max-model-len N`` until the process is ended."""
    words = sys.argv[1:]
    with Path(ids).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if "--fail" in words:
        sys.exit("cannot --fail")
    port, limit = (int(words[words.index(w) + 1]) for w in ("--port", "--max-model-len"))
    with serving(Engine(Path(words[1]), "vllm", "native", limit=limit), port=port):
        threading.Event().wait()


@contextmanager
def serving(
    engine: Callable[[str, dict[str, Any]], Reply], change: Change | None = None, port: int = 0
) -> Iterator[str]:
    """Run a server and yield its address.

    ``change`` gets the number of the POST, its path and body, and may reply in the engine's place;
    a status of 0 closes the connection without a reply.
    """
    count = iter(range(10**6))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: dict[str, Any]) -> None:
            other = change(next(count), self.path, body) if change and body else None
            status, content = other or engine(self.path, body)
            if not status:
                self.connection.close()
                return
            self.send_response(status)
            self.end_headers()
            text = content if isinstance(content, str) else json.dumps(content)
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with Quiet(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
