"""Workers of a Ray cluster: which answers which batch, and what happens when one is lost.

Ray places the workers, carries batches and replies, and reports which worker was lost.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ropewalk.harness.engine import OutOfMemory, Sizes
from ropewalk.harness.engine.prefix_tree import in_order
from ropewalk.harness.errors import UserError, reason
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.names import place
from ropewalk.harness.sweep.backend import Failed, Reply
from ropewalk.harness.sweep.memory import fitted
from ropewalk.harness.sweep.plan import Batch, Item, Key, Plan, open_model
from ropewalk.harness.sweep.record import machine, version
from ropewalk.harness.sweep.spec import Spec
from ropewalk.harness.sweep.this_process import ready, replies
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import ModelRequest

log = logging.getLogger("ropewalk")
ALIKE = ("ropewalk", "torch", "transformers")  # packages whose versions the numbers depend on
LOSSES = 3  # workers lost in a row, over one batch or while they load, before it is given up
PATIENCE = 60.0  # seconds without a worker before a message says so
WAITS = 10  # of them in a row without a node that could hold a worker, before it is given up
SILENT = 5  # of them in a row without a reply of a busy worker, before a message says so
ROUNDS = 4  # batches a worker gets, so that the last to end is not far behind
STEP = 5.0  # seconds between looks at the head
GRACE = 20.0  # seconds for a head that is restarted
KEPT = "what was measured is kept. Start Ray again, and the same command continues."


class Worker:
    """What runs in a worker's process; it answers one batch at a time."""

    def prepare(self, spec: Spec, fingerprint: str, threads: int) -> dict[str, Any]:
        """Load the weights; return what this worker is, or under ``refused`` why it cannot be."""
        if spec.offline:
            go_offline()
        torch.set_num_threads(threads)
        where = socket.gethostname()
        try:
            checkpoint = open_model(spec)
            if checkpoint.fingerprint != fingerprint:
                raise UserError(f"its files of the model differ ({checkpoint.fingerprint}).")
            self.model, self.checkpoint = ready(checkpoint), checkpoint
        except UserError as error:
            return {"refused": f"worker on {where}: {error}"}
        return {"host": where, "process": os.getpid(), **machine(checkpoint.device)}

    def answer(
        self, rotation: Any, questions: Mapping[Key, ModelRequest], sizes: Sizes
    ) -> Iterator[tuple[Key, Reply]]:
        """Yield the replies as they are measured."""
        yield from replies(self.model, self.checkpoint, rotation, questions, sizes)


def anywhere(plan: Plan) -> Spec:
    """Return a sweep as any process reads it: a place in full, what is on the hub by its name."""
    spec, checkpoint = plan.spec, plan.checkpoint
    local = spec.model != "reference" and place(spec.model).exists()
    resolved = {
        "model": str(Path(checkpoint.name).absolute()) if local else spec.model,
        # Of a GGUF file on the hub only what was asked is known.
        "revision": checkpoint.revision or spec.revision,
        "adapter": _adapter(plan),
        "dtype": checkpoint.dtype,
        "device": "auto" if spec.device_map else checkpoint.device,
        "scaling": (),  # no worker needs them, and a function may not be sent
    }
    return spec.model_copy(update=resolved)


def _adapter(plan: Plan) -> str | None:
    """Return the folder of an adapter, or its name on the hub with its commit."""
    given, adapter = plan.spec.adapter, plan.checkpoint.adapter
    if given is None or adapter is None:
        return None
    # The hub's files of a commit lie in a folder of its name.
    hub = f"{given.partition('@')[0]}@{Path(adapter.folder).name}"
    return adapter.folder if place(given).is_dir() else hub


def version_difference(facts: dict[str, Any]) -> str | None:
    """Return a sentence where a worker has another version of what the numbers depend on."""
    for name in ALIKE:
        here, there = (str(v).partition("+")[0] for v in (version(name), facts["versions"][name]))
        if here != there:
            return f"worker on {facts['host']}: it has {name} {there}, here is {here}."
    return None


def split(work: Sequence[Batch], workers: int) -> list[Batch]:
    """Return the work in batches, the longest first, none larger than a fair part where possible.

    A part is fair where every worker gets several.
    """
    fair = sum(batch.tokens for batch in work) / (ROUNDS * workers)
    batches: list[Batch] = []
    for batch in work:
        items: list[Item] = []
        tokens = 0
        for family in _families(batch.items):
            more = sum(item.question.length for item in family)
            if items and tokens + more > fair:
                batches.append(Batch(batch.rotation, tuple(items)))
                items, tokens = [], 0
            items += family
            tokens += more
        batches.append(Batch(batch.rotation, tuple(items)))
    return sorted(batches, key=lambda batch: -batch.tokens)


