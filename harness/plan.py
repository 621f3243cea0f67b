"""From a spec to the cells and questions of a sweep, before any weight is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from harness.checkpoint import Checkpoint, check_scaling_is_rotary, open_checkpoint
from harness.errors import UserError
from harness.library import make_library, open_all
from harness.plugins import Plugin, call, entry, load
from harness.spec import Spec
from scaling import native
from scaling._bands import Bands
from scaling._rotation import Rotation, frequencies_of
from scaling._types import Rope
from tasks._types import Question, Source

Asked = dict[str, list[Question]]  # by task label


@dataclass(frozen=True)
class Cell:
    """One square of the sweep. Cells of equal ``key`` are the same measurement."""

    scaling: str
    task: str
    length: int
    frequencies: str
    key: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Plan:
    """A whole sweep, resolved: everything a run record needs, and nothing measured yet."""

    spec: Spec
    checkpoint: Checkpoint
    lengths: tuple[int, ...]
    methods: tuple[Plugin, ...]
    tasks: tuple[Plugin, ...]
    rotations: dict[str, Rotation]
    hosts: dict[str, str]  # of bands that are another's in a shorter context, that other
    cells: tuple[Cell, ...]
    source: Source  # of the first task; the tokenizer is that of all
    documents: tuple[dict[str, Any], ...]
    repeated: int  # documents left out because their text was there before

    def work(self, done: set[tuple[str, str]]) -> dict[str, list[tuple[Cell, Question]]]:
        """Return what is left to measure by the fingerprint it runs under, every question once."""
        seen = set(done)
        groups: dict[str, list[tuple[Cell, Question]]] = {}
        for cell in self.cells:
            for question in cell.questions:
                if (cell.key, question.digest) not in seen:
                    seen.add((cell.key, question.digest))
                    host = self.hosts.get(cell.frequencies, cell.frequencies)
                    groups.setdefault(host, []).append((cell, question))
        return groups


def make_plan(spec: Spec) -> Plan:
    """Check every name, option, document and frequency of the sweep; raise UserError."""
    methods = unlike("scaling", [load("method", given) for given in spec.scaling])
    tasks = unlike("task", [load("task", given) for given in spec.task])
    opened = open_all(spec.docs, tasks)
    given = ("revision", "dtype", "device", "trust_remote_code", "allow_pickle")
    checkpoint = open_checkpoint(spec.model, **spec.model_dump(include=set(given)))
    call("the checkpoint", lambda: native.frequencies(checkpoint.rope, 1))
    check_scaling_is_rotary(checkpoint)
    lengths = spec.lengths(checkpoint.rope.trained_length)
    pairs = [(method, length) for method in methods for length in lengths]
    rotations = {(m.label, length): resolve(m, checkpoint.rope, length) for m, length in pairs}
    library = make_library(opened, checkpoint.tokenizer, checkpoint.rope.trained_length)
    asked: Asked = {
        task.label: _ask(task, library.source(task.label), lengths, spec.seed) for task in tasks
    }
    _check_vocabulary(checkpoint, asked)
    cells = tuple(
        _cell(checkpoint, method, task, length, rotations[method.label, length], asked)
        for task in tasks
        for method, length in pairs
    )
    return Plan(
        spec=spec,
        checkpoint=checkpoint,
        lengths=lengths,
        methods=methods,
        tasks=tasks,
        rotations={found.fingerprint: found for found in rotations.values()},
        hosts=_hosts(rotations),
        cells=cells,
        source=library.source(tasks[0].label),
        documents=library.entries(),
        repeated=library.repeated(),
    )


def _hosts(rotations: Mapping[tuple[str, int], Rotation]) -> dict[str, str]:
    """Return, of bands that a method's bands at its longest length begin with, those longest.

    Both are then measured by one attention, so that shorter contexts can be read off longer ones.
    """
    longest: dict[str, tuple[int, Rotation]] = {}
    for (label, length), found in rotations.items():
        longest[label] = max(longest.get(label, (0, found)), (length, found), key=itemgetter(0))
    hosts = {}
    for (label, length), found in rotations.items():
        whole = longest[label][1]
        if not isinstance(found, Bands) or not isinstance(whole, Bands) or found is whole:
            continue
        if whole.upto(length).fingerprint == found.fingerprint:
            hosts[found.fingerprint] = whole.fingerprint
    return hosts


def resolve(method: Plugin, rope: Rope, length: int) -> Rotation:
    """Compute what a method does at a length; raise UserError for what cannot be used."""
    what = f"scaling {method.label} at length {length}"
    found: Any = call(what, lambda: entry(method.module, "method")(rope, length, **method.options))
    if not isinstance(found, Rotation):
        message = f"{what}: it returned {type(found).__name__}, not Frequencies or Bands."
        raise UserError(message)
    if isinstance(found, Bands) and found.length != length:
        message = f"{what}: its bands are for {found.length} tokens."
        raise UserError(message)
    wanted, inner = rope.rotary_dim // 2, found.bands if isinstance(found, Bands) else (found,)
    for counts in {len(frequencies_of(part).inv_freq) for part in inner} - {wanted}:
        message = f"{what}: {counts} frequencies for {wanted} channel pairs."
        raise UserError(message)
    return found


def unlike(flag: str, plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Refuse two of one label: their curves could not be told apart."""
    labels = [plugin.label for plugin in plugins]
    for label in labels:
        if labels.count(label) > 1:
            message = f"--{flag} names {label!r} twice; leave one out, or rename a file."
            raise UserError(message)
    return tuple(plugins)


def _ask(task: Plugin, source: Source, lengths: Sequence[int], seed: int) -> list[Question]:
    what = f"task {task.label}"
    options = dict(task.options)
    return call(what, lambda: list(task.module.ask(source, lengths, seed=seed, **options)))


def _check_vocabulary(checkpoint: Checkpoint, asked: Asked) -> None:
    size = checkpoint.config.get_text_config().vocab_size
    largest = max((max(q.tokens) for questions in asked.values() for q in questions), default=0)
    if largest >= size:
        message = (
            f"the tokenizer of {checkpoint.label} gives token {largest}, its model has {size}:"
            " they do not belong together."
        )
        raise UserError(message)


def _cell(
    checkpoint: Checkpoint,
    method: Plugin,
    task: Plugin,
    length: int,
    found: Rotation,
    asked: Asked,
) -> Cell:
    key = _key(checkpoint, found.fingerprint, task, length)
    questions = tuple(question for question in asked[task.label] if question.length == length)
    return Cell(method.label, task.label, length, found.fingerprint, key, questions)


def _key(checkpoint: Checkpoint, fingerprint: str, task: Plugin, length: int) -> str:
    """Hash all a sample's number depends on but its question."""
    parts = [
        checkpoint.fingerprint,
        checkpoint.dtype,
        fingerprint,
        task.module.__name__.rpartition(".")[2],
        task.digest,
        task.module.VERSION,
        sorted(task.options.items()),
        length,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
