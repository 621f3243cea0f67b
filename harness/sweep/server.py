"""The backend of a served model: vLLM, SGLang, llama.cpp or another engine answers over HTTP.

Prompts are sent as token ids, so the tokens are those of the other backends. Config and tokenizer
are the checkpoint's own; its weights are only read to find out which scaling a server computes
(``identity.py``).
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic_core import from_json

from ropewalk.harness.engine.generation import cut, end_tokens, text_of
from ropewalk.harness.errors import UserError, foreign, reason
from ropewalk.harness.files import recorded
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.sweep.identity import Identification
from ropewalk.harness.sweep.plan import Batch, Failed, Item, Plan, Reply, open_model
from ropewalk.harness.sweep.record import machine
from ropewalk.harness.sweep.spec import Spec
from ropewalk.tasks.types import (
    Divergence,
    Generate,
    Generated,
    Loglikelihood,
    LoglikelihoodResponse,
    ModelRequest,
    ModelResponse,
)

log = logging.getLogger("ropewalk")
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # seconds before a request is sent again
SECONDS = 3600.0  # for one reply
FAULTS = 3  # requests in a row that get only errors of the server: it is lost
CONCURRENCY = 8  # requests at the same time, where an engine names no limit of its own
FEW = 16  # so many targets are generated, which reads the prefix cache
PLACES = 16  # of a text, whose losses are requested one by one where there are none of a prompt
UNEXPECTED = "sends an unexpected reply"
KEY = "ROPEWALK_API_KEY"  # the environment variable of a server's key
FORCED = 1e9  # the bias of a token in llama.cpp; its log-probabilities are those without a bias
Token = tuple[int, float | None]  # generated, and its log-probability where the engine gives it


class GoneError(UserError):
    """The server does not answer any more, or only with errors of its own."""


class Engine:
    """A running server, asked by what is common to the completions API of OpenAI.

    Attributes:
        name: the engine in a sentence; ``key``, in a label and in the keys of samples.
        model: the name of the model there.
        version: the engine's, "" where it does not tell.
        limit: the most tokens of a prompt and its continuation, None where it does not tell.
        slots: how many requests it computes at the same time, None where it does not tell.
        facts: what else it tells that numbers may depend on.
    """

    name, key = "the server", "server"
    tokenizer: Any = None
    http: httpx2.AsyncClient
    version, limit, slots = "", None, None
    faults = 0  # requests in a row that got only errors of the server

    def __init__(self, url: str, listed: Mapping[str, Any]) -> None:
        self.url, self.facts = url, dict[str, Any]()
        self.model = str(listed["data"][0]["id"])
        self.limit = listed["data"][0].get("max_model_len")
        self.describe()

    def describe(self) -> None:
        """Request what the engine tells of itself."""

    def get(self, path: str) -> httpx2.Response:
        """Return the reply to a path that only some engines know."""
        return httpx2.get(self.url + path, headers=headers(), timeout=60)

    async def post(self, path: str, **body: Any) -> Any:
        """Return a reply; send the request again while the server is busy or does not answer.

        Raises GoneError, which ends the run, where it does not answer any more, or several requests
        in a row only get its own errors; and UserError where this one does.
        """
        for wait in (*WAITS, None):
            lost = False
            try:
                reply = await self.http.post(self.url + path, json=body)
            except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:
                raise UserError(f"the server sent no reply in {SECONDS:,.0f} seconds.") from error
            except httpx2.TransportError as error:
                lost, fault = True, f"does not answer any more: {reason(error)}"
            else:
                if reply.status_code != 429 and not reply.is_server_error:
                    break
                fault = f"replies {reply.status_code} to every attempt: {_message(reply)}"
            if wait is None:
                self.faults += 1
                if not lost and self.faults < FAULTS:
                    raise UserError(f"the server {fault}")
                raise GoneError(
                    f"--server {self.url} {fault}. What was measured is kept; start it again, and "
                    "the same command continues."
                )
            await anyio.sleep(wait)
        self.faults = 0
        if reply.is_error:
            raise UserError(f"the server replied {reply.status_code}: {_message(reply)}")
        return from_json(reply.content)

    async def complete(self, tokens: Sequence[int], new: int, **more: Any) -> Any:
        """Return the only choice of a completion."""
        body = {"model": self.model, "prompt": list(tokens), "max_tokens": new, "temperature": 0}
        reply = await self.post("/v1/completions", **body | more)
        return reply["choices"][0]

    async def losses(self, request: Loglikelihood) -> LoglikelihoodResponse:
        """Return the losses of the targets, and the argmax at each and behind the last."""
        choice = await self.complete(request.tokens, 1, echo=True, logprobs=1)
        logs = choice["logprobs"]
        values, tops, texts = (logs[name] for name in ("token_logprobs", "top_logprobs", "tokens"))
        check_count(len(values) - 1, request)
        nll, argmax = [], []
        places = range(request.start, request.length)
        for token, place in zip(request.tokens[request.start :], places, strict=True):
            best = max(tops[place], key=tops[place].get)
            nll.append(-values[place])
            argmax.append(token if best == texts[place] else self.named(best, token))
        return LoglikelihoodResponse(tuple(nll), (*argmax, self.named(texts[-1])))

    async def text(self, request: Generate, penalty: float) -> tuple[str, Sequence[Token]]:
        """Return a greedy text, and its tokens where the engine gives them."""
        more = {"repetition_penalty": penalty} if penalty != 1 else {}
        stops = {"stop": list(request.stop)} if request.stop else {}
        choice = await self.complete(request.prompt, request.max_new_tokens, **more, **stops)
        return choice["text"], ()

    async def known_losses(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return the losses of a text by the place of the token, of some places at least."""
        response = await self.losses(Loglikelihood(tokens, 1, doc_id="text"))
        return dict(enumerate(response.nll, start=1))

    def named(self, text: str, target: int = -1) -> int:
        """Return the token that a reply names by its text, and never the target, which it is not.

        Any other stands for one that has no text of its own, as a part of a character.
        """
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return int(next(token for token in (*tokens, 0, 1) if token != target))

    async def answer(
        self, request: ModelRequest, checkpoint: Checkpoint
    ) -> LoglikelihoodResponse | Generated:
        """Return the response to a request; raise UserError where there is none."""
        needs = request.length + (not isinstance(request, Generate))
        if self.limit is not None and needs > self.limit:
            raise UserError(
                f"the server admits {self.limit:,} tokens, and this needs {needs:,}, the next one "
                "included; start it with a larger limit (vLLM: --max-model-len)."
            )
        with foreign(f"the server {UNEXPECTED}"):
            if isinstance(request, Loglikelihood):
                return await self.losses(request)
            assert isinstance(request, Generate)
            shipped = checkpoint.generation
            penalty = shipped.repetition_penalty if request.penalized else None
            text, listed = await self.text(request, penalty or 1.0)
            tokens = tuple(token for token, _ in listed)
            if tokens:
                text = text_of(tokens, end_tokens(shipped), checkpoint.decode)
            nll = [-log for _, log in listed if log is not None]
            losses = tuple(nll) if len(nll) == len(tokens) else ()
            return Generated(cut(text, request.stop), tokens, losses)


