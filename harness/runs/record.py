"""The schema of ``run.json`` and of a sample; a run may be damaged or come from anyone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    FiniteFloat,
    GetPydanticSchema,
    ValidationError,
)
from pydantic_core import CoreSchema, core_schema

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import MIB
from ropewalk.harness.names import printable
from ropewalk.tasks._tokens import kept
from ropewalk.tasks.types import Request

LINE = 2**24  # bytes of a line of samples, which has about 1k
LONGEST = 4096  # characters of a name, which tables and figures show whole
MOST = 2**62  # of what is counted


Text = Annotated[str, Field(strict=True, pattern=r"^(?: |[^\p{C}\p{Z}])*$")]  # printable
Name = Annotated[Text, Field(max_length=LONGEST)]
Tokens = Annotated[int, Field(strict=True, gt=0, lt=2**40)]
Count = Annotated[int, Field(strict=True, ge=0, lt=MOST)]


def _one_of(kinds: Sequence[CoreSchema]) -> CoreSchema:
    return core_schema.union_schema(
        [*kinds],
        mode="left_to_right",
        custom_error_type="fact",
        custom_error_message="should be a text, a finite number, a list of numbers or None",
    )


# These are checked without a call of Python's: a large run has millions of facts.
NUMBERS = [
    core_schema.chain_schema([
        core_schema.is_instance_schema(float),
        core_schema.float_schema(allow_inf_nan=False),
    ]),
    core_schema.int_schema(strict=True, gt=-(2**63), lt=2**63),  # what a column of a table holds
    core_schema.bool_schema(strict=True),
]  # fmt: skip
FACT = _one_of([
    core_schema.str_schema(strict=True, max_length=LINE),  # a limit also finds half a letter
    *NUMBERS,
    core_schema.none_schema(),
    core_schema.list_schema(_one_of(NUMBERS), strict=True),
])  # fmt: skip
Fact = Annotated[Any, GetPydanticSchema(lambda _source, _handler: FACT)]
COLUMNS = {  # of the frame, which a fact of the same name would not reach
    "run", "model", "trained_length", "scaling", "frequencies", "task", "metric", "length", "asked",
    "score", "low", "high", "n", "question", "unit", "status", "reason", "value", "weight",
    "seconds", "peak_mib",
}  # fmt: skip


def _is_no_column(name: str) -> str:
    if name in COLUMNS:
        raise ValueError(f"a fact may not be called {name}, which is a column of the frame")
    return name


def _fits(facts: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(facts))
    if size > LINE // 2:
        most = LINE // 2 // MIB
        raise ValueError(f"{size / MIB:,.0f} MiB in a record, at most {most} are written")
    return facts


Facts = dict[Name, Fact]
Given = Annotated[  # by a task
    dict[Annotated[Name, AfterValidator(_is_no_column)], Fact], AfterValidator(_fits)
]


def wrong_facts(facts: Iterable[tuple[str, Any]], kinds: Mapping[str, type]) -> list[str]:
    """Return the names of the facts that are not of the kind their task has them of, its FACTS.

    No table holds values of two kinds in one column.
    """
    return [name for name, fact in facts if name in kinds and not are_of(kinds[name], [fact])]


def are_of(kind: type, values: Sequence[Any]) -> bool:
    """Return whether values are of a kind of FACTS: whole numbers are float too, int is not < 0."""
    types = {int, float} if kind is float else {kind}
    return types.issuperset(map(type, values)) and (kind is not int or min(values, default=0) >= 0)


class _Model(BaseModel):
    name: Name
    trained_length: Tokens
    rotary_dim: Count = 0
    revision: Text | None = None
    type: Text | None = None
    dtype: Text | None = None
    encoding: Text | None = None
    quantized: Text | None = None
    compiled: bool = False
    attention: Text | None = None
    fingerprint: Text | None = None


class _Method(BaseModel):
    given: str = ""
    options: dict[Name, Any]
    file: Name | None = None


class _Task(BaseModel):
    given: str
    file: Name | None
    version: int
    metric: Name
    options: dict[Name, Any]
    questions: dict[Name, list[Name]]


class _Document(BaseModel):
    sha256: Name
    tokens: Count
    name: Name | None = None
    docs: str | None = None


class _Documents(BaseModel):
    read: list[_Document]
    given: str | dict[str, str] | None = None
    left_out: dict[str, Count] = Field(default_factory=dict)


class _Cell(BaseModel):
    scaling: Name
    task: Name
    length: Tokens
    frequencies: Name | None
    key: Name
    failed: Text | None = None


class Settings(BaseModel):
    """The settings of a sweep that a record is read for; all others in it are ignored.

    None of them runs code unless the user allows it. None contacts anything but the hub that the
    model and the documents are read from.
    """

    scaling: list[str]  # as it was typed: a path may have any character
    task: list[str]
    model: str = "reference"
    revision: str | None = None
    adapter: str | None = None
    length: list[str] = Field(default_factory=list)
    docs: str | dict[str, str] = "embedded"
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    trained_length: int | None = None
    max_memory: str | None = None
    offline: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False
    compile: bool = False
    attention: str = "auto"
    published: str | None = None


def honoured(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record that are read."""
    return {name: one for name, one in record["asked"].items() if name in Settings.model_fields}


