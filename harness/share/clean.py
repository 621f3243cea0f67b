"""Remove file paths, users and hosts from a run: what stays is numbers, hashes, versions and names.

A published record is built from the fields that are listed here, each by its kind; other fields
of a record are left out. A path is published by its last name. A sentence that may hold a path is
replaced as a whole, because where a path ends in it cannot be known.
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
HIDDEN = "…"  # for a name that has a user or a host in it
LISTED = re.compile(r"\w+=[^,]*(,\w+=[^,]*)*")  # the options of a plug-in
HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
TAG = re.compile(r"(?<=[<\[|])/[\w.:-]+[>\]|]")  # in what a model writes: </s>, [/INST]
PLACE = re.compile(r"(?<!\w)/[^/\s]+/|~\w*/|\.\./|\w:\\\w|\w@[\w.-]+:")
SAMPLE = (
    "cell", "question", "length", "frequencies", "status", "value", "weight", "seconds", "peak_mib",
    "shared", "session",
)  # fmt: skip
MACHINE = ("started", "device", "threads", "system", "python", "versions", "commit")


def base(text: str) -> str:
    """Return the last name of a path, also of Windows, or the name itself."""
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
    """Return the name of documents with its options; that of a data set on the hub stays whole."""
    name, _, listed = text.partition(":")
    keys = {option.partition("=")[0] for option in listed.split(",")} if listed else set()
    if not keys <= set(OPTIONS):
        return base(text)
    if HUB.fullmatch(name) and not keys.isdisjoint(SET_OPTIONS) and not Path(name).exists():
        return text
    return entry(text) if keys else base(text)


def sentence(text: str) -> str:
    """Return a sentence, or a placeholder where it may name a path."""
    return LEFT_OUT if re.search(r"[/\\~@]", text) else text


def fact(value: Any) -> Any:
    """Return a fact of a sample; a model's text may have fractions and tags, but no path."""
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
    read, settings = record["documents"], honoured(record)
    public = names(settings) | {kind: [*map(entry, settings[kind])] for kind in ("scaling", "task")}
    if "docs" in settings:
        public["docs"] = _given_documents(settings["docs"])
    if record["model"].get("revision") and HUB.fullmatch(settings.get("model", "")):
        public["model"] = settings["model"]
    cells = []
    for cell in record["cells"]:
        cells.append(
            {**names(cell), "scaling": entry(cell["scaling"]), "task": entry(cell["task"])}
        )
        if cell.get("failed"):
            cells[-1]["failed"] = sentence(cell["failed"])
    unit = _units(record)
    return {
        **{name: record[name] for name in ("schema", "lengths", "seed")},
        "asked": public,
        "model": names(record["model"]),
        "chat_template": sentence(record.get("chat_template") or "") or None,
        "methods": {entry(label): _plugin(one) for label, one in record["methods"].items()},
        "tasks": {entry(label): _plugin(one) for label, one in record["tasks"].items()},
        "documents": {
            "given": _given_documents(read.get("given")),
            "read": [_document(one, unit) for one in read["read"]],
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
            "facts": {base(name): fact(value) for name, value in sample["facts"].items()},
        }
        for sample in samples
    ]


def _given_documents(given: Any) -> Any:
    """Return the documents of all tasks, or of each by its name."""
    if isinstance(given, Mapping):
        return {entry(task): documents(one) for task, one in given.items()}
    return given and documents(given)


def _plugin(plugin: Mapping[str, Any]) -> dict[str, Any]:
    public = {name: names(value) for name, value in plugin.items() if name != "questions"}
    if "given" in plugin:
        public["given"] = entry(plugin["given"])
    if "questions" in plugin:
        public["questions"] = plugin["questions"]
    return public


def _units(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the last name of every document, with its hash where several have the same one."""
    hashes = {one["name"]: one["sha256"] for one in record["documents"]["read"] if one.get("name")}
    alike = Counter(map(base, hashes))
    return {
        name: base(name) if alike[base(name)] == 1 else f"{base(name)} ({digest})"
        for name, digest in hashes.items()
    }


def _document(document: Mapping[str, Any], unit: Mapping[str, str]) -> dict[str, Any]:
    public: dict[str, Any] = names(document)
    if document.get("name"):
        public["name"] = unit[document["name"]]
    if document.get("docs"):
        public["docs"] = documents(document["docs"])
    return public


def _session(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return when and on what a session measured, without the hosts of its workers."""
    public = {name: session[name] for name in MACHINE if name in session}
    if "versions" in session:  # a record may have been edited
        public["versions"] = names(session["versions"])
    if "workers" in session:
        public["workers"] = [*map(_session, session["workers"])]
    return public
