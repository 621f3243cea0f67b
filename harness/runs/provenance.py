"""How runs were measured, in words, for a reader who has a report of them and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ropewalk.harness.plugins import FUNCTION, IN_PYTHON

Run = Mapping[str, Any]

NOT_ASKED = (None, False, 0, "auto")  # settings that a command line leaves out
NO_FLAG = "published"  # a setting of sweep files alone


def facts(runs: Iterable[Run]) -> list[tuple[str, list[str]]]:
    """Return model, documents, tasks, methods, machine and commands of these records.

    A line that several runs share is there once.
    """
    by_name: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, lines in _facts(run):
            by_name.setdefault(name, {}).update(dict.fromkeys(lines))
    return [(name, list(lines)) for name, lines in by_name.items() if lines]


def _facts(run: Run) -> Iterable[tuple[str, list[str]]]:
    model, documents = run["model"], run["documents"]
    values = {
        name: model.get(name) or None
        for name in ("type", "encoding", "dtype", "compiled", "attention", "revision", "quantized")
    }
    yield "model", [f"{model['name']}: {_options(values | {'window': model['trained_length']})}"]
    yield "weights", [f"{model['name']}: {model['fingerprint']}"] if "fingerprint" in model else []
    if read := documents["read"]:  # none by tasks that make their own text
        tokens = sum(one["tokens"] for one in read)
        given = documents.get("given")
        named = given if isinstance(given, str) else _options(given or {})
        yield "documents", [f"{named}: {len(read)}, of {tokens:,} tokens together"]
    for kind, singular in (("tasks", "task"), ("methods", "method")):
        yield (
            singular,
            [
                f"{label}{_version(one)}: {_options(one.get('options') or {}) or 'default options'}"
                for label, one in run[kind].items()
            ],
        )
    yield "seed", [str(run["seed"])]
    yield "machine", list(_machines(run["sessions"]))
    yield "the command", list(filter(None, [command(run)]))


def _version(one: Mapping[str, Any]) -> str:
    return f" (version {one['version']})" if "version" in one else ""


def _options(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def machines(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a session says of its machine, or of that of each of its workers."""
    return session.get("workers") or [session]


def _machines(sessions: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a line for every machine and its packages, with the commits it was measured with."""
    commits: dict[str, dict[str, None]] = {}
    for one in (one for session in sessions for one in machines(session)):
        known = one.get("versions", {})
        versions = " ".join(f"{name} {text}" for name, text in known.items() if text)
        parts = [one.get("device"), f"threads {one.get('threads')}"]
        parts += [f"Python {one.get('python')}", versions]
        line = ", ".join(str(text) for text in parts if text and not str(text).endswith("None"))
        commits.setdefault(line, {}).update(dict.fromkeys(filter(None, [one.get("commit")])))
    for line, known in commits.items():
        yield f"{line}, commit {', '.join(known)}" if known else line


def command(run: Run) -> str:
    """Return the command line of a sweep; empty where only a file or Python can state it."""
    functions = [one for one in run["methods"].values() if one.get("file") == FUNCTION]
    if functions or run["model"].get("loaded"):
        return ""
    if str(run["asked"].get("docs")).endswith(IN_PYTHON):
        return ""
    words = ["ropewalk", "run"]
    for name, value in run["asked"].items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            return ""
        if value in NOT_ASKED or name == NO_FLAG:
            continue
        if value is True:
            words.append(flag)
        else:
            many = value if isinstance(value, list) else [value]
            words += [flag, *map(str, many)]
    return shlex.join(words)


def documents(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the documents that were read: name, hash of the text, tokens."""
    rows = [
        {
            "model": run["model"]["name"],
            **{key: one.get(key) for key in ("name", "sha256", "tokens")},
        }
        for run in runs
        for one in run["documents"]["read"]
    ]
    return pd.DataFrame(rows, columns=["model", "name", "sha256", "tokens"]).drop_duplicates()
