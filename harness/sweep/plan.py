"""The plan of a sweep before any weight is read: cells, requests, and the backend they go to."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, Protocol

from ropewalk.harness.data.corpus import Corpus, entries_of, open_all
from ropewalk.harness.data.documents import Documents
from ropewalk.harness.engine import OutOfMemory
from ropewalk.harness.errors import Collector, UserError, printable
from ropewalk.harness.models.checkpoint import (
    Checkpoint,
    check_generation,
    check_rope,
    open_checkpoint,
)
from ropewalk.harness.models.weights import parts_left_out
from ropewalk.harness.patching.resolve import over_lengths, supersets
from ropewalk.harness.plugins import Plugin, call, load
from ropewalk.harness.runs.compatible import deciding
from ropewalk.harness.sweep.spec import CELLS, Spec
from ropewalk.scaling._files import read_table
from ropewalk.scaling.types import Rotation
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import Generate, ModelRequest, Request, Response, TaskContext

QUESTIONS = 300_000
Requests = Mapping[str, Mapping[int, Sequence[Request]]]  # by task label and length
Resolved = Mapping[tuple[str, int], Rotation | UserError]  # by method label and length
Key = tuple[str, str]  # a cell's key and a question's digest


@dataclass(frozen=True)
class Cell:
    """One square of the sweep. Cells of equal ``key`` are the same measurement.

    ``rotation`` is what the method returned at this length; ``failed`` says why there is none.
    ``superset`` are the bands of a longer length that begin with it: both are then measured under
    those, so that one attention is checked on the model and has its tables made.
    """

    scaling: str
    task: str
    length: int
    rotation: Rotation | None
    key: str
    questions: tuple[Request, ...]
    failed: str | None = None
    superset: Rotation | None = None

    @cached_property
    def frequencies(self) -> str | None:
        """The fingerprint of the rotation, which names it in the records."""
        return None if self.rotation is None else self.rotation.fingerprint


class Item(NamedTuple):
    """One question of a cell: what a sample is measured of."""

    cell: Cell
    question: Request

    @property
    def key(self) -> Key:
        """Its one identity, in memory, between processes and in the records."""
        return self.cell.key, self.question.digest


@dataclass(frozen=True)
class Batch:
    """Questions that are answered together, under one rotation."""

    rotation: Rotation
    items: tuple[Item, ...]

    @property
    def questions(self) -> dict[Key, ModelRequest]:
        """The questions by their identity, without their cells; none is a group."""
        return {
            item.key: request for item in self.items for request in item.question.model_requests
        }

    @property
    def tokens(self) -> int:
        """The tokens of all inputs."""
        return sum(item.question.length for item in self.items)


@dataclass(frozen=True)
class Plan:
    """A whole sweep, resolved: everything a run record needs, and nothing measured yet."""

    spec: Spec
    checkpoint: Checkpoint
    lengths: tuple[int, ...]
    methods: tuple[Plugin, ...]
    tasks: tuple[Plugin, ...]
    cells: tuple[Cell, ...]
    sources: dict[str, TaskContext]  # by task label
    documents: tuple[dict[str, Any], ...]
    left_out: dict[str, int]  # documents that are not read, by the reason
    only: Set[Key] | None = None  # the questions to ask now, where it is not all of them

    def left(self, done: set[Key]) -> Iterator[Item]:
        """Yield the questions that have no sample yet, each once."""
        seen = set(done)
        for cell in self.cells:
            for item in (Item(cell, question) for question in cell.questions):
                wanted = self.only is None or item.key in self.only
                if wanted and cell.rotation is not None and item.key not in seen:
                    seen.add(item.key)
                    yield item

    def work(self, done: set[Key]) -> tuple[Batch, ...]:
        """Return what is left to ask the model by the rotation it runs under."""
        batches: dict[str | None, tuple[Rotation, list[Item]]] = {}
        for cell, question in self.left(done):
            rotation = cell.superset or cell.rotation
            if rotation is not None and not question.too_long:
                name = cell.superset.fingerprint if cell.superset else cell.frequencies
                _, items = batches.setdefault(name, (rotation, []))
                items += [Item(cell, part) for part in question.model_requests]
        return tuple(Batch(rotation, tuple(items)) for rotation, items in batches.values())


@dataclass(frozen=True)
class Failed:
    """A request that has no response, and why in one sentence."""

    reason: str


@dataclass(frozen=True)
class Reply:
    """What came of one request of a batch.

    ``seconds`` is wall time; ``shared`` says whether it was computed together with others.
    """

    outcome: Response | Failed | OutOfMemory
    seconds: float
    peak_mib: float
    shared: bool = False


class Backend(Protocol):
    """Answers requests under the rotations of a plan.

    Attributes:
        workers: how many requests it answers at the same time.
        machines: what a session records of its machines, once weights are loaded; it changes where
            a worker joins later.
    """

    @property
    def workers(self) -> int: ...  # noqa: D102
    @property
    def machines(self) -> dict[str, Any]: ...  # noqa: D102

    def open(self, spec: Spec) -> Checkpoint:
        """Return the model of a spec, before its weights are read."""

    def answers(self, plan: Plan, work: Sequence[Batch]) -> Iterator[tuple[Item, Reply]]:
        """Load the weights, and yield the replies to all requests, each once, in any order.

        Weights stay loaded for plans of the same checkpoint that follow. No item is a group.
        Raises UserError where nothing can be answered; the failure of one request is its reply.
        """


def open_model(spec: Spec, *, elsewhere: str | None = None) -> Checkpoint:
    """Open the model a spec names; ``elsewhere`` is the device where workers compute."""
    given = inspect.signature(open_checkpoint).parameters.keys() & Spec.model_fields.keys()
    opened = open_checkpoint(spec.model, **spec.model_dump(include=given), elsewhere=elsewhere)
    check_rope(opened.config, opened.rope, trust_remote_code=opened.trust_remote_code)
    return replace(opened, left_out=parts_left_out(opened))


def make_plan(
    spec: Spec,
    *,
    opening: Callable[[Spec], Checkpoint] = open_model,
    checkpoint: Checkpoint | None = None,
) -> Plan:
    """Check every name, option, document and frequency of the sweep; raise UserError.

    Mistakes are raised together within a stage: names, options and documents; lengths and
    frequencies; what tasks ask. ``opening`` is the backend's ``open``; ``checkpoint`` is that of a
    model which is loaded already, in place of the spec's name.
    """
    many = len(spec.scaling), len(spec.task), len(spec.length)
    if prod(many) > CELLS:
        raise UserError(
            "{:,} methods x {:,} tasks x {:,} lengths".format(*many) + f" are {prod(many):,} cells;"
            f" at most {CELLS:,} are planned; give fewer."
        )
    found, opened = Collector(), dict[str, Documents]()
    methods = _load_all("method", spec.scaling, found)
    tasks = _load_all("task", spec.task, found)
    with found.collecting():
        opened = open_all(spec.docs, tasks)
    found.check()
    checkpoint = checkpoint or opening(spec)
    rope = checkpoint.rope
    lengths, resolved = tuple[int, ...](), dict[tuple[str, int], Rotation | UserError]()
    with found.collecting():
        lengths = spec.lengths(rope.trained_length)
    for method in methods:
        with found.collecting():
            resolved |= rotations(checkpoint, [method], lengths)
    found.check()
    tables = calibrations(methods).values()
    calibrated = {text["sha256"] for table in tables for text in table.get("documents", ())}
    corpora = {
        documents: Corpus(documents, checkpoint.tokenizer, rope.trained_length, calibrated)
        for documents in opened.values()
    }
    sources = {task: corpora[documents].context for task, documents in opened.items()}
    requests = dict[str, Mapping[int, Sequence[Request]]]()
    for task in tasks:
        with found.collecting():
            requests[task.label] = ask(task, sources[task.label], lengths, spec.seed)
    with found.collecting():
        every = [q for by in requests.values() for some in by.values() for q in some]
        parts = [part for question in every for part in question.model_requests]
        _check_vocabulary(checkpoint, parts)
        if any(isinstance(part, Generate) for part in parts):
            check_generation(checkpoint)
    found.check()
    for corpus in corpora.values():
        if not corpus.entries:  # no task read it, and its name may be wrong
            next(iter(corpus.documents.read()), None)
    return Plan(
        spec=spec,
        checkpoint=checkpoint,
        lengths=lengths,
        methods=methods,
        tasks=tasks,
        cells=make_cells(checkpoint, tasks, resolved, requests),
        sources=sources,
        documents=entries_of(corpora.values()),
        left_out=dict(sum((corpus.left_out for corpus in corpora.values()), Counter())),
    )


def _load_all(kind: str, given: Sequence[Any], found: Collector) -> tuple[Plugin, ...]:
    """Return the plug-ins that can be loaded; collect what is wrong with the others."""
    plugins = []
    for entry in given:
        with found.collecting():
            plugins.append(load(kind, entry))
    with found.collecting():
        distinct("scaling" if kind == "method" else kind, plugins)
    return tuple(plugins)


def with_methods(plan: Plan, scaling: Sequence[str]) -> Plan:
    """Return a plan of the same questions under other methods; raise UserError as make_plan."""
    methods = distinct("scaling", [load("method", given) for given in scaling])
    requests = {
        task.label: {cell.length: cell.questions for cell in plan.cells if cell.task == task.label}
        for task in plan.tasks
    }
    resolved = rotations(plan.checkpoint, methods, plan.lengths)
    cells = make_cells(plan.checkpoint, plan.tasks, resolved, requests)
    spec = plan.spec.model_copy(update={"scaling": tuple(scaling)})
    return replace(plan, spec=spec, methods=methods, cells=cells)


def calibrations(methods: Iterable[Plugin]) -> dict[str, Mapping[str, Any]]:
    """Return what is in the files of measured heads that methods name, by path."""

    def files(module: str, options: Mapping[str, Any]) -> Iterator[str]:
        for name, value in options.items():
            if isinstance(value, partial):  # the method of an option, such as ``on``
                yield from files(value.func.__module__, value.keywords)
            elif name == "heads" and value and module.startswith("ropewalk.scaling."):
                yield value  # an option of a user's own method may mean anything

    tables: dict[str, Mapping[str, Any]] = {}
    for method in methods:
        for file in files(method.module.__name__, method.arguments):
            with suppress(ValueError):  # the method's own cells say why
                tables[file] = read_table(file, "heads")
    return tables


def distinct(flag: str, plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Reject two of one label: their curves would have one name."""
    labels = [plugin.label for plugin in plugins]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"--{flag} names {label!r} twice; leave one out, or rename a file.")
    return tuple(plugins)


