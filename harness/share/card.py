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
from harness.share.public import PublicRun
from harness.stats.cells import cells

ARGUMENTS = ("scaling", "length", "relative_length", "low", "high", "n", "status")
OWN_HEADING = ("documents", "the command")  # facts that have a heading of their own


def write(run: PublicRun, out: Path) -> list[Path]:
    """Write ``README.md`` and its figure into a folder; return both."""
    make_folder(out)
    drawn = write_reports(run.frame, out, ["curves"], run.note, run.paper).files
    for file in drawn:
        if file.suffix != ".png":
            file.unlink()
    figures = [file for file in drawn if file.suffix == ".png"]
    table = cells(run.frame)
    model = run.record["model"]
    data = ModelCardData(
        model_name=model["name"],
        eval_results=_results(table, run),
        tags=["long-context", *(["rope-scaling"] if model["rotary_dim"] else [])],
    )
    card = out / "README.md"
    with replacing(card) as new:
        new.write(f"---\n{data.to_yaml()}\n---\n\n{_section(run, table, figures)}".encode())
    return [card, *figures]


def _results(table: pd.DataFrame, run: PublicRun) -> list[EvalResult]:
    """Return every score of a table of cells; its interval and n are among a metric's arguments."""
    scored = table[table["score"].notna()].astype(object)
    results = []
    for row in scored.where(scored.notna(), None).to_dict("records"):
        name, hashes = data_set(row["task"], run)
        results.append(
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
        )
    return results


def data_set(task: str, run: PublicRun) -> tuple[str, list[str]]:
    """Return the name of a task's documents as the user gave it, and the hashes of their texts.

    They are the documents of its samples, or for trials those that were read for this task alone.
    Overlapping windows are of all documents, of which several may be one unit. Where no document
    is known the name is that of the task.
    """
    read = run.record["documents"]
    given = {label: _given(label, read) for label in run.record["tasks"]}
    name = _given(task, read)
    texts = [text for text in read["read"] if text.get("docs") in (None, name)]
    rows = run.frame[run.frame["task"] == task]
    units, stream = (
        set(rows["unit"]),
        "protocol" in rows and rows["protocol"].eq("overlapping").any(),
    )
    alone = [label for label, other in given.items() if other == name] == [task]
    its = [text for text in texts if stream or text["name"] in units] or (texts if alone else [])
    return name if its else task.partition(":")[0], [str(text["sha256"]) for text in its]


def _given(task: str, read: Mapping[str, Any]) -> str:
    """Return the name of a task's documents, which a sweep gives by its label or its name."""
    given = read.get("given") or "embedded"
    if isinstance(given, Mapping):
        given = given.get(task, given.get(task.partition(":")[0]))
    return str(given)


def _section(run: PublicRun, table: pd.DataFrame, figures: Iterable[Path]) -> str:
    tables = write_reports(run.frame, None, ["best"]).tables
    summary = [*tables["best"].summary] if "best" in tables else []
    measured = [
        f"- {name}: {'; '.join(map(markdown_sentence, lines))}"
        for name, lines in facts([run.record])
        if name not in OWN_HEADING
    ]
    again = command(run.record)
    parts = [
        "## Beyond the trained window",
        "",
        *(f"{markdown_sentence(line)}\n" for line in [*summary, *filter(None, [run.note])]),
        *(f"![Scores against context length]({file.name})\n" for file in figures),
        "The 95 % interval over documents or trials is in brackets.\n",
        page([(wide(table), [])]),
        "### How it was measured\n",
        *measured,
        "",
        "The documents, and hashes of their texts:\n",
        f"{markdown(documents([run.record]))}\n",
        *([f"To measure it again with these documents:\n\n```bash\n{again}\n```\n"] * bool(again)),
    ]
    return "\n".join(parts)
