"""Start an engine for each scaling with the line that ``export`` prints, and measure there."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import httpx2

from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.plugins import load
from ropewalk.harness.serve._export import Export, choose, write
from ropewalk.harness.serve._parameters import Target
from ropewalk.harness.sweep.identity import Identification
from ropewalk.harness.sweep.plan import Backend, Batch, Item, Plan, Reply
from ropewalk.harness.sweep.progress import describe
from ropewalk.harness.sweep.server import (
    CONCURRENCY,
    Engine,
    GoneError,
    Served,
    check,
    connect,
    identified,
    replies,
    served,
)
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.sweep.this_process import ThisProcess

log = logging.getLogger("ropewalk")
# vLLM holds tokens x vocabulary numbers for the losses of a prompt, outside of what it reserves.
MORE = {"vllm": ("--max-num-batched-tokens", "2048")}
# The token behind the last one is requested, so the limit is one more than the longest length.
LONGER = ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
GRACE = 20.0  # seconds for an engine that is told to end
LINES = 8  # of its log, where it fails


@contextmanager
def backend_for(spec: Spec) -> Iterator[Backend]:
    """Open the backend of a sweep: a server, engines that are started, Ray, or this process."""
    if spec.server:
        yield Served(spec)
    elif spec.engine:
        with ExitStack() as running:
            yield Launched(spec, running)
    elif spec.workers or spec.cluster:
        from ropewalk.harness.sweep.ray import workers  # few need Ray

        with workers(spec) as backend:
            yield backend
    else:
        process = ThisProcess()
        yield process
        process.model = None  # the backend may be held longer than this


class Launched:
    """The backend that starts an engine for each rotation, one at a time.

    ``running`` ends the engine that runs.
    """

    def __init__(self, spec: Spec, running: ExitStack) -> None:
        assert spec.engine is not None
        if spec.engine == "gguf" and spec.dtype != "auto":
            raise UserError("llama.cpp computes in the numbers of its file; leave out --dtype.")
        self.spec, self.running, self.plugin = spec, running, load("engine", spec.engine)
        self.workers = spec.concurrency or CONCURRENCY
        self.machines: dict[str, Any] = {}
        self.weights = Identification()
        self.rotation = ""  # that of the engine that runs

    def open(self, spec: Spec) -> Checkpoint:
        """Open the config and the tokenizer of the model."""
        assert spec.engine is not None
        return served(spec, "llamacpp" if spec.engine == "gguf" else spec.engine)

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Yield the replies to all requests; raise UserError for what the engine cannot serve."""
        check(work)
        for batch, export in [(batch, self._export(plan, batch)) for batch in work]:
            if self.rotation != batch.rotation.fingerprint:
                self.rotation = ""
                self.running.close()
                self.engine, self.log = self.running.enter_context(started(export, self.spec))
                before = self.machines.get("server", {}).get("computes", {})
                self.machines = identified(self.engine, self.weights, plan, batch)
                self.machines["server"]["computes"] |= before
                self.rotation = batch.rotation.fingerprint
            concurrency = self.spec.concurrency or self.engine.slots or CONCURRENCY
            try:
                yield from replies(self.engine, plan, batch.items, concurrency)
            except GoneError as error:
                raise UserError(
                    f"{self.engine.name} failed while it computed {export.scaling}. "
                    f"{_end(self.log)}\nWhat was measured is kept; the same command continues."
                ) from error

    def _export(self, plan: Plan, batch: Batch) -> Export:
        """Return what the engine reads, at the longest length of the plan with this rotation."""
        cell, opened = batch.items[0].cell, plan.checkpoint
        method = next(method for method in plan.methods if method.label == cell.scaling)
        length = max(one.length for one in plan.cells if one.frequencies == cell.frequencies)
        target = Target(
            method, length, opened.rope, batch.rotation, opened.name, opened.config,
            opened.trust_remote_code, opened.revision,
        )  # fmt: skip
        return choose(target, self.plugin)


@contextmanager
def started(export: Export, spec: Spec) -> Iterator[tuple[Engine, Path]]:
    """Start an engine and yield it, with its log, once it is healthy; end all of its processes.

    The log of an engine that failed is kept.
    """
    with TemporaryDirectory(prefix="ropewalk-engine-") as folder:
        place = write(export, Path(folder) / "model", copy=False)
        longer = replace(export.target, length=export.length + 1)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        words = [
            *shlex.split(replace(export, place=place, target=longer).command),
            *("--host", "127.0.0.1", "--port", str(port)),
            *MORE.get(export.engine, ()),
            *(("--dtype", spec.dtype) if spec.dtype != "auto" else ()),
            *shlex.split(spec.engine_args or ""),
        ]
        log.info(f"Starting an engine for {export.scaling}: {shlex.join(words)}")
        with NamedTemporaryFile(prefix="ropewalk-engine-", suffix=".log", delete=False) as file:
            try:
                process = subprocess.Popen(
                    words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                    start_new_session=True, env=os.environ | dict.fromkeys(LONGER, "1"),
                )  # fmt: skip
            except OSError as error:
                raise UserError(
                    f"--engine {export.engine}: {words[0]} cannot be started: {reason(error)}; "
                    "put it on the PATH."
                ) from None
        path, url = Path(file.name), f"http://127.0.0.1:{port}"
        try:
            while not _healthy(url):
                if process.poll() is not None:
                    raise UserError(
                        f"--engine {export.engine} did not start for {export.scaling}. {_end(path)}"
                    )
                describe(_end(path).rpartition("\n")[2])
                time.sleep(1)
            yield connect(url), path
        finally:
            if process.poll() is None:
                path.unlink()
            for end in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, end)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)


def _end(path: Path) -> str:
    """Return the last lines of a log."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"{path} ends:", *lines[-LINES:]])


def _healthy(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=10).is_success
    except httpx2.TransportError:
        return False
