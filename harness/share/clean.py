"""What of a run is published: numbers, hashes, versions, and names without their folders.

A record is made anew of the fields that are listed here, each by its kind; whatever else a record
has stays behind. A path is published by its last name. A sentence that may hold a path is replaced
as a whole: where a path ends in it cannot be known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.data.documents import OPTIONS
from harness.data.readers import SET_OPTIONS
from harness.runs.record import honoured

LEFT_OUT = "left out: it may name a file"
HIDDEN = "…"  # of a name that has a user or a host in it
LISTED = re.compile(r"\w+=[^,]*(,\w+=[^,]*)*")  # the options of an entry
HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
TAG = re.compile(r"(?<=[<\[|])/[\w.:-]+[>\]|]")  # of what a model says: </s>, [/INST]
PLACE = re.compile(r"(?<!\w)/[^/\s]+/|~\w*/|\.\./|\w:\\\w|\w@[\w.-]+:")
SAMPLE = (
    "cell", "question", "length", "frequencies", "status", "value", "weight", "seconds", "peak_mib",
    "shared", "session",
)  # fmt: skip
MACHINE = ("started", "device", "threads", "system", "python", "versions", "commit")


def base(text: str) -> str:
    """Return the last name of a path, of Windows too, or the name itself."""
    last = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
    return HIDDEN if "@" in last or last.startswith("~") else last


def entry(text: str) -> str:
    """Return a method or a task with its options, each path in it by its last name."""
    name, colon, listed = text.partition(":")
    if not LISTED.fullmatch(listed):
        return base(text)
    options = (option.partition("=") for option in listed.split(","))
    return base(name) + colon + ",".join(f"{key}={base(value)}" for key, _, value in options)


def documents(text: str) -> str:
    """Return the name of documents, with its options; that of a data set on the hub stays whole."""
    name, _, listed = text.partition(":")
    keys = {option.partition("=")[0] for option in listed.split(",")} if listed else set()
    if not keys <= set(OPTIONS):
        return base(text)
    if HUB.fullmatch(name) and not keys.isdisjoint(SET_OPTIONS) and not Path(name).exists():
        return text
    return entry(text) if keys else base(text)


def sentence(text: str) -> str:
    """Return a sentence that names no place."""
    return LEFT_OUT if re.search(r"[/\\~@]", text) else text


def said(value: Any) -> Any:
    """Return a fact; a text of a model may have fractions and closing tags, and no place."""
    return LEFT_OUT if isinstance(value, str) and PLACE.search(TAG.sub("", value)) else value


def names(value: Any) -> Any:
    """Return JSON whose texts are names, each path by its last one; numbers stay as they are."""
    if isinstance(value, str):
        return base(value)
    if isinstance(value, Mapping):
        return {base(name): names(one) for name, one in value.items()}
    return [names(one) for one in value] if isinstance(value, list) else value


def clean_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is published of the record of a run."""
    read, asked = record["documents"], honoured(record)
    cells = [
        {**names(cell), "scaling": entry(cell["scaling"]), "task": entry(cell["task"])}
        | ({"failed": sentence(cell["failed"])} if cell.get("failed") else {})
        for cell in record["cells"]
    ]
    hub = record["model"].get("revision") and HUB.fullmatch(asked.get("model", ""))
    settings: dict[str, Any] = {
        **names(asked),
        **{kind: [*map(entry, asked[kind])] for kind in ("scaling", "task")},
        **({"docs": _of_tasks(asked["docs"])} if "docs" in asked else {}),
        **({"model": asked["model"]} if hub else {}),
    }
    unit = _units(record)
    return {
        **{name: record[name] for name in ("schema", "lengths", "seed")},
        "asked": settings,
        "model": names(record["model"]),
        "chat_template": sentence(record.get("chat_template") or "") or None,
        "methods": {entry(label): _plugin(one) for label, one in record["methods"].items()},
        "tasks": {entry(label): _plugin(one) for label, one in record["tasks"].items()},
        "documents": {
            "given": _of_tasks(read.get("given")),
            "read": [_read(one, unit) for one in read["read"]],
            "left_out": {sentence(why): one for why, one in read.get("left_out", {}).items()},
        },
        "cells": cells,
        "frequencies": names(record["frequencies"]),
        "sessions": [_session(session) for session in record["sessions"]],
    }


def clean_samples(
    samples: Iterable[Mapping[str, Any]], record: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return what is published of the samples of the run that has this record."""
    unit = _units(record)
    return [
        {
            **{name: sample[name] for name in SAMPLE if name in sample},
            "task": entry(sample["task"]),
            "unit": unit.get(sample["unit"]) or base(sample["unit"]),
            **({"reason": sentence(sample["reason"])} if sample.get("reason") else {}),
            "facts": {base(name): said(fact) for name, fact in sample["facts"].items()},
        }
        for sample in samples
    ]


def _of_tasks(given: Any) -> Any:
    """Return the documents of all tasks, or of each by its name."""
    if isinstance(given, Mapping):
        return {entry(task): documents(one) for task, one in given.items()}
    return given and documents(given)


def _plugin(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method or a task as it was given, with its options and questions."""
    told = {name: names(value) for name, value in one.items() if name != "questions"}
    questions = {"questions": one["questions"]} if "questions" in one else {}
    return {**told, **({"given": entry(one["given"])} if "given" in one else {}), **questions}


def _units(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the last name of every document, with its hash where several have the same one."""
    hashes = {one["name"]: one["sha256"] for one in record["documents"]["read"] if one.get("name")}
    alike = Counter(map(base, hashes))
    return {
        name: base(name) if alike[base(name)] == 1 else f"{base(name)} ({digest})"
        for name, digest in hashes.items()
    }


def _read(one: Mapping[str, Any], unit: Mapping[str, str]) -> dict[str, Any]:
    named = {"name": unit[one["name"]]} if one.get("name") else {}
    docs = {"docs": documents(one["docs"])} if one.get("docs") else {}
    return {**names(one), **named, **docs}


def _session(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return when and on what a session measured, without the hosts of its workers."""
    told = {name: session[name] for name in MACHINE if name in session}
    workers = {"workers": [*map(_session, session["workers"])]} if "workers" in session else {}
    return {**told, **workers}
