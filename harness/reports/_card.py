"""A section for a model's README: the answer, the scores and how they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCardData

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import replacing
from ropewalk.harness.reports._text import across, markdown, markdown_sentence, page
from ropewalk.harness.reports._write import Written
from ropewalk.harness.reports.verdict import sentences
from ropewalk.harness.runs.provenance import Run, command, documents, facts
from ropewalk.harness.stats.cells import cell_scores, records

ARGUMENTS = ("scaling", "length", "low", "high", "n", "status")


def write_card(
    file: Path, frame: pd.DataFrame, runs: Sequence[Run], written: Written, note: str
) -> None:
    """Write the section beside the reports that were written; raise UserError for two models."""
    names = {run["model"]["name"] for run in runs}
    if len(names) > 1:
        raise UserError(f"--card is about one model; these runs have {', '.join(sorted(names))}.")
    table = cell_scores(frame)
    results = [_result(row, frame, runs) for row in records(table) if row["score"] is not None]
    metadata = ModelCardData(model_name=names.pop(), eval_results=results, tags=["long-context"])
    known = {name: map(markdown_sentence, lines) for name, lines in facts(runs)}
    known.pop("the command", None)
    drawn = any(file.name == "curves.png" for file in written.files)
    parts = [
        f"---\n{metadata.to_yaml()}\n---\n\n## Beyond the trained window",
        *map(markdown_sentence, [*sentences(written.cells), *([note] if note else [])]),
        *(["![Scores against length](curves.png)"] if drawn else []),
        "The 95 % interval over documents or trials is in brackets.",
        page([(across(table), [])]),
        "### How it was measured",
        "\n".join(f"- {name}: {'; '.join(lines)}" for name, lines in known.items()),
        markdown(documents(runs)),
        *(f"```bash\n{words}\n```" for words in map(command, runs) if words),
    ]
    with replacing(file) as new:
        new.write("\n\n".join(part.strip("\n") for part in parts).encode() + b"\n")


def _result(row: Mapping[str, Any], frame: pd.DataFrame, runs: Sequence[Run]) -> EvalResult:
    """Return a score as an entry of ``model-index``, whose arguments hold its interval and n."""
    task, given = row["task"], runs[0]["documents"]["given"]
    named = given.get(task, given.get(task.partition(":")[0])) if isinstance(given, dict) else given
    read = {document["name"] for run in runs for document in run["documents"]["read"]}
    reads = not read.isdisjoint(frame.loc[frame["task"] == task, "unit"])  # else its text is made
    return EvalResult(
        task_type="text-generation",
        task_name=task,
        dataset_type=named if reads else task.partition(":")[0],
        dataset_name=named if reads else task,
        metric_type=row["metric"],
        metric_name=f"{row['metric']}, {row['scaling']} at {row['length']} tokens",
        metric_value=row["score"],
        metric_args={key: row[key] for key in ARGUMENTS if row[key] is not None},
    )
