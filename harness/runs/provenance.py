"""How runs were measured, in words, for a reader who has a report of them and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from ropewalk.harness.plugins import FUNCTION, IN_PYTHON

Run = Mapping[str, Any]
MODEL = ("type", "served", "encoding", "dtype", "revision", "quantized")
NOT_ASKED = (None, False, 0, "auto")  # settings that a command line leaves out


def facts(runs: Iterable[Run]) -> list[tuple[str, list[str]]]:
    """Return model, documents, tasks, methods, machine and commands of these records.

    A line that several runs share is there once.
    """
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, line in _lines(run):
            found.setdefault(name, {})[line] = None
    return [(name, list(lines)) for name, lines in found.items()]


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    model, documents = run["model"], run["documents"]
    about = {name: model.get(name) or None for name in MODEL} | {
        "window": model["trained_length"],
        "chat template": run.get("chat_template"),
    }
    yield "model", f"{model['name']}: {_options(about)}"
    yield "weights", f"{model['name']}: {model['fingerprint']}"
    if read := documents["read"]:  # none by tasks that make their own text
        tokens, named = sum(one["tokens"] for one in read), documents["given"]
        named = named if isinstance(named, str) else _options(named)
        yield "documents", f"{named}: {len(read)}, of {tokens:,} tokens together"
    for kind in ("task", "method"):
        for label, plugin in run[f"{kind}s"].items():
            version = f" (version {plugin['version']})" if "version" in plugin else ""
            yield kind, f"{label}{version}: {_options(plugin['options']) or 'default options'}"
    yield "seed", str(run["seed"])
    for machine in (one for session in run["sessions"] for one in machines(session)):
        versions = " ".join(f"{name} {text}" for name, text in machine["versions"].items() if text)
        parts = [machine["device"], f"threads {machine['threads']}", f"Python {machine['python']}"]
        commit = [f"commit {machine['commit']}"] if machine["commit"] else []
        yield "machine", ", ".join([*parts, versions, *commit])
    if words := command(run):
        yield "the command", words


def _options(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def machines(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a session says of its machine, or of that of each of its workers."""
    return session.get("workers") or [session]


def command(run: Run) -> str:
    """Return the command line of a sweep; empty where only a file or Python can state it."""
    asked = {name: value for name, value in run["asked"].items() if name != "published"}
    functions = any(one.get("file") == FUNCTION for one in run["methods"].values())
    if functions or run["model"].get("loaded") or str(asked.get("docs")).endswith(IN_PYTHON):
        return ""
    words = ["ropewalk", "run"]
    for name, value in asked.items():
        if isinstance(value, Mapping):
            return ""
        if value not in NOT_ASKED:
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def documents(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the documents that were read: name, hash of the text, tokens."""
    rows = [
        (run["model"]["name"], one["name"], one["sha256"], one["tokens"])
        for run in runs
        for one in run["documents"]["read"]
    ]
    return pd.DataFrame(rows, columns=["model", "name", "sha256", "tokens"]).drop_duplicates()
