"""Load a task of lm-evaluation-harness: from its own files or a user's, with our tokenizer."""

from __future__ import annotations

import hashlib
import io
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any
from unittest.mock import patch

INSTALL = "install it with pip install 'ropewalk[lm-eval]'"
NUMPY_SEED = FEWSHOT_SEED = 1234  # of lm-eval by default, beside 0 for Python's random


@dataclass(frozen=True)
class Wanted:
    """Which task is asked for, and how: the options of ``lm_eval``."""

    tasks: str
    limit: int
    num_fewshot: int | None
    metric: str
    filter: str
    include: str
    chat: bool


def version() -> str:
    """Return which lm-eval is installed; raise ValueError where none is."""
    try:
        return installed("lm_eval")
    except PackageNotFoundError:
        raise ValueError(f"it needs the package lm-eval; {INSTALL}") from None


@contextmanager
def working(name: str, what: str) -> Iterator[None]:
    """Keep lm-eval from writing on the terminal; what it raises becomes a ValueError."""
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"lm-eval's task {name} needs the package {error.name}; install it with pip"
        ) from error
    except Exception as error:
        told = " ".join(str(error).split())[:200]
        raise ValueError(f"lm-eval cannot {what} {name}: {type(error).__name__}: {told}") from error


def load_task(wanted: Wanted, tokenizer: Any, length: int) -> Any:
    """Return a task, ready to build requests.

    A task that makes its documents is given the length and the tokenizer. Raises ValueError for a
    name that is none, a group, and a task that cannot be asked here.
    """
    version()
    name = wanted.tasks
    if not name:
        raise ValueError("name a task of lm-eval: lm_eval:tasks=NAME")
    told = f"{getattr(tokenizer, 'name_or_path', '')}#{id(tokenizer)}"
    metadata = {"max_seq_lengths": [length], "tokenizer": told}
    with working(name, "find"):
        manager = _manager(_folders(name, wanted.include), metadata)
        entry = manager.task_index.get(name)
    if entry is None:
        raise ValueError(f"lm-eval has no task {name!r}; lm-eval ls tasks prints all")
    if entry.kind.name in ("GROUP", "TAG"):
        parts = entry.tags or [part for part in entry.cfg["task"] if isinstance(part, str)]
        raise ValueError(
            f"{name} is several tasks of lm-eval; name them: tasks={'+'.join(sorted(parts))}"
        )
    with working(name, "load the data of"), _own_tokenizer(told, tokenizer):
        task = manager.load([name])["tasks"][name]
    _check(name, task)
    _set_fewshot(task, wanted.num_fewshot)
    return task


def _check(name: str, task: Any) -> None:
    if getattr(task, "UNSAFE_CODE", False):
        raise ValueError(
            f"lm-eval's task {name} executes what a model writes, which is not done here"
        )
    if getattr(task, "MULTIMODAL", False):
        raise ValueError(f"lm-eval's task {name} has images or sound; only texts are asked here")


def _set_fewshot(task: Any, count: int | None) -> None:
    """Set the number of examples as lm-eval's ``simple_evaluate`` does."""
    fixed = task.get_config("num_fewshot")
    if count is not None and fixed != 0:
        task.set_config(key="num_fewshot", value=count)
    elif fixed is None:
        task.set_config(key="num_fewshot", value=0)


def _manager(folders: tuple[Path, ...], metadata: dict[str, Any]) -> Any:
    from lm_eval.tasks import TaskManager

    paths = list(folders)
    return TaskManager(include_path=paths, include_defaults=False, metadata=metadata)


@cache
def _folders(name: str, include: str) -> tuple[Path, ...]:
    """Return the folders whose YAML files name a task; to parse all would take a minute."""
    if include and not Path(include).is_dir():
        raise NotADirectoryError(f"the folder {include} of include does not exist")
    import lm_eval.tasks

    # Paths from the package's own folder are tried after the user's.
    named = re.compile(rb"(?<![\w.-])" + re.escape(name.encode()) + rb"(?![\w.-])")
    files = sorted(Path(lm_eval.tasks.__file__).parent.rglob("*.yaml"))
    found = {file.parent for file in files if named.search(file.read_bytes())}
    return (*sorted(found), *([Path(include)] if include else []))


def code_digest(include: str) -> str:
    """Return a hash of the files of a user's folder, whose functions grade."""
    files = sorted(path for path in Path(include).rglob("*") if path.suffix in (".py", ".yaml"))
    digest = hashlib.sha256()
    for file in files if include else []:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed what a task draws from as lm-eval does, and leave the process's own draws alone."""
    import numpy as np

    state, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002  # what tasks use
    random.seed(seed)
    np.random.seed(NUMPY_SEED + seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(arrays)  # noqa: NPY002


@contextmanager
def _own_tokenizer(told: str, tokenizer: Any) -> Iterator[None]:
    """Give a task that loads the model's tokenizer the one we have, and trust no other's code.

    Differs from lm-eval: RULER's tasks load it with trust_remote_code, whatever the user said.
    """
    from lm_eval.tasks.ruler.common_utils import AutoTokenizer

    load = AutoTokenizer.from_pretrained

    def ours(name: Any, *given: Any, **options: Any) -> Any:
        return tokenizer if name == told else load(name, *given, **{**options, **UNTRUSTED})

    with patch.object(AutoTokenizer, "from_pretrained", ours):
        yield


UNTRUSTED = {"trust_remote_code": False}
