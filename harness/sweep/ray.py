"""The backend of many processes: workers of a Ray cluster, on this machine or at an address.

Ray places the workers (``ropewalk[cluster]``), carries batches and replies, and reports which
worker was lost. What a lost worker has not answered is given to another.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ropewalk
from ropewalk.harness.engine import OutOfMemory, Sizes
from ropewalk.harness.engine.prefix_tree import in_order
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.files import expanded
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.sweep.memory import fitted
from ropewalk.harness.sweep.plan import Batch, Failed, Item, Key, Plan, Reply, open_model
from ropewalk.harness.sweep.record import version
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.sweep.this_process import here, ready, replies
from ropewalk.scaling.types import Rotation
from ropewalk.tasks.types import ModelRequest

log = logging.getLogger("ropewalk")
ALIKE = ("ropewalk", "torch", "transformers")  # packages whose versions the numbers depend on
LOSSES = 3  # workers lost in a row, over one batch or while they load, before it is given up
PATIENCE = 60.0  # seconds without a worker before a message says so
ROUNDS = 4  # batches a worker gets, so that the last to end is not far behind
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",  # no log of a lost node in our output: a sentence reports it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning about a later version
    # What Ray adds to the niceness of its workers: its own 15 leaves each about 3 % of a core that
    # another process wants too.
    "RAY_worker_niceness": "0",
}


@contextmanager
def workers(spec: Spec) -> Iterator[Workers]:
    """Connect to the cluster of a spec, or start one on this machine, and yield its workers.

    Raises UserError where Ray is not installed, or no cluster answers at the address.
    """
    try:
        os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
        import ray
    except ImportError:
        raise UserError(
            "--workers and --cluster need Ray; install it with: pip install 'ropewalk[cluster]'"
        ) from None
    # The path of a socket has at most 107 characters, and TMPDIR may be long.
    with tempfile.TemporaryDirectory(
        prefix="ropewalk-ray-",
        dir=os.environ.get("RAY_TMPDIR", "/tmp"),
        ignore_cleanup_errors=True,
    ) as folder:
        try:
            if spec.cluster is None:
                cores = max(torch.get_num_threads(), spec.workers or 1)
                where = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}
                _init(ray, "local", **where)
            else:
                _init(ray, spec.cluster)
            yield _workers(ray, spec)
        finally:
            ray.shutdown()


def _init(ray: Any, address: str, **settings: Any) -> None:
    """Start Ray, or connect to a running cluster."""
    start, before = "Start one with: ray start --head", signal.getsignal(signal.SIGTERM)
    try:
        if address not in ("auto", "local"):  # Ray would try for two minutes, with many messages
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        text = f"no cluster answers at {address} (HOST:PORT): {reason(error)}. {start}"
        raise UserError(text) from None
    try:  # Ray lets its workers import from the current directory
        with chdir(Path(ropewalk.__file__).parent.parent):
            ray.init(address, logging_level="ERROR", log_to_driver=False, **settings)
    except (Exception, SystemExit) as error:
        raise UserError(f"Ray cannot be reached: {reason(error)} {start}") from error
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray's own ends the process with another status


def _workers(ray: Any, spec: Spec) -> Workers:
    """Return the workers of a cluster: one per GPU, or per node with GPUs or with cores."""
    device, nodes = spec.device, [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if device == "auto":
        device = "cuda" if any(node.get("GPU") for node in nodes) else "cpu"
    if device not in ("cpu", "cuda"):
        raise UserError(
            f"workers are given their GPU by Ray: --device {spec.device} must be cpu or cuda."
        )
    kind = "CPU" if device == "cpu" else "GPU"
    has = [int(node[kind]) for node in nodes if node.get(kind)]
    if not has:
        raise UserError(f"--device {device}: no machine has a {kind} for a worker.")
    shared = device == "cpu" or spec.device_map is not None  # by the workers of a node
    count = spec.workers or (len(has) if shared else sum(has))
    if device == "cuda" and count > sum(has):
        raise UserError(
            f"--workers {count}: each worker needs GPUs of its own, and there are {sum(has)}; use "
            f"--workers {sum(has)} or fewer."
        )
    # The most that each of so many workers can have, of a node that has it: 1 at least.
    most = max(has) if shared else 1
    fits = (n for n in range(most, 0, -1) if sum(amount // n for amount in has) >= count)
    each = next(fits, 1)
    if device == "cpu":
        return Workers(ray, device, count, each, 0)
    threads = 1 if spec.cluster else max(1, torch.get_num_threads() // count)
    return Workers(ray, device, count, threads, each)


class Worker:
    """What runs in a worker's process; it answers one batch at a time."""

    def prepare(
        self, spec: Spec, fingerprint: str, threads: int, versions: Mapping[str, str]
    ) -> dict[str, Any]:
        """Load the weights; return what this worker is, or under ``refused`` why it cannot be."""
        if spec.offline:
            go_offline()
        torch.set_num_threads(threads)
        host = socket.gethostname()
        try:
            for name, wanted in versions.items():
                if (has := release(name)) != wanted:
                    raise UserError(f"it has {name} {has}, here is {wanted}.")
            checkpoint = open_model(spec)
            if checkpoint.fingerprint != fingerprint:
                raise UserError(f"its files of the model differ ({checkpoint.fingerprint}).")
            self.model, self.checkpoint = ready(checkpoint), checkpoint
        except UserError as error:
            return {"refused": f"worker on {host}: {error}"}
        place = f"the worker on {host} (process {os.getpid()})"
        return {"place": place, "machine": here(self.model, checkpoint)}

    def answer(
        self, rotation: Any, requests: Mapping[Key, ModelRequest], sizes: Sizes
    ) -> Iterator[tuple[Key, Reply]]:
        """Yield the replies as they are measured."""
        yield from replies(self.model, self.checkpoint, rotation, requests, sizes)


