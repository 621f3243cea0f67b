"""The questions of a run, asked again of its documents and its tokenizer: no weight is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from harness.data.corpus import make_corpora, open_all
from harness.data.documents import Documents, open_documents
from harness.errors import UserError
from harness.hub import go_offline
from harness.models.checkpoint import open_tokenizer
from harness.plugins import Plugin, load, names_code
from harness.runs.frame import own_tasks, task_of
from harness.runs.schema import checked_run
from harness.sweep.bounds import Tally
from harness.sweep.parse import parse
from harness.sweep.plan import ask
from harness.sweep.reproduce import as_asked, check_no_code
from harness.sweep.spec import Spec
from tasks.types import Request, TaskContext


@dataclass(frozen=True)
class Asked:
    """A task's questions by their digests, and the source that they were made of."""

    task: Plugin
    source: TaskContext
    questions: Mapping[str, Request]


def ask_again(
    folder: Path,
    labels: Iterable[str],
    places: Mapping[str, str],
    *,
    tasks: Iterable[str] = (),
    code: bool = False,
) -> dict[str, Asked]:
    """Return the questions of these tasks of a run by the task's label.

    ``places`` say where model and documents lie now; ``tasks`` are the user's own, which run
    because they are named; other code that the record names needs ``code``. Raises UserError where
    a question of the record is not asked any more.
    """
    record = checked_run(folder)
    own = own_tasks(tasks)
    plugins = {label: _task(folder, one, own) for label, one in record["tasks"].items()}
    spec = parse(None, as_asked(record, places))
    if not code:
        built_in = [one.given for one in plugins.values() if one.digest is None]
        named = [given for given in built_in if names_code("task", given)]
        check_no_code(folder, named + ["trust_remote_code"] * spec.trust_remote_code)
    if spec.offline:
        go_offline()
    try:
        return _asked(record, spec, plugins, labels)
    except UserError as error:
        raise UserError(
            f"the questions of {folder} cannot be asked again (--model and --docs say where model "
            f"and documents lie now): {error}"
        ) from error


def _asked(
    record: Mapping[str, Any], spec: Spec, plugins: Mapping[str, Plugin], labels: Iterable[str]
) -> dict[str, Asked]:
    """Return the questions of these tasks; raise UserError where they are not those recorded."""
    trusted = spec.trust_remote_code
    tokenizer = open_tokenizer(spec.model, revision=spec.revision, trust_remote_code=trusted)
    opened = open_all(spec.docs, list(plugins.values()), _opened)
    corpora = make_corpora(opened, tokenizer, record["model"]["trained_length"])
    tally, found = Tally(), {}
    for label in labels:
        task, source = plugins[label], corpora.source(label)
        asked = ask(task, source, record["lengths"], record["seed"], tally)
        for length, questions in asked.items():
            then = set(record["tasks"][label]["questions"].get(str(length), ()))
            if not then <= {question.digest for question in questions}:
                raise UserError(
                    f"those of {label} at {length} tokens are not what was asked; documents, "
                    "tokenizer or a package changed."
                )
        every = {question.digest: question for some in asked.values() for question in some}
        found[label] = Asked(task, source, every)
    return found


def _opened(given: str) -> Documents:
    """Open documents; that they are not there is an error only where a task reads them."""
    try:
        return open_documents(given)
    except UserError as error:
        lost = error

    def read() -> NoReturn:
        raise lost

    return Documents(given, read)


def _task(folder: Path, record: Mapping[str, Any], own: Sequence[Plugin]) -> Plugin:
    """Return the task of a record with its options, a user's own from where it lies now."""
    task = task_of(folder, record, own)
    if task.digest is None:
        return task
    options = str(record["given"]).partition(":")[2]
    return load("task", f"{task.given.partition(':')[0]}:{options}")