class Generating(Engine):
    """An engine that generates token ids, with their log-probabilities before any bias.

    Few targets are generated, which reads the prefix cache.
    """

    penalty = "repetition_penalty"  # the name of this setting

    async def generate(self, tokens: Sequence[int], new: int, **more: Any) -> list[Token]:
        """Return at most ``new`` greedy tokens; an end token may end them."""
        raise NotImplementedError

    async def forced(self, tokens: Sequence[int], token: int) -> float | None:
        """Return the log-probability of a token behind others."""
        raise NotImplementedError

    async def text(self, request: Generate, penalty: float) -> tuple[str, Sequence[Token]]:
        """Return a greedy text and its tokens."""
        more = {"stop": list(request.stop), self.penalty: penalty, "ignore_eos": False}
        return "", await self.generate(request.prompt, request.max_new_tokens, **more)

    async def prompt_losses(self, _: Loglikelihood) -> LoglikelihoodResponse:
        """Return the losses of a prompt; raise UserError where there are none."""
        raise UserError(
            f"{self.name}'s server gives no losses of a prompt; perplexity needs vLLM, SGLang, or "
            "this file as --model without --server."
        )

    async def losses(self, request: Loglikelihood) -> LoglikelihoodResponse:
        """Generate: at a mismatch the true token is appended, and generation goes on behind it."""
        targets = request.tokens[request.start :]
        if len(targets) > FEW:
            return await self.prompt_losses(request)
        nll, argmax = [], list[int]()
        while (done := len(argmax)) <= len(targets):
            known = request.tokens[: request.start + done]
            for token, logprob in await self.generate(known, len(targets) + 1 - done):
                argmax.append(token)
                if (place := len(argmax) - 1) == len(targets):
                    break
                if token != targets[place] or logprob is None:
                    before = request.tokens[: request.start + place]
                    logprob = await self.forced(before, targets[place])
                if logprob is None:
                    raise UserError(
                        f"{self.name} gives no probability of the target at position "
                        f"{request.start + place}, which is a part of a character."
                    )
                nll.append(-logprob)
                if token != targets[place]:
                    break
            if len(argmax) == done:
                raise UserError(f"{self.name} generates no token.")
        return LoglikelihoodResponse(tuple(nll), tuple(argmax))


