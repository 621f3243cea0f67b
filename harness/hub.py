"""Errors of the hub and of foreign models as one sentence, waits in words, and offline mode."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from ropewalk.harness.errors import UserError, panicked, reason, words

LOG_IN = "hf auth login"
UNREACHED = f"the hub ({constants.ENDPOINT}) cannot be reached; --offline reads its cache."
MISSING = re.compile(r"missing \((.+?)\)")
WAIT = re.compile(r"(\d+)\S* .*\[Retry (\d+)/(\d+)\]")


def refusal(error: BaseException, name: str, kind: str = "model") -> str | None:
    """Return what the hub rejected and what to do, from its exception behind an error, or None."""
    causes = list(_causes(error))
    for rejected in (HfHubHTTPError, LocalEntryNotFoundError):
        for cause in causes:
            if isinstance(cause, rejected) and not isinstance(cause, RemoteEntryNotFoundError):
                return _message(cause, name, kind)
    return None


def say_waits() -> None:
    """Let the hub's client say nothing but that it waits, and how long."""
    hub_logging.set_verbosity_warning()
    for handler in logging.getLogger("huggingface_hub").handlers:
        if _waits not in handler.filters:
            handler.addFilter(_waits)


def _waits(record: logging.LogRecord) -> bool:
    if wait := WAIT.search(record.getMessage()):
        tell(
            f"The hub does not answer, or limits requests: next attempt in {wait[1]} s "
            f"({wait[2]} of {wait[3]})."
        )
    return False


def tell(line: str) -> None:
    """Write a line to the current standard error, which a progress bar may have replaced."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_answers(name: str) -> None:
    """Ask for a data set once: its reader asks a hub that does not answer for half a minute.

    Raises ConnectionError where nothing answers; what the hub answers is the client's own error.
    """
    from huggingface_hub import HfApi  # the whole client, which a sweep of files does not need

    try:
        HfApi().dataset_info(name)
    except HfHubHTTPError:
        raise
    except Exception:  # noqa: BLE001  # the client has one of its own for each way
        raise ConnectionError(UNREACHED) from None


def gated(name: str, kind: str) -> str:
    """Return what to do about a repository whose conditions have to be accepted."""
    return (
        f"it is gated; accept its conditions at {_page(name, kind)} with the account that is "
        f"logged in ({LOG_IN})."
    )


def _page(name: str, kind: str) -> str:
    return f"{constants.ENDPOINT}/{'datasets/' if kind == 'data set' else ''}{name}"


def _message(error: Any, name: str, kind: str) -> str:
    """Return the sentence for one exception of the hub's client."""
    if isinstance(error, LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            missing = MISSING.search(str(error))
            file = missing[1] if missing else "such file"
            return f"the hub's cache has no {file}; run once without --offline."
        return UNREACHED
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


TRUST = "where you trust it, let it run with --trust-remote-code."


@contextmanager
def attempting(part: str, where: str) -> Iterator[None]:
    """Turn any error of reading a model's content into a UserError naming the part and the model.

    The content is foreign: a value of a wrong type fails somewhere in the library, or here.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or panicked(error)):
            raise
        raise UserError(_sentence(part, where, error)) from error


def attempt(part: str, where: str, function: Callable[[], Any]) -> Any:
    """Return what a function reads of a model; raise UserError as ``attempting`` does."""
    with attempting(part, where):
        return function()


def _sentence(part: str, where: str, error: BaseException) -> str:
    """Return what went wrong and what to do about it."""
    if "trust_remote_code=True" in words(error):
        return f"the {part} of {where} needs the repository's own code; {TRUST}"
    why = refusal(error, where) or reason(error)
    if isinstance(error, ImportError):
        install = f" (pip install {error.name})" if error.name else ""
        return f"the {part} of {where} cannot be read without a package: {why}{install}"
    damaged = type(error).__name__ == "SafetensorError"
    hint = "; the file is damaged or incomplete: download it again." if damaged else ""
    return f"the {part} of {where} cannot be read: {why}{hint}"


# What each library read when it was imported; the variables reach those not imported yet, and the
# processes that are started.
READ = {
    "huggingface_hub.constants": ("HF_HUB_OFFLINE",),
    "datasets.config": ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
}


def go_offline() -> None:
    """Set HF_HUB_OFFLINE, also in libraries that have read it, for the rest of the process."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for module, names in READ.items():
        if module in sys.modules:
            for name in names:
                if hasattr(sys.modules[module], name):
                    setattr(sys.modules[module], name, True)
