"""Notice that the head of a cluster, or this process's own node, is gone."""

from __future__ import annotations

import socket
import time
from typing import Any

from harness.errors import UserError

STEP = 5.0  # seconds between looks
GRACE = 20.0  # seconds for a head that is restarted
KEPT = "what was measured is kept. Start Ray again, and the same command continues."


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