class VLLM(Generating):
    """vLLM, which gives log-probabilities and ranks of a prompt."""

    name, key = "vLLM", "vllm"

    def describe(self) -> None:
        """Read the version, and the facts of the cache among the metrics."""
        self.version = self.get("/version").json()["version"]
        names = r'\b(cache_dtype|enable_prefix_caching)="(.*?)"'
        self.facts = dict(re.findall(names, self.get("/metrics").text))

    async def generate(self, tokens: Sequence[int], new: int, **more: Any) -> list[Token]:
        """Return greedy tokens; ``ignore_eos`` lets them go on behind an end token."""
        more = {"ignore_eos": True, "repetition_penalty": 1.0, **more}
        choice = await self.complete(
            tokens, new, logprobs=0, return_tokens_as_token_ids=True, **more
        )
        return _listed(choice["logprobs"])

    async def forced(self, tokens: Sequence[int], token: int) -> float | None:
        """Return the log-probability of the only token that is allowed."""
        return (await self.generate(tokens, 1, allowed_token_ids=[token]))[0][1]

    async def prompt_losses(self, request: Loglikelihood) -> LoglikelihoodResponse:
        """Return the losses of a prompt."""
        choice = await self.complete(
            request.tokens, 1, prompt_logprobs=1, logprobs=0, return_tokens_as_token_ids=True,
            repetition_penalty=1.0,
        )  # fmt: skip
        rows = choice["prompt_logprobs"]
        check_count(len(rows), request)
        targets = [str(token) for token in request.tokens[request.start :]]
        nll, argmax = [], []
        for token, row in zip(targets, rows[request.start :], strict=True):
            nll.append(-row[token]["logprob"])
            argmax.append(min(row, key=lambda token: row[token]["rank"]))
        ((following, _),) = _listed(choice["logprobs"])
        return LoglikelihoodResponse(tuple(nll), (*map(int, argmax), following))


class SGLang(Engine):
    """SGLang, whose own API gives log-probabilities from a position on."""

    name, key = "SGLang", "sglang"

    def describe(self) -> None:
        """Read the version, the limits and what numbers may depend on."""
        reply = self.get("/server_info")
        info = (self.get("/get_server_info") if reply.is_error else reply).json()
        self.version, self.slots = str(info.get("version", "")), info.get("max_running_requests")
        names = ("kv_cache_dtype", "chunked_prefill_size", "disable_radix_cache")
        self.facts = {name: info[name] for name in names if name in info}

    async def ask(self, tokens: Sequence[int], new: int, start: int = -1, **more: Any) -> Any:
        """Return what a reply says of its tokens."""
        reply = await self.post(
            "/generate", input_ids=list(tokens), return_logprob=True, logprob_start_len=start,
            top_logprobs_num=1,
            sampling_params={"temperature": 0, "max_new_tokens": new, "repetition_penalty": 1.0}
            | more,
        )  # fmt: skip
        return reply["meta_info"]

    async def losses(self, request: Loglikelihood) -> LoglikelihoodResponse:
        """Return the losses behind the token before the first target."""
        meta = await self.ask(request.tokens, 1, request.start - 1)
        check_count(meta["prompt_tokens"], request)
        targets = request.tokens[request.start :]
        rows = meta["input_token_logprobs"][-len(targets) :]
        tops = meta["input_top_logprobs"][-len(targets) :]
        if tuple(row[1] for row in rows) != tuple(targets):
            raise UserError("the server gives the losses of other tokens than were sent.")
        argmax = [top[0][1] for top in (*tops, *meta["output_top_logprobs"])]
        return LoglikelihoodResponse(tuple(-row[0] for row in rows), tuple(argmax))

    async def text(self, request: Generate, penalty: float) -> tuple[str, Sequence[Token]]:
        """Return a greedy text and its tokens."""
        more: dict[str, Any] = {"stop": list(request.stop), "repetition_penalty": penalty}
        meta = await self.ask(request.prompt, request.max_new_tokens, **more)
        return "", [(token, log) for log, token, *_ in meta["output_token_logprobs"]]