def release(package: str) -> str:
    """Return the version of a package, without that of its build."""
    return str(version(package)).partition("+")[0]


@dataclass
class Loaded:
    """A worker that holds the weights, and what it answers: the items without a reply.

    ``losses`` counts the workers lost over these items in a row, without one reply.
    """

    handle: Any
    place: str
    rotation: Rotation | None = None
    left: dict[Key, Item] = field(default_factory=dict)
    losses: int = 0


class Workers:
    """Which batches wait, which worker has which, and who still loads the weights.

    ``threads`` and ``gpus`` are those of each of ``workers`` processes on ``device``.
    """

    def __init__(self, ray: Any, device: str, workers: int, threads: int, gpus: int) -> None:
        self.ray, self.device, self.workers = ray, device, workers
        self.threads, self.gpus, self.sizes = threads, gpus, Sizes()
        self.worker: Any = ray.remote(num_cpus=threads, num_gpus=gpus)(Worker)
        self.machines: dict[str, Any] = {"workers": []}  # each that has joined
        self.plan: Plan | None = None
        self.queue = deque[tuple[Batch, int]]()  # each with the workers lost over it
        self.loading: dict[Any, Any] = {}  # the reply to prepare: its worker
        self.busy: dict[Any, Loaded] = {}  # by the stream of its replies
        self.free: list[Loaded] = []
        self.lost = 0  # workers in a row that were lost while they loaded

    def open(self, spec: Spec) -> Checkpoint:
        """Return the model of a spec, for the device of the workers."""
        return open_model(spec, elsewhere=self.device)

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Yield the replies to all requests, which each worker answers once it has the weights."""
        self.sizes = fitted(plan, work)
        if self.plan is not None and self.plan.checkpoint is not plan.checkpoint:
            held = [worker.handle for worker in (*self.free, *self.busy.values())]
            for handle in [*held, *self.loading.values()]:
                self.ray.kill(handle)
            for known in (self.queue, self.free, self.busy, self.loading):
                known.clear()
            self.machines = {"workers": []}
        self.plan = plan
        self.queue.extend((batch, 0) for batch in split(work, self.workers))
        for _ in range(min(self.workers, len(self.queue)) - len(self.free) - len(self.loading)):
            self._start()
        while self.queue or self.busy:
            while self.queue and self.free:
                self._assign(self.free.pop(), *self.queue.popleft())
            first = self._wait()
            if first in self.busy:
                yield from self._reply(first)
            else:
                self._loaded(first)

    def _start(self) -> None:
        """Request one more worker; Ray starts it where and when there is room."""
        assert self.plan is not None
        worker, fingerprint = self.worker.remote(), self.plan.checkpoint.fingerprint
        versions = {name: release(name) for name in ALIKE}
        ready = worker.prepare.remote(anywhere(self.plan), fingerprint, self.threads, versions)
        self.loading[ready] = worker

    def _wait(self) -> Any:
        """Return what comes next: a worker that is ready, or the next of a stream of replies."""
        while not (ready := self.ray.wait([*self.loading, *self.busy], timeout=PATIENCE)[0]):
            if not self.busy:
                each = f"each needs {self.threads} processor cores and {self.gpus} GPUs"
                log.info(f"Still waiting for a worker; {each}.")
        return ready[0]

    def _loaded(self, ready: Any) -> None:
        """Take in a worker that has loaded, or start another for one that was lost.

        Raises UserError where it cannot be used and was the last.
        """
        worker = self.loading.pop(ready)
        try:
            about = self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self.lost += 1
            if self.lost < LOSSES:
                log.info("A worker was lost while it loaded the weights; another is started.")
                self._start()
                return
            text = f"{LOSSES} workers were lost while they loaded the weights: {_cause(error)}"
            about = {"refused": text}
        if refused := about.get("refused"):
            if not (self.free or self.busy or self.loading):
                raise UserError(refused)
            log.info(f"Going on without one: {refused}")
            return
        self.lost = 0
        self.machines = {"workers": [*self.machines["workers"], about["machine"]]}
        self.free.append(Loaded(worker, about["place"]))

    def _assign(self, worker: Loaded, batch: Batch, losses: int) -> None:
        worker.rotation, worker.losses = batch.rotation, losses
        worker.left = {item.key: item for item in batch.items}
        # What a worker was lost over may have been too much for its memory.
        sizes = self.sizes.least if losses else self.sizes
        answer = worker.handle.answer.options(num_returns="streaming")
        self.busy[answer.remote(batch.rotation, batch.questions, sizes)] = worker

    def _reply(self, stream: Any) -> Iterator[tuple[Item, Reply]]:
        """Yield the next reply of a stream; what a lost worker leaves is given out again."""
        worker = self.busy[stream]
        try:
            key, reply = self.ray.get(next(stream))
        except StopIteration:
            del self.busy[stream]
            self.free.append(worker)
        except self.ray.exceptions.RayError as error:
            del self.busy[stream]
            log.info(f"A worker was lost; its {len(worker.left)} samples are given out again.")
            with suppress(self.ray.exceptions.RayError):
                self.ray.kill(worker.handle)
            self._start()
            if worker.left:
                yield from self._retry(worker, error)
        else:
            worker.losses = 0
            yield worker.left.pop(key), reply

    def _retry(self, worker: Loaded, error: Exception) -> Iterator[tuple[Item, Reply]]:
        """Queue what is left; at last every request alone, and what then fails has failed."""
        assert worker.rotation is not None
        left, losses = tuple(worker.left.values()), worker.losses + 1
        if losses < LOSSES:
            self.queue.appendleft((Batch(worker.rotation, left), losses))
        elif len(left) > 1:
            alone = (Batch(worker.rotation, (item,)) for item in left)
            self.queue.extend((batch, LOSSES - 1) for batch in alone)
        elif isinstance(error, self.ray.exceptions.OutOfMemoryError):
            yield left[0], Reply(OutOfMemory(worker.place), 0.0, 0.0)
        else:
            failed = Failed(f"{LOSSES} workers were lost over it: {_cause(error)}")
            yield left[0], Reply(failed, 0.0, 0.0)


def _cause(error: Exception) -> str:
    """Return the last line of Ray's message, which is the cause."""
    return reason(str(error).strip().rpartition("\n")[2].strip() or type(error).__name__)