def ask(
    task: Plugin, source: TaskContext, lengths: Sequence[int], seed: int
) -> dict[int, list[Request]]:
    """Return the questions of a task by length, of equal ones each with its turn: all count."""
    by_length: dict[int, list[Request]] = {length: [] for length in lengths}
    turns: Counter[tuple[int, str]] = Counter()

    def questions() -> None:
        requests = task.module.ask(source, lengths, seed=seed, **task.arguments)
        for number, question in enumerate(requests):
            if not isinstance(question, Request):
                raise ValueError(f"it yields {type(question).__name__}, not Request")
            if number == QUESTIONS:
                raise UserError(
                    f"the plan has more than {QUESTIONS:,} questions, more than one task may have;"
                    " give fewer lengths, documents or trials, or for windows with a larger stride."
                )
            check_facts([question.doc_id, question.metadata])
            length = question.cell or question.length
            if length not in lengths:
                raise ValueError(
                    f"{question.doc_id}: its {length} tokens are not a length of the sweep"
                )
            turn = turns[length, question.digest]
            turns[length, question.digest] += 1
            by_length[length].append(replace(question, repeat=turn) if turn else question)

    call(f"task {task.label}", questions)
    if not any(by_length.values()):
        raise UserError(f"task {task.label}: ask yields no request, at no length of the sweep.")
    return by_length


