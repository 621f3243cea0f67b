"""Find why runs cannot be joined: other weights, seeds, documents, names of them, protocols."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.record import Run

log = logging.getLogger("ropewalk")
MODELS, SEEDS, NAMES, PROTOCOLS = "models", "seeds", "names of documents", "protocols"


def reasons(runs: Mapping[Path, Run]) -> list[str]:
    """Return why any two of these runs are not comparable, in words; empty where all are.

    Machines, days and models may differ; models of one name must have the same weights. A run
    without documents is comparable with any.
    """
    found = []
    for (path, run), (other, second) in combinations(runs.items(), 2):
        for aspect in differing(run, second):
            which = f" ({', '.join(_fields(run, second))})" if aspect == MODELS else ""
            found.append(f"{path} and {other} have different {aspect}{which}")
    return found


def differing(run: Run, other: Run) -> list[str]:
    """Return the aspects in which two runs are not comparable."""
    same_name = run["model"]["name"] == other["model"]["name"]
    read, also = ({d["sha256"]: d for d in r["documents"]["read"]} for r in (run, other))
    pairs = [(read[text], also[text]) for text in read.keys() & also.keys()]
    per_token = all(
        any(task["metric"] == "perplexity" for task in r["tasks"].values()) for r in (run, other)
    )
    options, others = _options(run), _options(other)
    aspects = {
        MODELS: same_name and _fields(run, other),
        SEEDS: same_name and run["seed"] != other["seed"],
        "documents": read and also and read.keys() != also.keys(),
        # Samples are paired by the name of their text.
        NAMES: any(one.get("name") != two.get("name") for one, two in pairs),
        "tokenizers": per_token and any(one["tokens"] != two["tokens"] for one, two in pairs),
        # A task is in both runs, but never with the same options.
        PROTOCOLS: any(options[t].isdisjoint(others[t]) for t in options.keys() & others.keys()),
    }
    return [aspect for aspect, differs in aspects.items() if differs]


def check_same_sweep(folder: Path, old: Run, new: Run) -> None:
    """Raise UserError where the record of another model, or another sweep, would be replaced.

    The same sweep may have more cells than before, or fewer.
    """
    was, now = (dict[str, Any](run["model"]) for run in (old, new))
    texts, others = ({d["sha256"] for d in r["documents"]["read"]} for r in (old, new))
    kept = texts <= others or others <= texts
    changes = [
        *(f"another model ({f}: {was.get(f)}, now {now.get(f)})" for f in _fields(old, new)),
        *(f"other {what}" for what in differing(old, new) if what in (SEEDS, NAMES, PROTOCOLS)),
        *(["other documents"] if not kept else []),
    ]
    if changes:
        raise UserError(f"{folder} has another sweep, with {changes[0]}; choose another --out.")


def check_same_server(folder: Path, sessions: Sequence[Mapping[str, Any]], now: Any) -> None:
    """Raise UserError where a server says another thing of itself than that of earlier samples.

    Its limit changes no number. Another version of the engine is a warning.
    """
    before = next((one for one in reversed(sessions) if "server" in one), now)
    was, has = (session.get("server", {}) for session in (before, now))
    for name in (was.keys() & has.keys()) - {"computes", "max_model_len"}:
        if was[name] != has[name]:
            raise UserError(
                f"{folder} was measured on a server with the {name} {was[name]}, and this one has "
                f"{has[name]}; start it as it was, or choose another --out."
            )
    if has and before["device"] != now["device"]:
        log.warning(f"{folder} has samples of {before['device']}, and now of {now['device']}.")


def _fields(run: Run, other: Run) -> list[str]:
    """Return the fields of both models that differ; what is not said of a model is None."""
    was, now = (dict[str, Any](r["model"]) for r in (run, other))
    return [key for key in {**was, **now} if (was.get(key) or None) != (now.get(key) or None)]


def _options(run: Run) -> dict[str, set[str]]:
    options: dict[str, set[str]] = {}
    for label, task in run["tasks"].items():
        settings = str([(name, str(value)) for name, value in deciding(task["options"])])
        options.setdefault(label.partition(":")[0], set()).add(settings)
    return options


def deciding(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options that decide a sample, sorted.

    A switch that is off and a text that is empty are left out: a task that gains one keeps its
    samples.
    """
    return sorted((k, value) for k, value in options.items() if value is not False and value != "")