def anywhere(plan: Plan) -> Spec:
    """Return a sweep as any process reads it: a path in full, what is on the hub by its name."""
    spec, checkpoint, adapter = plan.spec, plan.checkpoint, plan.checkpoint.adapter
    local = spec.model != "reference" and expanded(spec.model).exists()
    changes: dict[str, Any] = {
        "model": str(Path(checkpoint.name).absolute()) if local else spec.model,
        # Of a GGUF file on the hub only what was asked is known.
        "revision": checkpoint.revision or spec.revision,
        "dtype": checkpoint.dtype,
        "device": "auto" if spec.device_map else checkpoint.device,
        "scaling": (),  # no worker needs them, and a function may not be sent
    }
    if spec.adapter is not None and adapter is not None:
        # The hub's files of a commit lie in a folder of its name.
        hub = f"{spec.adapter.partition('@')[0]}@{Path(adapter.folder).name}"
        changes["adapter"] = adapter.folder if expanded(spec.adapter).is_dir() else hub
    return spec.model_copy(update=changes)


def split(work: Sequence[Batch], workers: int) -> list[Batch]:
    """Return the work in batches, the longest first, none larger than a fair part where possible.

    A part is fair where every worker gets several. Requests that share tokens stay side by side:
    the engine computes those once.
    """
    fair = sum(batch.tokens for batch in work) / (ROUNDS * workers)
    batches: list[Batch] = []
    for batch in work:
        parts, size = list[list[Item]](), fair
        for item in sorted(batch.items, key=lambda item: in_order(item.question.tokens)):
            size += item.question.length
            if size > fair:
                parts.append([])
                size = item.question.length
            parts[-1].append(item)
        batches += [Batch(batch.rotation, tuple(items)) for items in parts]
    return sorted(batches, key=lambda batch: -batch.tokens)