def _families(items: Sequence[Item]) -> list[list[Item]]:
    """Group questions that share half of their tokens or more: the engine computes those once."""
    families: list[list[Item]] = []
    for item in sorted(items, key=lambda item: in_order(item.question.tokens)):
        if families:
            before, tokens = (kept(one.question.tokens) for one in (families[-1][-1], item))
            if 2 * before.common(tokens) >= min(len(before), len(tokens)):
                families[-1].append(item)
                continue
        families.append([item])
    return families


class StrandedError(UserError):
    """The head or this process's own node is gone, and nothing can be asked of Ray any more."""


class Watch:
    """Looks at the head at an address, and at the node of Ray's number that this process is on.

    Ray's own questions to a head that is gone never return.
    """

    def __init__(self, ray: Any, head: str, node: str) -> None:
        self.ray, self.head, self.node = ray, head, node
        self.seen = time.monotonic()

    def wait(self, references: list[Any], seconds: float) -> list[Any]:
        """Return those that are ready, none after some seconds; raise StrandedError as ``look``."""
        for _ in range(int(seconds / STEP)):
            self.look()
            ready, _ = self.ray.wait(references, timeout=STEP)
            if ready:
                return list(ready)
        return []

    def look(self) -> None:
        """Raise StrandedError where the head is gone for a while, or the node; not at every call.

        Nothing is asked until some seconds after the head last answered.
        """
        silent = time.monotonic() - self.seen
        if silent < STEP:
            return
        host, _, port = self.head.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=STEP).close()
        except OSError:
            if silent >= GRACE:
                raise StrandedError(
                    f"the head of the cluster at {self.head} is gone; {KEPT}"
                ) from None
            return
        self.seen = time.monotonic()
        if self.node in [node["NodeID"] for node in self.ray.nodes() if not node["Alive"]]:
            raise StrandedError(f"Ray's node on this machine is gone; {KEPT}")


@dataclass(frozen=True)
class Cluster:
    """A connected Ray cluster; ``device``, ``threads`` and ``gpus`` are those of each worker."""

    count: int
    device: str
    threads: int
    gpus: int
    head: str  # its address
    node: str  # Ray's number of the node that this process is on


class Loaded(NamedTuple):
    """A worker that holds the weights: Ray's handle, and where it runs, in words."""

    handle: Any
    place: str


@dataclass
class Assignment:
    """A batch that a worker answers: the items without a reply, by their identity.

    ``losses`` counts the workers lost over it in a row without one reply.
    """

    worker: Loaded
    batch: Batch
    losses: int

    def __post_init__(self) -> None:
        self.left: dict[Key, Item] = {item.key: item for item in self.batch.items}


