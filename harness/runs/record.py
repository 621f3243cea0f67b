"""The schema of ``run.json`` and of a line of ``samples.jsonl``: ``results/README.md`` in types."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic's need, before Python 3.12

SCHEMA = 1


class Model(TypedDict):
    """The model that was measured."""

    name: str
    revision: str | None
    fingerprint: str
    type: str
    dtype: str
    trained_length: int
    base: float | None
    rotary_dim: int
    shipped: dict[str, Any]
    bos: int | None
    sliding_window: int | None
    served: NotRequired[str | None]  # the engine; then the dtype is what was requested of it
    encoding: NotRequired[str | None]
    quantized: NotRequired[str | None]
    tokenizer: NotRequired[str | None]
    loaded: NotRequired[bool]
    adapter: NotRequired[dict[str, Any] | None]


class Plugin(TypedDict):
    """A method as it was named, with all its options; ``file`` is the hash of a user's own."""

    given: str
    options: dict[str, Any]
    file: str | None


class Task(Plugin):
    """A task, with the hashes of its requests by length."""

    version: int
    metric: str
    questions: dict[str, list[str]]


class Documents(TypedDict):
    """The documents as they were named, those that were read, and the number left out by reason."""

    given: str | dict[str, str]
    read: list[dict[str, Any]]
    left_out: dict[str, int]


class Cell(TypedDict):
    """A cell of the sweep; ``failed`` says why its method has no rotation."""

    scaling: str
    task: str
    length: int
    frequencies: str | None
    key: str
    failed: str | None


class Run(TypedDict):
    """The record of a run."""

    schema: int
    asked: dict[str, Any]
    model: Model
    parts_left_out: NotRequired[list[str]]
    chat_template: str | None
    lengths: list[int]
    seed: int
    methods: dict[str, Plugin]
    tasks: dict[str, Task]
    documents: Documents
    cells: list[Cell]
    frequencies: dict[str, dict[str, Any]]
    sessions: list[dict[str, Any]]


class SampleRecord(TypedDict):
    """A line of ``samples.jsonl``."""

    cell: str
    question: str
    task: str
    length: int
    frequencies: str
    unit: str
    status: str
    reason: NotRequired[str]
    value: float | None
    weight: int
    facts: dict[str, Any]
    seconds: NotRequired[float]
    peak_mib: NotRequired[float]
    shared: NotRequired[bool]
    session: NotRequired[int]


RUN_RECORD, SAMPLE_RECORD = TypeAdapter(Run), TypeAdapter(SampleRecord)