def check_facts(facts: Any) -> None:
    """Raise an error for what no line of ``samples.jsonl`` can hold."""
    json.dumps(facts, allow_nan=False, ensure_ascii=False).encode()


def _check_vocabulary(checkpoint: Checkpoint, parts: Iterable[ModelRequest]) -> None:
    size = checkpoint.config.get_text_config().vocab_size
    for part in parts:
        tokens = kept(part.tokens).numbers()
        for token in (int(tokens.min()), int(tokens.max())):
            if not 0 <= token < size:
                raise UserError(
                    f"{part.doc_id}: token {token} is not in the vocabulary of {checkpoint.label},"
                    f" which has {size}: the tokenizer and the model do not belong together."
                )


def rotations(
    checkpoint: Checkpoint, methods: Sequence[Plugin], lengths: Sequence[int]
) -> dict[tuple[str, int], Rotation | UserError]:
    """Return what every method does at every length, or why it fails there.

    Raises UserError for a method whose options are wrong.
    """
    resolved, most = over_lengths(methods, checkpoint.rope, lengths), checkpoint.positions
    for method, length in resolved if most else ():
        if most and length > most:
            resolved[method, length] = UserError(
                f"{checkpoint.label} has positions for {most:,} tokens and cannot read {length:,}."
            )
    return resolved


def make_cells(
    checkpoint: Checkpoint, tasks: Sequence[Plugin], resolved: Resolved, requests: Requests
) -> tuple[Cell, ...]:
    """Return the cells of every task, method and length."""
    longest, cells = supersets(resolved), []
    for task in tasks:
        for (method, length), one in resolved.items():
            rotation = None if isinstance(one, UserError) else one
            fingerprint = None if rotation is None else rotation.fingerprint
            cell = Cell(
                scaling=method,
                task=task.label,
                length=length,
                rotation=rotation,
                key=_key(checkpoint, fingerprint, task, length),
                questions=tuple(requests[task.label][length]),
                failed=printable(str(one)) if isinstance(one, UserError) else None,
                superset=longest.get(fingerprint or ""),
            )
            cells.append(cell)
    return tuple(cells)


def _key(checkpoint: Checkpoint, fingerprint: str | None, task: Plugin, length: int) -> str:
    """Hash all a sample's number depends on but its question."""
    parts = [
        checkpoint.fingerprint,
        checkpoint.dtype,
        fingerprint,
        task.module.__name__.rpartition(".")[2],
        task.digest,
        task.module.VERSION,
        deciding(task.options),
        length,
        *([f"served by {checkpoint.served}"] if checkpoint.served else []),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
