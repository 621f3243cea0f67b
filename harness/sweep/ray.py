"""The backend of many processes: workers of a Ray cluster, on this machine or at an address.

Ray places the workers (``ropewalk[cluster]``), carries batches and replies, and reports which
worker was lost. What a lost worker has not answered is given to another.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

import ropewalk
from ropewalk.harness.engine import OutOfMemory, Sizes
from ropewalk.harness.engine.prefix_tree import in_order
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.files import expanded
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.sweep.backend import Failed, Reply
from ropewalk.harness.sweep.memory import fitted
from ropewalk.harness.sweep.plan import Batch, Item, Key, Plan, open_model
from ropewalk.harness.sweep.record import version
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.sweep.this_process import here, ready, replies
from ropewalk.scaling.types import Rotation
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import ModelRequest

log = logging.getLogger("ropewalk")
ALIKE = ("ropewalk", "torch", "transformers")  # packages whose versions the numbers depend on
LOSSES = 3  # workers lost in a row, over one batch or while they load, before it is given up
PATIENCE = 60.0  # seconds without a worker before a message says so
ROUNDS = 4  # batches a worker gets, so that the last to end is not far behind
STEP = 5.0  # seconds between looks at the head
GRACE = 20.0  # seconds for a head that is restarted
KEPT = "what was measured is kept. Start Ray again, and the same command continues."
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",  # no log of a lost node in our output: a sentence reports it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning about a later version
    # What Ray adds to the niceness of its workers: its own 15 leaves each about 3 % of a core that
    # another process wants too.
    "RAY_worker_niceness": "0",
    # Seconds until Ray ends this process, without a sentence, where the head is gone.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
}


class StrandedError(UserError):
    """The head or this process's own node is gone, and nothing can be asked of Ray any more."""


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
        except StrandedError:
            # Ray's own end would wait for its head, and its destructors crash.
            atexit.unregister(ray.shutdown)
            atexit.register(os._exit, 2)
            atexit.register(sys.stdout.flush)  # before that
            raise
        except BaseException:
            ray.shutdown()
            raise
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
    device = spec.device
    if device == "auto":
        device = "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"
    if device not in ("cpu", "cuda"):
        raise UserError(
            f"workers are given their GPU by Ray: --device {spec.device} must be cpu or cuda."
        )
    has = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus, cores = ([int(node.get(kind, 0)) for node in has] for kind in ("GPU", "CPU"))
    if device == "cpu":
        count = spec.workers or sum(map(bool, cores))
        return Workers(ray, device, count, most_each(cores, count), 0)
    if not any(gpus):
        raise UserError("--device cuda: no machine has a GPU for a worker; use --device cpu.")
    threads = max(1, torch.get_num_threads() // (spec.workers or 1)) if not spec.cluster else 1
    if not spec.device_map:
        count = spec.workers or sum(gpus)
        if sum(gpus) < count:
            log.info(f"Each worker needs a GPU of its own, of {count} not all will work at once.")
        return Workers(ray, device, count, threads, 1)
    count = spec.workers or sum(map(bool, gpus))
    if sum(gpus) < count:
        raise UserError(
            f"--workers {count} with --device-map {spec.device_map}: each worker needs GPUs of"
            f" its own, and there are {sum(gpus)}; use --workers {sum(gpus)} or fewer."
        )
    return Workers(ray, device, count, threads, most_each(gpus, count))


def most_each(amounts: Sequence[int], count: int) -> int:
    """Return how many cores or GPUs so many workers can have each, on nodes with these; 1 at least.

    A worker is on one node.
    """
    fits = (n for n in range(max(amounts), 0, -1) if sum(has // n for has in amounts) >= count)
    return next(fits, 1)


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


class Loaded(NamedTuple):
    """A worker that holds the weights: Ray's handle, and where it runs, in words."""

    handle: Any
    place: str


@dataclass
class Assignment:
    """What a worker answers under a rotation: the items without a reply.

    ``losses`` counts the workers lost over it in a row without one reply.
    """

    worker: Loaded
    rotation: Rotation
    left: dict[Key, Item]
    losses: int


class Workers:
    """Which batches wait, which worker has which, and who still loads the weights.

    ``threads`` and ``gpus`` are those of each of ``workers`` processes on ``device``.
    """

    def __init__(self, ray: Any, device: str, workers: int, threads: int, gpus: int) -> None:
        self.ray, self.device, self.workers = ray, device, workers
        self.threads, self.gpus, self.sizes = threads, gpus, Sizes()
        self.worker: Any = ray.remote(num_cpus=threads, num_gpus=gpus)(Worker)
        self.plan: Plan | None = None
        self.queue = deque[tuple[Batch, int]]()  # each with its losses
        self.loading: dict[Any, Any] = {}  # the reply to prepare: its worker
        self.busy: dict[Any, Assignment] = {}  # by the stream of its replies
        self.free: list[Loaded] = []
        self.joined: list[dict[str, Any]] = []  # what a session records of each worker
        self.lost = 0  # workers in a row that were lost while they loaded
        here = ray.get_runtime_context()
        self.head, self.node = here.gcs_address, here.get_node_id()

    @property
    def machines(self) -> dict[str, Any]:
        """What a session records: each worker that has joined."""
        return {"workers": list(self.joined)}

    def open(self, spec: Spec) -> Checkpoint:
        """Return the model of a spec, for the device of the workers."""
        return open_model(spec, elsewhere=self.device)

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Return the replies to all requests, once a worker holds the weights."""
        self.sizes = fitted(plan, work)
        if self.plan is not None and self.plan.checkpoint is not plan.checkpoint:
            self._dismiss()
        self.plan = plan
        self.queue.extend((batch, 0) for batch in split(work, self.workers))
        for _ in range(min(self.workers, len(self.queue)) - len(self.free) - len(self.loading)):
            self._start()
        while not self.free:
            self._loaded(self._wait())
        return self._replies()

    def _replies(self) -> Iterator[tuple[Item, Reply]]:
        while self.queue or self.busy:
            while self.queue and self.free:
                self._assign(self.free.pop(), *self.queue.popleft())
            first = self._wait()
            if first in self.busy:
                yield from self._reply(first)
            else:
                self._loaded(first)

    def _dismiss(self) -> None:
        """End the workers of another model, and forget what they were asked."""
        held = [*self.free, *(assignment.worker for assignment in self.busy.values())]
        for handle in [*(worker.handle for worker in held), *self.loading.values()]:
            self.ray.kill(handle)
        for known in (self.queue, self.free, self.busy, self.loading, self.joined):
            known.clear()

    def _start(self) -> None:
        """Request one more worker; Ray starts it where and when there is room."""
        assert self.plan is not None
        worker, known = self.worker.remote(), self.plan.checkpoint.fingerprint
        versions = {name: release(name) for name in ALIKE}
        ready = worker.prepare.remote(anywhere(self.plan), known, self.threads, versions)
        self.loading[ready] = worker

    def _wait(self) -> Any:
        """Return what comes next: a worker that is ready, or the next of a stream of replies.

        Raises StrandedError where the head is gone for a while, or this process's node: Ray's own
        questions to a head that is gone never return.
        """
        host, _, port = self.head.rpartition(":")
        seen = said = time.monotonic()
        while not (ready := self.ray.wait([*self.loading, *self.busy], timeout=STEP)[0]):
            now = time.monotonic()
            try:
                socket.create_connection((host, int(port)), timeout=STEP).close()
            except OSError:
                if now - seen >= GRACE:
                    text = f"the head of the cluster at {self.head} is gone; {KEPT}"
                    raise StrandedError(text) from None
                continue
            seen = now
            if self.node in [n["NodeID"] for n in self.ray.nodes() if not n["Alive"]]:
                raise StrandedError(f"Ray's node on this machine is gone; {KEPT}")
            if not self.busy and now - said > PATIENCE:
                said = now
                each = f"each needs {self.threads} processor cores and {self.gpus} GPUs"
                log.info(f"Still waiting for a worker; {each}.")
        return ready[0]

    def _loaded(self, ready: Any) -> None:
        """Take in a worker that has loaded, or start another for one that was lost.

        Raises UserError where it cannot be used and was the last.
        """
        worker = self.loading.pop(ready)
        try:
            facts = self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self.lost += 1
            if self.lost < LOSSES:
                log.info("A worker was lost while it loaded the weights; another is started.")
                self._start()
                return
            text = f"{LOSSES} workers were lost while they loaded the weights: {_cause(error)}"
            facts = {"refused": text}
        if refused := facts.get("refused"):
            if not (self.free or self.busy or self.loading):
                raise UserError(refused)
            log.info(f"Going on without one: {refused}")
            return
        self.lost = 0
        self.joined.append(facts["machine"])
        self.free.append(Loaded(worker, facts["place"]))

    def _assign(self, worker: Loaded, batch: Batch, losses: int) -> None:
        streaming = worker.handle.answer.options(num_returns="streaming")
        # What a worker was lost over may have been too much for its memory.
        sizes = self.sizes.least if losses else self.sizes
        stream = streaming.remote(batch.rotation, batch.questions, sizes)
        left = {item.key: item for item in batch.items}
        self.busy[stream] = Assignment(worker, batch.rotation, left, losses)

    def _reply(self, stream: Any) -> Iterator[tuple[Item, Reply]]:
        """Yield the next reply of a stream; what a lost worker leaves is given out again."""
        assignment = self.busy[stream]
        try:
            key, reply = self.ray.get(next(stream))
        except StopIteration:
            del self.busy[stream]
            self.free.append(assignment.worker)
        except self.ray.exceptions.RayError as error:
            del self.busy[stream]
            log.info(f"A worker was lost; its {len(assignment.left)} samples are given out again.")
            with suppress(self.ray.exceptions.RayError):
                self.ray.kill(assignment.worker.handle)
            self._start()
            yield from self._retry(assignment, error)
        else:
            assignment.losses = 0
            yield assignment.left.pop(key), reply

    def _retry(self, assignment: Assignment, error: Exception) -> Iterator[tuple[Item, Reply]]:
        """Queue what is left; at last every request alone, and what then fails has failed."""
        left, losses = tuple(assignment.left.values()), assignment.losses + 1
        if losses < LOSSES or not left:
            self.queue.appendleft((Batch(assignment.rotation, left), losses))
        elif len(left) > 1:
            alone = (Batch(assignment.rotation, (item,)) for item in left)
            self.queue.extend((batch, LOSSES - 1) for batch in alone)
        elif isinstance(error, self.ray.exceptions.OutOfMemoryError):
            yield left[0], Reply(OutOfMemory(assignment.worker.place), 0.0, 0.0)
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

    A part is fair where every worker gets several. Requests that share half of their tokens or more
    with the one before stay together: the engine computes those once.
    """
    fair = sum(batch.tokens for batch in work) / (ROUNDS * workers)
    batches: list[Batch] = []
    for batch in work:
        families: list[list[Item]] = []
        for item in sorted(batch.items, key=lambda item: in_order(item.question.tokens)):
            tokens = kept(item.question.tokens)
            before = kept(families[-1][-1].question.tokens) if families else tokens
            if families and 2 * before.common(tokens) >= min(len(before), len(tokens)):
                families[-1].append(item)
            else:
                families.append([item])
        parts: list[list[Item]] = [[]]
        for family in families:
            size = sum(item.question.length for item in (*parts[-1], *family))
            if parts[-1] and size > fair:
                parts.append([])
            parts[-1] += family
        batches += [Batch(batch.rotation, tuple(items)) for items in parts]
    return sorted(batches, key=lambda batch: -batch.tokens)