class LlamaCpp(Generating):
    """llama.cpp's server, which gives no losses of a prompt."""

    name, key, penalty = "llama.cpp", "llamacpp", "repeat_penalty"

    def describe(self) -> None:
        """Read the build, the slots and the tokens that each has room for."""
        props = self.get("/props").json()
        self.version, self.slots = props.get("build_info", ""), props.get("total_slots")
        self.limit = props["default_generation_settings"]["n_ctx"]

    async def generate(self, tokens: Sequence[int], new: int, **more: Any) -> list[Token]:
        """Return greedy tokens; of a part of a character it gives no log-probability."""
        reply = await self.post(
            "/completion", prompt=list(tokens), n_predict=new, temperature=0.0, n_probs=1,
            return_tokens=True, cache_prompt=True, repeat_last_n=len(tokens) + new,
            **{"repeat_penalty": 1.0} | more,
        )  # fmt: skip
        listed = reply.get("completion_probabilities") or []
        found = []
        for token in reply["tokens"]:
            given = listed.pop(0)["logprob"] if listed and listed[0]["id"] == token else None
            found.append((token, given))
        return found

    async def forced(self, tokens: Sequence[int], token: int) -> float | None:
        """Return the log-probability of a token that a bias makes the next one."""
        return (await self.generate(tokens, 1, logit_bias=[[token, FORCED]]))[0][1]

    async def known_losses(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return the losses at some places, each of the next token of a prompt."""
        places = {max(1, step * (len(tokens) - 1) // PLACES) for step in range(1, PLACES + 1)}
        logs = {at: await self.forced(tokens[:at], tokens[at]) for at in sorted(places)}
        return {at: -value for at, value in logs.items() if value is not None}


ENGINES = {engine.key: engine for engine in (VLLM, SGLang, LlamaCpp)}  # by who owns a model


def connect(url: str) -> Engine:
    """Return the engine at an address; raise UserError where none answers."""
    url = url.rstrip("/").removesuffix("/v1")
    with foreign(f"--server {url} does not answer"):
        reply = httpx2.get(f"{url}/v1/models", headers=headers(), timeout=60)
        listed = reply.raise_for_status().json()
    with foreign(f"--server {url} {UNEXPECTED}"):
        return ENGINES.get(listed["data"][0].get("owned_by"), Engine)(url, listed)


def headers() -> dict[str, str]:
    """Return the header of a server's key, where the environment has one."""
    return {"Authorization": f"Bearer {os.environ[KEY]}"} if os.environ.get(KEY) else {}


def check_count(count: int, request: Loglikelihood) -> None:
    """Raise UserError where a server gives losses of another number of tokens."""
    if count != request.length:
        raise UserError(
            f"the server gives losses of {count:,} tokens where {request.length:,} were sent."
        )


def _listed(logs: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of vLLM's completion, which are named token_id:NUMBER."""
    pairs = zip(logs["tokens"], logs["token_logprobs"], strict=True)
    return [(int(token.removeprefix("token_id:")), log) for token, log in pairs]


def _message(reply: httpx2.Response) -> str:
    """Return what a server says of an error."""
    try:
        content = reply.json()
        return reason(content.get("error", content)["message"])
    except (ValueError, AttributeError, TypeError, KeyError):
        return reason(reply.text)


def served(spec: Spec, engine: str) -> Checkpoint:
    """Open the config and the tokenizer of a served model, whose samples have keys of their own.

    Its dtype is the setting; auto is the engine's choice. More options of an engine, such as the
    numbers of its cache, may change its numbers too.
    """
    opened = open_model(spec.model_copy(update={"dtype": "auto"}), elsewhere="cpu")
    label = f"{opened.label}-{engine}"
    by = f"{engine} {spec.engine_args or ''}".strip()
    return replace(opened, label=label, served=by, dtype=spec.dtype, device=engine)


@contextmanager
def asking(engine: Engine, tokenizer: Any) -> Iterator[BlockingPortal]:
    """Yield a portal to an event loop in a thread, where an engine is asked."""
    engine.tokenizer, timeout = tokenizer, httpx2.Timeout(SECONDS, connect=10)
    limits = httpx2.Limits(max_connections=None)
    engine.http = httpx2.AsyncClient(headers=headers(), timeout=timeout, limits=limits)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(engine.http):
        yield portal


def ask_losses(engine: Engine, tokenizer: Any, tokens: Sequence[int]) -> dict[int, float]:
    """Return the losses of a text by the place of the token, of some places at least."""
    with asking(engine, tokenizer) as portal, foreign(f"--server {engine.url} {UNEXPECTED}"):
        return portal.call(engine.known_losses, tokens)


def described(engine: Engine, spec: Spec) -> dict[str, Any]:
    """Return what a session records of an engine, as it describes itself."""
    here = machine("cpu")
    # The folder of an engine that is started here has another name each time.
    named = {"model": recorded(engine.model)} if spec.server else {}
    return {
        **here,
        "device": f"{engine.name} {engine.version}".strip(),
        "versions": {**here["versions"], engine.name: engine.version},
        "server": {**named, "max_model_len": engine.limit, **engine.facts},
    }


def identified(engine: Engine, weights: Identification, plan: Plan, batch: Batch) -> dict[str, Any]:
    """Return what a session records of an engine, and what it computes.

    Raises UserError where that is not the rotation of the batch.
    """
    asked = partial(ask_losses, engine, plan.checkpoint.tokenizer)
    about = described(engine, plan.spec)
    computes = weights.check(engine.name, asked, plan, batch)
    about["server"]["computes"] = {batch.items[0].cell.scaling: computes}
    return about


def replies(
    engine: Engine, plan: Plan, items: Sequence[Item], concurrency: int
) -> Iterator[tuple[Item, Reply]]:
    """Yield the replies to all requests, so many at the same time, as they come.

    Raises GoneError where the server does not answer any more.
    """

    async def reply(request: ModelRequest, room: anyio.Semaphore) -> Reply:
        async with room:
            began = time.perf_counter()
            outcome: ModelResponse | Failed
            try:
                outcome = await engine.answer(request, plan.checkpoint)
            except GoneError:
                raise
            except UserError as error:
                outcome = Failed(str(error))
            return Reply(outcome, time.perf_counter() - began, 0.0)

    with asking(engine, plan.checkpoint.tokenizer) as portal:
        room = portal.call(anyio.Semaphore, concurrency)
        futures: dict[Future[Reply], Item] = {}
        for item in items:
            (request,) = item.question.model_requests
            futures[portal.start_task_soon(reply, request, room)] = item
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


class Served:
    """The backend of one running server."""

    def __init__(self, spec: Spec) -> None:
        assert spec.server is not None
        self.engine = connect(spec.server)
        self.workers = spec.concurrency or self.engine.slots or CONCURRENCY
        self.machines = described(self.engine, spec)

    def open(self, spec: Spec) -> Checkpoint:
        """Open the config and the tokenizer of the model that is served."""
        return served(spec, self.engine.key)

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Yield the replies to all requests; raise UserError for what no server can answer."""
        check(work)
        rotations = {cell.frequencies for cell in plan.cells if cell.rotation is not None}
        if len(plan.methods) > 1 or len(rotations) > 1:
            labels = ", ".join(method.label for method in plan.methods)
            raise UserError(
                f"a server has one scaling for all lengths, and {labels} has several: name one "
                "with a fixed factor, such as yarn:factor=4, or one --length."
            )
        (batch,) = work  # of one rotation
        self.machines = identified(self.engine, Identification(), plan, batch)
        yield from replies(self.engine, plan, batch.items, self.workers)


def check(work: Sequence[Batch]) -> None:
    """Raise UserError for what is measured on weights alone."""
    for batch in work:
        for cell, request in batch.items:
            if isinstance(request, Divergence):
                raise UserError(
                    f"{cell.task} needs the weights here; leave it out where a server measures."
                )
            if batch.rotation.stateful:
                raise UserError(
                    f"{cell.scaling} changes with the longest input that a server has read, so its "
                    "numbers depend on their order; name the form of one length, such as "
                    "dynamic_ntk:factor=4."
                )
