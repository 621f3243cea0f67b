"""A worker of a Ray cluster: a process that holds the weights and answers batches."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.engine import Sizes
from harness.errors import UserError
from harness.hub import go_offline
from harness.names import place
from harness.sweep.backend import Reply
from harness.sweep.plan import Key, Plan, open_model
from harness.sweep.spec import Spec
from tasks.types import ModelRequest

ALIKE = ("ropewalk", "torch", "transformers")  # packages whose versions the numbers depend on


class Worker:
    """What runs in a worker's process; it answers one batch at a time."""

    def prepare(self, spec: Spec, fingerprint: str, threads: int) -> dict[str, Any]:
        """Load the weights; return what this worker is, or under ``refused`` why it cannot be."""
        import torch

        from harness.sweep.backend import ready
        from harness.sweep.record import machine

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
        from harness.sweep.backend import replies

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
    from harness.sweep.record import version

    for name in ALIKE:
        here, there = (str(v).partition("+")[0] for v in (version(name), facts["versions"][name]))
        if here != there:
            return f"worker on {facts['host']}: it has {name} {there}, here is {here}."
    return None
