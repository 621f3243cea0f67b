"""The workers of a Ray cluster, each with the weights: who is given what, and what is given again.

Ray places the workers, carries groups and replies, and tells who was lost.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.cluster.batches import Group, Item, groups
from harness.engine import OutOfMemory, Sizes
from harness.errors import UserError, reason
from harness.offline import go_offline
from harness.sweep.answer import Failed, Reply
from harness.sweep.plan import Plan, open_model
from harness.sweep.spec import Spec
from tasks._types import Question

LOSSES = 3  # workers lost in a row, over one group or while they load, before it is given up
PATIENCE = 60.0  # seconds without a worker before that is told
WAITS = 10  # of them in a row without a node that could hold a worker, before it is given up
ALIKE = ("ropewalk", "torch", "transformers")  # packages whose versions the numbers depend on


@dataclass
class Cluster:
    """The backend of many processes: a cluster that Ray is connected to, and who joined so far.

    ``device`` is what each worker has, ``threads`` how many processor cores.
    """

    count: int
    device: str
    threads: int
    tell: Callable[[str], None]
    joined: list[dict[str, Any]] = field(default_factory=list)

    def anew(self) -> Cluster:
        """Return the same cluster before any worker joined, for another model."""
        return replace(self, joined=[])

    @property
    def machines(self) -> dict[str, Any]:
        """What a session records: each worker that has joined."""
        return {"workers": list(self.joined)}

    def answers(
        self, plan: Plan, work: dict[str, list[Item]], sizes: Sizes
    ) -> Iterator[tuple[Item, Reply]]:
        """Return the replies to all questions, once the first worker holds the weights."""
        shift = _Shift(self, plan, groups(work, self.count), sizes)
        shift.begin()
        return shift.replies()


class Worker:
    """What runs in a worker's process: it holds the weights, and answers one group at a time."""

    def prepare(self, spec: Spec, fingerprint: str, threads: int) -> dict[str, Any]:
        """Load the weights; return what this worker is, or under ``refused`` why it cannot be."""
        import torch

        from harness.sweep.answer import ready
        from harness.sweep.record import machine

        if spec.offline:
            go_offline()
        torch.set_num_threads(threads)
        where = socket.gethostname()
        try:
            checkpoint = open_model(spec)
            if checkpoint.fingerprint != fingerprint:
                message = f"its files of the model differ ({checkpoint.fingerprint})."
                raise UserError(message)
            self.model, self.device = ready(checkpoint), checkpoint.device
        except UserError as error:
            return {"refused": f"worker on {where}: {error}"}
        return {"host": where, **machine(checkpoint.device)}

    def answer(self, rotation: Any, questions: Sequence[Question], sizes: Sizes) -> Iterator[Reply]:
        """Yield the replies as they are had."""
        from harness.sweep.answer import replies

        yield from replies(self.model, self.device, rotation, questions, sizes)