class _Machine(BaseModel):
    device: Text | None = None
    threads: Count | None = None
    python: Text | None = None
    versions: dict[Name, Text | None] = Field(default_factory=dict)
    commit: Text | None = None


class _Session(_Machine):
    started: Text | None = None
    workers: list[_Machine] = Field(default_factory=list)


class Run(BaseModel):
    """The record of a run."""

    asked: Settings
    model: _Model
    chat_template: Text | None = None
    lengths: list[Tokens]
    seed: int
    methods: dict[Name, _Method]
    tasks: dict[Name, _Task]
    documents: _Documents
    cells: list[_Cell]
    frequencies: dict[Name, dict[str, Any]]
    sessions: list[_Session]


class _Question(BaseModel):
    unit: Name
    facts: Given


class _Graded(BaseModel):
    value: Annotated[FiniteFloat, Field(strict=True)]
    weight: Annotated[int, Field(strict=True, gt=0, lt=MOST)]
    facts: Given


class _Sample(BaseModel):
    cell: Name
    question: Name
    task: Name
    status: Name
    reason: Text | None = None
    unit: Name
    value: Annotated[FiniteFloat, Field(strict=True)] | None
    weight: Count
    facts: Facts
    seconds: FiniteFloat | None = None
    peak_mib: FiniteFloat | None = None
    shared: bool | None = None
    length: Tokens | None = None
    frequencies: Name | None = None
    session: Count | None = None


def check_question(question: Any) -> None:
    """Raise ValueError for a question that no record can store."""
    if not isinstance(question, Request):
        raise ValueError(f"it yields {type(question).__name__}, not Request")
    _hold(_Question, {"unit": question.doc_id, "facts": question.metadata}, "of a question ")
    least = int(kept(question.tokens).numbers().min())
    if least < 0:
        raise ValueError(f"{question.doc_id}: token {least} is not in a vocabulary")
    question.digest  # noqa: B018  # raises for a token that is not a whole number


def check_graded(outcome: Mapping[str, Any]) -> None:
    """Raise ValueError for a value, a weight or facts that no record can store."""
    _hold(_Graded, outcome, "of a sample ")


def check_run(where: str, record: Any) -> None:
    """Raise UserError naming the first field of ``run.json`` that is missing or wrong."""
    try:
        _hold(Run, record)
        for cell in record["cells"]:
            task: Mapping[str, Any] = record["tasks"].get(cell["task"], {})
            if str(cell["length"]) not in task.get("questions", {}):
                raise ValueError(f"no questions of {cell['task']} at {cell['length']} tokens")
    except ValueError as error:
        raise UserError(f"{where} is damaged: {error}.") from None


def check_sample(file: str, record: Any) -> None:
    """Raise UserError naming the first field of a file's sample that is missing or wrong."""
    try:
        _hold(_Sample, record)
        if record["status"] == "ok" and (record["value"] is None or not record["weight"]):
            raise ValueError("a sample of status ok has no value")
    except ValueError as error:
        where = f"{file}: sample {record['question']}"
        raise UserError(f"{where} is damaged: {error}.") from None


def _hold(kind: type[BaseModel], record: Any, what: str = "") -> None:
    try:
        kind.__pydantic_validator__.validate_python(record)  # of millions of samples
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        unprintable = first["type"] in ("string_pattern_mismatch", "string_unicode")
        why = "should be printable" if unprintable else first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{what}{printable(place)[:80]}: {why}") from None
