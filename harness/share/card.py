"""A section of a model card, with its figure and every score as ``model-index`` metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCardData

from harness.files import make_folder, replacing
from harness.reports._write import write_reports
from harness.reports.writing.sentences import markdown_sentence
from harness.reports.writing.tables import markdown, page, wide
from harness.runs.provenance import command, documents, facts
from harness.share.source import Source
from harness.stats.cells import cells

ARGUMENTS = ("scaling", "length", "relative_length", "low", "high", "n", "status")
APART = ("documents", "the command")  # facts that have a heading of their own


def write(source: Source, out: Path) -> list[Path]:
    """Write ``README.md`` and its figure into a folder; return both."""
    make_folder(out)
    drawn = write_reports(source.frame, out, ["curves"], source.note, source.paper).files
    for file in drawn:
        if file.suffix != ".png":
            file.unlink()
    figures = [file for file in drawn if file.suffix == ".png"]
    table = cells(source.frame)
    data = ModelCardData(
        model_name=source.record["model"]["name"],
        eval_results=results(table, source),
        tags=["long-context", *(["rope-scaling"] if source.record["model"]["rotary_dim"] else [])],
    )
    text = f"---\n{data.to_yaml()}\n---\n\n{_section(source, table, figures)}"
    card = out / "README.md"
    with replacing(card) as new:
        new.write(text.encode())
    return [card, *figures]


def results(table: pd.DataFrame, source: Source) -> list[EvalResult]:
    """Return every score of a table of cells; its interval and n are among a metric's arguments."""
    plain = table[table["score"].notna()].astype(object)
    rows = plain.where(plain.notna(), None).to_dict("records")
    return [
        EvalResult(
            task_type="text-generation",
            task_name=row["task"],
            dataset_type=name.partition(":")[0],
            dataset_name=f"{name}, documents: {len(hashes)}" if hashes else name,
            dataset_config=row["task"],
            dataset_revision=hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]
            if hashes
            else None,
            metric_type=row["metric"],
            metric_name=f"{row['metric']}, {row['scaling']} at {row['length']} tokens",
            metric_value=row["score"],
            metric_args={key: row[key] for key in ARGUMENTS if row[key] is not None},
        )
        for row in rows
        for name, hashes in [data_set(row["task"], source)]
    ]


def data_set(task: str, source: Source) -> tuple[str, list[str]]:
    """Return the name of a task's documents as it was given, and the hashes of their texts.

    They are the documents of its samples; of trials, those that were read for this task alone. No
    others are known: then the name is that of the task.
    """
    read, frame = source.record["documents"], source.frame
    given = {one: _given(one, read) for one in source.record["tasks"]}
    own = _given(task, read)
    found = [one for one in read["read"] if one.get("docs") in (None, own)]
    units = set(frame.loc[frame["task"] == task, "unit"])
    alone = [one for one, name in given.items() if name == own] == [task]
    its = [one for one in found if one["name"] in units] or (found if alone else [])
    return own if its else task.partition(":")[0], [str(one["sha256"]) for one in its]


def _given(task: str, read: Mapping[str, Any]) -> str:
    """Return the name of a task's documents, which a sweep gives by its label or its name."""
    given = read.get("given") or "embedded"
    if isinstance(given, Mapping):
        given = given.get(task, given.get(task.partition(":")[0]))
    return str(given)


def _section(source: Source, table: pd.DataFrame, figures: Iterable[Path]) -> str:
    words = write_reports(source.frame, None, ["best"]).tables
    notes = [*words["best"].summary] if "best" in words else []
    measured = [
        f"- {name}: {'; '.join(map(markdown_sentence, lines))}"
        for name, lines in facts([source.record])
        if name not in APART
    ]
    again = command(source.record)
    picture = "Scores against context length"
    parts = [
        "## Beyond the trained window",
        "",
        *(f"{markdown_sentence(line)}\n" for line in [*notes, *filter(None, [source.note])]),
        *(f"![{picture}]({file.name})\n" for file in figures),
        "In brackets: the 95 % interval over documents or trials.\n",
        page([(wide(table), [])]),
        "### How it was measured\n",
        *measured,
        "",
        "The documents, and hashes of their texts:\n",
        f"{markdown(documents([source.record]))}\n",
        *([f"Measured again, with these documents:\n\n```bash\n{again}\n```\n"] if again else []),
    ]
    return "\n".join(parts)
