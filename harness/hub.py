"""Say what the hub refuses in one sentence, and its waits in words."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import logging as hub_logging

LOG_IN = "hf auth login"
MISSING = re.compile(r"missing \((.+?)\)")
WAIT = re.compile(r"(\d+)\S* .*\[Retry (\d+)/(\d+)\]")


def refusal(error: BaseException, name: str, kind: str = "model") -> str | None:
    """Return what the hub refused and what to do, from its exception behind an error.

    None where the hub refused nothing.
    """
    causes = list(_causes(error))
    for refused in (HfHubHTTPError, LocalEntryNotFoundError):
        for cause in causes:
            if isinstance(cause, refused) and not isinstance(cause, RemoteEntryNotFoundError):
                return _told(cause, name, kind)
    return None


def say_waits() -> None:
    """Let the hub's client say nothing but that it waits, and how long."""
    hub_logging.set_verbosity_warning()
    for handler in logging.getLogger("huggingface_hub").handlers:
        if _waits not in handler.filters:
            handler.addFilter(_waits)


def _waits(record: logging.LogRecord) -> bool:
    if found := WAIT.search(record.getMessage()):
        tell(
            f"The hub does not answer, or limits requests: next attempt in {found[1]} s "
            f"({found[2]} of {found[3]})."
        )
    return False


def tell(line: str) -> None:
    """Write a line to standard error as it is now: a progress bar may stand in for it."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def gated(name: str, kind: str) -> str:
    """Return what to do about a repository that its owner gives to those who accept conditions."""
    return (
        f"it is gated; accept its conditions at {_page(name, kind)} with the account that is "
        f"logged in ({LOG_IN})."
    )


def _page(name: str, kind: str) -> str:
    return f"{constants.ENDPOINT}/{'datasets/' if kind == 'data set' else ''}{name}"


def _told(error: Any, name: str, kind: str) -> str:
    """Return the sentence for one exception of the hub's client."""
    if isinstance(error, LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            lacking = MISSING.search(str(error))
            named = lacking[1] if lacking else "such file"
            return f"the hub's cache has no {named}; run once without --offline."
        return f"the hub ({constants.ENDPOINT}) cannot be reached; --offline reads its cache."
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        return gated(name, kind)
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no folder of this name, and the hub has no such {kind}; for a private one "
            f"log in ({LOG_IN})."
        )
    if isinstance(error, RevisionNotFoundError):
        return (
            f"the hub has no such revision of it; its branches and tags are at {_page(name, kind)}."
        )
    if status == 429:
        return f"the hub limits requests (HTTP 429): wait some minutes, or log in ({LOG_IN})."
    if status == 401:
        return f"the hub does not accept the token (HTTP 401): log in again ({LOG_IN})."
    return f"the hub answers HTTP {status}; try again later, or --offline to read its cache."