class Workers:
    """The backend of many processes: which batches wait, which worker has which, who still loads.

    Each worker has the weights, and keeps them for later calls of ``answers``.
    """

    def __init__(self, cluster: Cluster) -> None:
        import ray

        self.ray, self.cluster, self.sizes = ray, cluster, Sizes()
        self.queue = deque[tuple[Batch, int]]()  # each with its losses
        resources = {"num_cpus": cluster.threads, "num_gpus": cluster.gpus}
        self.worker: Any = ray.remote(**resources)(Worker)  # type: ignore[call-overload]
        self.loading: dict[Any, Any] = {}  # the reply to prepare: its worker
        self.busy: dict[Any, Assignment] = {}  # by the stream of its replies
        self.free: list[Loaded] = []
        self.joined: list[dict[str, Any]] = []  # what a session records of each worker
        self.lost = 0  # workers in a row that were lost while they loaded
        self.watch = Watch(ray, cluster.head, cluster.node)
        self.device, self.workers = cluster.device, cluster.count
        self.plan: Plan | None = None

    @property
    def machines(self) -> dict[str, Any]:
        """What a session records: each worker that has joined."""
        return {"workers": list(self.joined)}

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Return the replies to all requests, once a worker holds the weights."""
        self.sizes = fitted(plan, work)
        if self.plan is not None and self.plan.checkpoint is not plan.checkpoint:
            self.leave()
        self.plan = plan
        self.queue.extend((batch, 0) for batch in split(work, self.cluster.count))
        self.start()
        return self.replies()

    def leave(self) -> None:
        """End the workers of a model, and forget what was asked of them."""
        held = [*self.free, *(assignment.worker for assignment in self.busy.values())]
        for worker in [*(one.handle for one in held), *self.loading.values()]:
            self.ray.kill(worker)
        for known in (self.queue, self.free, self.busy, self.loading, self.joined):
            known.clear()

    def start(self) -> None:
        """Start the workers and wait for the first that has loaded the weights."""
        there = len(self.free) + len(self.loading)
        for _ in range(min(self.cluster.count, len(self.queue)) - there):
            self._start_worker()
        while not self.free:
            self._loaded(self._wait())

    def replies(self) -> Iterator[tuple[Item, Reply]]:
        """Yield every question's reply, each once, as the workers send them."""
        while self.queue or self.busy:
            while self.queue and self.free:
                self._assign(self.free.pop(), *self.queue.popleft())
            first = self._wait()
            if first in self.busy:
                yield from self._reply(first)
            else:
                self._loaded(first)

    def _start_worker(self) -> None:
        """Request one more worker; Ray starts it where and when there is room."""
        assert self.plan is not None
        worker, spec = self.worker.remote(), anywhere(self.plan)
        known = self.plan.checkpoint.fingerprint
        ready = worker.prepare.remote(spec, known, self.cluster.threads)
        self.loading[ready] = worker

    def _wait(self) -> Any:
        """Return what comes next: a worker that is ready, or the next of a stream of replies."""
        silent = nowhere = 0
        while nowhere < WAITS and (self.loading or self.busy):
            ready = self.watch.wait([*self.loading, *self.busy], PATIENCE)
            if ready:
                return ready[0]
            silent += 1
            if not self.busy:
                nowhere = 0 if self._room() else nowhere + 1  # a cloud may start a node meanwhile
                many = self.cluster.gpus
                gpus = f" and {many} GPU{'s' * (many > 1)}" if many else ""
                each = f"each needs {self.cluster.threads} processor cores{gpus}"
                log.info(f"Still waiting for a worker; {each}.")
            elif silent % SILENT == 0:
                self._say_silent(silent * PATIENCE / 60)
        raise UserError(
            "no worker is left, nor a node that could hold one; what was measured is kept."
        )

    def _say_silent(self, minutes: float) -> None:
        places = ", ".join(assignment.worker.place for assignment in self.busy.values())
        log.info(
            f"No reply for {minutes:g} minutes from {places}. A long question can take as long; a "
            "process that is stopped or hangs can be killed: its samples are then given out again."
        )

    def _room(self) -> bool:
        """Return whether a live node has the resources of a worker, if nothing else ran on it."""
        needs = {"CPU": self.cluster.threads, "GPU": self.cluster.gpus}
        alive = [n["Resources"] for n in self.ray.nodes() if n["Alive"]]  # type: ignore[no-untyped-call]
        return any(all(has.get(key, 0) >= n for key, n in needs.items()) for has in alive)

    def _loaded(self, ready: Any) -> None:
        """Take in a worker that has loaded, or start another for one that was lost."""
        worker = self.loading.pop(ready)
        try:
            facts = self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self._lost_loading(error)
            return
        refused = facts.get("refused") or version_difference(facts)
        if refused:
            self._without(refused)
            return
        self.lost = 0
        place = f"the worker on {facts.pop('host')} (process {facts.pop('process')})"
        self.joined.append(facts)
        self.free.append(Loaded(worker, place))

    def _without(self, why: str) -> None:
        """Go on without a worker; raise UserError where it was the last."""
        if not (self.free or self.busy or self.loading):
            raise UserError(why)
        log.info(f"Going on without one: {why}")

    def _lost_loading(self, error: Exception) -> None:
        """Start another worker for one that was lost, until too many are."""
        self.lost += 1
        if self.lost < LOSSES:
            message = "A worker was lost while it loaded the weights; another is started."
            log.info(message)
            self._start_worker()
            return
        self._without(f"{LOSSES} workers were lost while they loaded the weights: {_why(error)}")

    def _assign(self, worker: Loaded, batch: Batch, losses: int) -> None:
        streaming = worker.handle.answer.options(num_returns="streaming")
        # What a worker was lost over may have been too much for its memory.
        sizes = self.sizes.least if losses else self.sizes
        stream = streaming.remote(batch.rotation, batch.questions, sizes)
        self.busy[stream] = Assignment(worker, batch, losses)

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
            self._start_worker()
            yield from self._retry(assignment, error)
        else:
            assignment.losses = 0
            yield assignment.left.pop(key), reply

    def _retry(self, assignment: Assignment, error: Exception) -> Iterator[tuple[Item, Reply]]:
        """Queue what is left; at last every question alone, and what then fails has failed."""
        rotation, left = assignment.batch.rotation, tuple(assignment.left.values())
        losses = assignment.losses + 1
        if losses < LOSSES:
            self.queue.appendleft((Batch(rotation, left), losses))
        elif len(left) > 1:
            self.queue.extend((Batch(rotation, (item,)), LOSSES - 1) for item in left)
        else:
            failed = Failed(f"{LOSSES} workers were lost over it: {_why(error)}")
            memory = isinstance(error, self.ray.exceptions.OutOfMemoryError)
            for item in left:
                lack = OutOfMemory(assignment.worker.place) if memory else failed
                yield item, Reply(lack, 0.0, 0.0)


def _why(error: Exception) -> str:
    """Return the last line of Ray's message, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return reason(Exception(lines[-1] if lines else type(error).__name__))
