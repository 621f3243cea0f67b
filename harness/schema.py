"""What a record must hold to be read: it may come from anyone, and be damaged by anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, ValidationError

from harness.errors import UserError
from harness.names import printable


def _is_name(text: str) -> str:
    if not text.isprintable():
        message = "should be printable"
        raise ValueError(message)
    return text


Name = Annotated[str, AfterValidator(_is_name), Field(strict=True)]
Tokens = Annotated[int, Field(strict=True, gt=0, lt=2**40)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**62)]
Fact = (
    Annotated[str, Field(strict=True)]
    | Annotated[int, Field(strict=True)]
    | FiniteFloat
    | list[FiniteFloat]
    | None
)


class _Model(BaseModel):
    name: Name
    trained_length: Tokens


class _Task(BaseModel):
    given: Name
    file: Name | None
    version: int
    metric: Name
    questions: dict[Name, list[Name]]


class _Document(BaseModel):
    sha256: Name


class _Documents(BaseModel):
    read: list[_Document]


class _Cell(BaseModel):
    scaling: Name
    task: Name
    length: Tokens
    frequencies: Name | None
    key: Name
    failed: Name | None = None


class _Run(BaseModel):
    model: _Model
    seed: int
    tasks: dict[Name, _Task]
    documents: _Documents
    cells: list[_Cell]
    sessions: list[Any]


class _Sample(BaseModel):
    cell: Name
    question: Name
    status: Name
    reason: Name | None = None
    unit: Name
    value: Annotated[FiniteFloat, Field(strict=True)] | None
    weight: Count
    facts: dict[Name, Fact]
    seconds: FiniteFloat | None = None
    peak_mib: FiniteFloat | None = None


def check_run(where: str, record: Any) -> None:
    """Raise UserError naming the first field of ``run.json`` that is missing or wrong."""
    _check(where, _Run, record)
    for cell in record["cells"]:
        task: Mapping[str, Any] = record["tasks"].get(cell["task"], {})
        if str(cell["length"]) not in task.get("questions", {}):
            message = (
                f"{where} is damaged: no questions of {cell['task']} at {cell['length']} tokens."
            )
            raise UserError(message)


def check_sample(where: str, record: Any) -> None:
    """Raise UserError naming the first field of a sample that is missing or wrong."""
    _check(where, _Sample, record)
    if record["status"] == "ok" and (record["value"] is None or not record["weight"]):
        message = f"{where} is damaged: a sample of status ok has no value."
        raise UserError(message)


def _check(where: str, kind: type[BaseModel], record: Any) -> None:
    try:
        kind.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        why = first["msg"].removeprefix("Value error, ")
        message = f"{where} is damaged: {printable(place)[:80]}: {why}."
        raise UserError(message) from None
