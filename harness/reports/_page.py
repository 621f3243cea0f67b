"""What a reader gets of a run: a text in Markdown, one static HTML file, and a model card."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from ropewalk.harness.errors import UserError
from ropewalk.harness.reports import cells as cells_report
from ropewalk.harness.reports import verdict
from ropewalk.harness.reports._style import PAGE, drawing
from ropewalk.harness.reports._text import across, escaped, markdown, without_missing
from ropewalk.harness.reports._text import page as markdown_page
from ropewalk.harness.reports.cells import differences, scores
from ropewalk.harness.runs.provenance import Run, command, documents, facts
from ropewalk.harness.stats.cells import cell_scores, records

if TYPE_CHECKING:
    from ropewalk.harness.reports._write import Written

TITLES = {
    "answer": "How much worse than the best",
    "curves": "Score against length",
    "retrieval": "Retrieval by length and depth",
    "position": "Loss by position",
}
# Text stays text, which is a third of the size; Verdana has the widths of DejaVu Sans.
FONT: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana"]}
MOST_ROWS = 200  # of one table on the page; the files beside it have them all
ARGUMENTS = ("scaling", "length", "low", "high", "n", "status")  # of a score in a card


def sections(table: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the tables for people of a table of cells, by section and title."""
    known, baselines = table["compared"].notna().any(), table["baseline"].dropna().unique()
    every = {
        "Answer": verdict.display(verdict.verdicts(table)) if known else {},
        "Scores": scores(table),
        f"Differences from {' and '.join(baselines)}": differences(table),
    }
    return {title: tables for title, tables in every.items() if tables}


def notes(table: pd.DataFrame) -> list[str]:
    """Return what the numbers and marks of the sections mean."""
    return [*verdict.notes(table), *cells_report.notes(table)]


def report_text(table: pd.DataFrame, figures: Mapping[str, Figure], note: str = "") -> str:
    """Return the page in Markdown: the answer, the scores, the differences, and how to read it."""
    texts = [f"# {escaped(', '.join(table['model'].unique()))}", f"**{note}**" * bool(note)]
    for title, shown in sections(table).items():
        texts.append(f"## {escaped(title)}")
        for name, part in shown.items():
            texts += [f"### {escaped(name)}" * (len(shown) > 1), markdown(part)]
    for name, figure in figures.items():
        texts += [f"![{name}]({name}.png)", str(figure.get_label())]
    texts += ["## How to read this", "\n".join(f"- {escaped(text)}" for text in notes(table))]
    return "\n\n".join(filter(None, texts)) + "\n"


def page(runs: Sequence[Run], written: Written, note: str = "") -> str:
    """Return the page of the runs' reports; the template escapes every text of a record."""
    table = written.cells
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    titles = [TITLES.get(name.partition(":")[0], name) for name in written.figures]
    html: str = environment.get_template("page.html.jinja").render(
        title=", ".join(table["model"].unique()),
        answers=[f"{line[0].upper()}{line[1:]}" for line in verdict.summary(table)],
        note=note,
        command=next(_exports(table, runs), ""),
        figures=[
            (title, _svg(figure), figure.get_figwidth() / PAGE, figure.get_label())
            for title, figure in zip(titles, written.figures.values(), strict=True)
        ],
        sections=[(title, _html(tables)) for title, tables in sections(table).items()],
        notes=notes(table),
        reports=[
            (report.about.rstrip(".") or name, _html(report.display), report.notes)
            for name, report in written.tables.items()
        ],
        facts=facts(runs),
        documents=_html({"": documents(runs)}),
    )
    return html


def _html(tables: Mapping[str, pd.DataFrame]) -> list[tuple[str, Markup]]:
    """Return tables as HTML, whose texts pandas escapes."""
    shown = {title: without_missing(table.head(MOST_ROWS)) for title, table in tables.items()}
    return [(title, Markup(table.to_html(index=False, border=0))) for title, table in shown.items()]


def _exports(table: pd.DataFrame, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the command that writes the method to use at the longest length for a server."""
    used = table[table["use"].fillna(value=False)]
    used = used.sort_values("length", ascending=False, kind="stable")  # copies stay below
    for row in records(used):
        for run in runs:
            model, method = run["asked"].get("model"), run["methods"].get(row["scaling"])
            if run["model"]["name"] == row["model"] and isinstance(model, str) and method:
                engine = "hf-code" if row["needs_code"] else "transformers"
                words = ["--scaling", method["given"], "--length", str(row["length"])]
                yield shlex.join(["ropewalk", "export", model, *words, "--to", engine])


def _svg(figure: Figure) -> str:
    content = io.BytesIO()
    with drawing(), rc_context(FONT):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"


def card(frame: pd.DataFrame, runs: Sequence[Run], written: Written, note: str) -> str:
    """Return a section for a model's README beside the reports; raise UserError for two models."""
    names = {run["model"]["name"] for run in runs}
    if len(names) > 1:
        raise UserError(f"--card is about one model; these runs have {', '.join(sorted(names))}.")
    table = cell_scores(frame)
    results = [_result(row, frame, runs) for row in records(table) if row["score"] is not None]
    metadata = ModelCardData(model_name=names.pop(), eval_results=results, tags=["long-context"])
    known = {name: map(escaped, lines) for name, lines in facts(runs) if name != "the command"}
    drawn = {name.partition(":")[0] for name in written.figures}
    parts = [
        f"---\n{metadata.to_yaml()}\n---\n\n## Beyond the trained window",
        *map(escaped, [*verdict.sentences(written.cells), note]),
        "![Scores against length](curves.png)" * ("curves" in drawn),
        "The 95 % interval over documents or trials is in brackets.",
        markdown_page(across(table)),
        "### How it was measured",
        "\n".join(f"- {name}: {'; '.join(lines)}" for name, lines in known.items()),
        markdown(documents(runs)),
        *(f"```bash\n{words}\n```" for words in map(command, runs) if words),
    ]
    return "\n\n".join(part.strip("\n") for part in filter(None, parts)) + "\n"


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
