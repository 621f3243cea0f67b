"""Run foreign content that may have no end in a process of its own, with limits."""

from __future__ import annotations

import multiprocessing
import resource
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from harness.errors import reason

SECONDS, MEMORY, LONGEST = 10, 2**30, 2**22  # processor time, bytes, characters of a result
ENDLESS = None, f"it takes more than {SECONDS} seconds or {MEMORY // 2**20} MiB"
HUNG = 120.0  # seconds after which a process that uses no processor time is given up


def confined(function: Callable[[], str]) -> str:
    """Return the text that a function returns; raise ValueError where it fails or has no end.

    It runs in a fork, so that a loop in C or an allocation ends too, which no signal would reach.
    The limit on memory holds on Linux alone.
    """
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe(duplex=False)
    process = forks.Process(target=_limited, args=(function, theirs), daemon=True)
    with warnings.catch_warnings(), ours:
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are not needed there
        process.start()
        theirs.close()
        try:
            text, why = ours.recv() if ours.poll(HUNG) else ENDLESS
        except EOFError:  # the system ended it
            text, why = ENDLESS
        process.kill()
        process.join()
        process.close()
    if text is None:
        raise ValueError(why)
    return str(text)


def _limited(function: Callable[[], str], answer: Connection) -> None:
    """Send the text that a function returns, or None and why there is none."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    mapped = Path("/proc/self/statm")
    if mapped.exists():
        size = int(mapped.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    try:
        text = function()
        if len(text) > LONGEST:
            answer.send((None, f"it writes {len(text):,} characters"))
        else:
            answer.send((text, ""))
    except Exception as error:  # noqa: BLE001  # it is foreign
        answer.send((None, reason(error)))
