"""Find why runs cannot be joined: other weights, seeds, documents, names of them, protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from ropewalk.harness.names import printable

Run = Mapping[str, Any]


def reasons(runs: Mapping[Path, Run]) -> list[str]:
    """Return why any two of these runs are not comparable, in words; empty where all are.

    Machines, days and models may differ; models of one name must have the same weights. A run
    without documents is comparable with any.
    """
    found = []
    for (one, first), (other, second) in combinations(runs.items(), 2):
        for aspect in differing(first, second, ASPECTS):
            fields = ", ".join(_fields(first, second)) if aspect == MODELS else ""
            which = f" ({fields})" if fields else ""
            found.append(printable(f"{one} and {other} have different {aspect}{which}"))
    return found


def raw_text(runs: Iterable[Run]) -> list[str]:
    """Return a sentence on the models with a chat template, and the tasks that do not use it."""
    named: dict[str, None] = {}
    for run in runs:
        raw = [label for label, task in run["tasks"].items() if not task["options"].get("chat")]
        if run.get("chat_template") and raw:
            some = f" ({', '.join(raw)})" if len(raw) < len(run["tasks"]) else ""
            named[run["model"]["name"] + some] = None
    return [f"Raw text, without the model's chat template: {', '.join(named)}."] if named else []


def unpaired(runs: Mapping[Path, Run]) -> list[str]:
    """Return a sentence on the models with different requests for one task and length."""
    pairs = [
        f"{one['model']['name']} and {other['model']['name']}"
        for one, other in combinations(runs.values(), 2)
        if not _same_name(one, other) and _other_questions(one, other)
    ]
    if not pairs:
        return []
    more = f" and {len(pairs) - 1} pairs more" if len(pairs) > 1 else ""
    return [
        f"Not compared sample by sample: {pairs[0]}{more}, whose tokens, documents or seeds differ."
    ]


def _other_questions(one: Run, other: Run) -> bool:
    """Return whether two runs ask other questions, which hold the tokens, of a task and length."""
    both = one["tasks"].keys() & other["tasks"].keys()
    requests = [[run["tasks"][label]["questions"] for label in both] for run in (one, other)]
    return any(
        set(first[length]) != set(second[length])
        for first, second in zip(*requests, strict=True)
        for length in first.keys() & second.keys()
    )


def differing(one: Run, other: Run, aspects: Iterable[str]) -> list[str]:
    """Return the aspects in which two runs differ."""
    return [aspect for aspect in aspects if ASPECTS[aspect](one, other)]


def _same_name(one: Run, other: Run) -> bool:
    return bool(one["model"]["name"] == other["model"]["name"])


def _fields(one: Run, other: Run) -> list[str]:
    """Return the fields of both models that differ: a later version may record more of a model."""
    first, second = one["model"], other["model"]
    return [key for key in first if key in second and first[key] != second[key]]


def _documents(one: Run, other: Run) -> bool:
    texts = [sorted(d["sha256"] for d in run["documents"]["read"]) for run in (one, other)]
    return all(texts) and texts[0] != texts[1]


def _of_a_text(fact: str, one: Run, other: Run) -> bool:
    """Return whether two runs record another name, or number of tokens, of a text that both read.

    Samples are paired by the name of their text.
    """
    known = [{d["sha256"]: d.get(fact) for d in run["documents"]["read"]} for run in (one, other)]
    return any(known[0][text] != known[1][text] for text in known[0].keys() & known[1].keys())


def _protocols(one: Run, other: Run) -> bool:
    """Return whether a task is in both runs, but never with the same options."""
    first, second = dict(_options(one)), dict(_options(other))
    return any(first[name].isdisjoint(second[name]) for name in first.keys() & second)


def _per_token(run: Run) -> bool:
    return any(task["metric"] == "perplexity" for task in run["tasks"].values())


def _options(run: Run) -> Iterator[tuple[str, set[str]]]:
    """Yield each task's name with all settings it had."""
    settings_of: dict[str, set[str]] = {}
    for label, task in run["tasks"].items():
        settings = str([(name, str(value)) for name, value in deciding(task["options"])])
        settings_of.setdefault(label.partition(":")[0], set()).add(settings)
    yield from settings_of.items()


def deciding(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options that decide a sample, sorted.

    A switch that is off and a text that is empty are left out: a task that gains one keeps its
    samples.
    """
    return sorted((k, value) for k, value in options.items() if value is not False and value != "")


MODELS, SEEDS, NAMES, PROTOCOLS = "models", "seeds", "names of documents", "protocols"
ASPECTS: dict[str, Callable[[Run, Run], bool]] = {
    MODELS: lambda one, other: _same_name(one, other) and bool(_fields(one, other)),
    SEEDS: lambda one, other: _same_name(one, other) and one["seed"] != other["seed"],
    "documents": _documents,
    NAMES: partial(_of_a_text, "name"),
    "tokenizers": lambda one, other: (
        _per_token(one) and _per_token(other) and _of_a_text("tokens", one, other)
    ),
    PROTOCOLS: _protocols,
}