class _Shift:
    """One walk over the groups: who loads, who is free, and who holds which."""

    def __init__(self, cluster: Cluster, plan: Plan, queue: Sequence[Group], sizes: Sizes) -> None:
        import ray

        self.ray, self.cluster, self.plan, self.sizes = ray, cluster, plan, sizes
        self.queue = deque(queue)
        resources = {"num_cpus": cluster.threads, "num_gpus": int(cluster.device == "cuda")}
        self.worker: Any = ray.remote(**resources)(Worker)  # type: ignore[call-overload]
        self.loading: dict[Any, Any] = {}  # the reply to prepare: its worker
        self.busy: dict[Any, tuple[Any, Group]] = {}  # a stream of replies: its worker, its group
        self.free: list[Any] = []
        self.lost = 0  # workers in a row that were lost while they loaded

    def begin(self) -> None:
        """Hire the workers and wait for the first."""
        for _ in range(min(self.cluster.count, len(self.queue))):
            self._hire()
        while not self.free:
            self._join(self._wait())

    def replies(self) -> Iterator[tuple[Item, Reply]]:
        """Yield every question's reply, each once, as the workers give them."""
        while self.queue or self.busy:
            while self.queue and self.free:
                self._give(self.free.pop(), self.queue.popleft())
            first = self._wait()
            if first in self.busy:
                yield from self._take(first)
            else:
                self._join(first)

    def _hire(self) -> None:
        """Ask for one more worker; Ray starts it where and when there is room."""
        checkpoint, spec = self.plan.checkpoint, self.plan.spec
        packed = spec.model == "reference" or not Path(checkpoint.name).is_dir()
        resolved = {
            "model": spec.model if packed else str(Path(checkpoint.name).resolve()),
            "revision": checkpoint.revision,
            "dtype": checkpoint.dtype,
            "device": "auto" if spec.device_map else checkpoint.device,
        }
        worker = self.worker.remote()
        asked = spec.model_copy(update=resolved)
        told = worker.prepare.remote(asked, checkpoint.fingerprint, self.cluster.threads)
        self.loading[told] = worker

    def _wait(self) -> Any:
        """Return what comes next: a worker that is ready, or the next of a stream of replies."""
        waits = 0
        while waits < WAITS and (self.loading or self.busy):
            ready, _ = self.ray.wait([*self.loading, *self.busy], timeout=PATIENCE)
            if ready:
                return ready[0]
            if not self.busy:
                waits = 0 if self._room() else waits + 1  # a cloud may start a node meanwhile
                gpu = " and a GPU" if self.cluster.device == "cuda" else ""
                each = f"each needs {self.cluster.threads} processor cores{gpu}"
                self.cluster.tell(f"Still waiting for a worker; {each}.")
        message = "no worker is left, nor a node that could hold one; what was measured is kept."
        raise UserError(message)

    def _room(self) -> bool:
        """Return whether a node that is alive could hold a worker, if nothing else ran on it."""
        needs = {"CPU": self.cluster.threads, "GPU": int(self.cluster.device == "cuda")}
        alive = [n["Resources"] for n in self.ray.nodes() if n["Alive"]]  # type: ignore[no-untyped-call]
        return any(all(has.get(key, 0) >= n for key, n in needs.items()) for has in alive)

    def _join(self, told: Any) -> None:
        """Take in a worker that has loaded, or hire another for one that was lost."""
        worker = self.loading.pop(told)
        try:
            facts = self.ray.get(told)
        except self.ray.exceptions.RayError as error:
            self.lost += 1
            if self.lost >= LOSSES:
                told = f"{LOSSES} workers were lost while they loaded the weights: {_why(error)}"
                if not self.free and not self.busy:
                    raise UserError(told) from None
                self.cluster.tell(f"Going on without one: {told}")
                return
            self.cluster.tell(
                "A worker was lost while it loaded the weights; another is asked for."
            )
            self._hire()
            return
        refused = facts.get("refused") or _unlike(facts)
        if not refused:
            self.lost = 0
            self.cluster.joined.append(facts)
            self.free.append(worker)
        elif self.cluster.joined:
            self.cluster.tell(f"Going on without one: {refused}")
        else:
            raise UserError(refused)

    def _give(self, worker: Any, group: Group) -> None:
        group.left = dict(enumerate(group.left.values()))
        questions = [question for _, question in group.left.values()]
        streaming = worker.answer.options(num_returns="streaming")
        rotation = self.plan.rotations[group.fingerprint]
        # What a worker was lost over may have been too much for its memory.
        sizes = self.sizes.least if group.losses else self.sizes
        stream = streaming.remote(rotation, questions, sizes)
        self.busy[stream] = (worker, group)

    def _take(self, stream: Any) -> Iterator[tuple[Item, Reply]]:
        """Yield the next reply of a stream; what a lost worker leaves is given out again."""
        worker, group = self.busy[stream]
        try:
            reply = self.ray.get(next(stream))
        except StopIteration:
            del self.busy[stream]
            self.free.append(worker)
        except self.ray.exceptions.RayError as error:
            del self.busy[stream]
            self.cluster.tell(
                f"A worker was lost; its {len(group.left)} samples are given out again."
            )
            with suppress(self.ray.exceptions.RayError):
                self.ray.kill(worker)
            self._hire()
            yield from self._again(group, error)
        else:
            group.losses = 0
            yield group.left.pop(reply.index), reply

    def _again(self, group: Group, error: Exception) -> Iterator[tuple[Item, Reply]]:
        """Give a group out again; at last every question alone, and what then fails has failed."""
        group.losses += 1
        if group.losses < LOSSES:
            self.queue.appendleft(group)
        elif len(group.left) > 1:
            alone = [{0: item} for item in group.left.values()]
            self.queue.extend(Group(group.fingerprint, left, LOSSES - 1) for left in alone)
        else:
            told = f"{LOSSES} workers were lost over it: {_why(error)}"
            memory = isinstance(error, self.ray.exceptions.OutOfMemoryError)
            for index, item in group.left.items():
                yield item, Reply(index, OutOfMemory() if memory else Failed(told), 0.0, 0.0)


def _unlike(facts: dict[str, Any]) -> str | None:
    """Return a sentence where a worker has another version of what the numbers depend on."""
    from harness.sweep.record import version

    for name in ALIKE:
        here, there = (str(v).partition("+")[0] for v in (version(name), facts["versions"][name]))
        if here != there:
            return f"worker on {facts['host']}: it has {name} {there}, here is {here}."
    return None


def _why(error: Exception) -> str:
    """Return the last line of what Ray says, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return reason(Exception(lines[-1] if lines else type(error).__name__))
