"""The fields of ``run.json`` that are read, each with its type; a run may come from anyone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from harness.runs.fields import Count, Name, Text, Tokens


class _Model(BaseModel):
    name: Name
    trained_length: Tokens
    rotary_dim: Count = 0
    revision: Text | None = None
    type: Text | None = None
    dtype: Text | None = None
    encoding: Text | None = None
    quantized: Text | None = None
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


class Asked(BaseModel):
    """The settings of a sweep that a record is read for; all others in it are ignored.

    None of them runs code without being asked for, and none contacts anyone but the hub that the
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
    published: str | None = None


def honoured(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record that are read."""
    return {name: one for name, one in record["asked"].items() if name in Asked.model_fields}


class _Machine(BaseModel):
    device: Text | None = None
    threads: Count | None = None
    system: Text | None = None
    python: Text | None = None
    versions: dict[Name, Text | None] = Field(default_factory=dict)
    commit: Text | None = None


class _Session(_Machine):
    started: Text | None = None
    workers: list[_Machine] = Field(default_factory=list)


class Run(BaseModel):
    """The record of a run."""

    asked: Asked
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
