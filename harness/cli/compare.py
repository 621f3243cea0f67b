"""``ropewalk compare``: compare a run with a published table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, screen
from harness.errors import UserError


def compare(
    run: Path,
    /,
    *,
    published: str | None = None,
    model: str | None = None,
    tuned: str | None = None,
    tolerance: float = 2.0,
    out: Path | None = None,
    mixed: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Set a run beside a published table, value by value.

    Args:
        run: The run folder.
        published: The table: dca, lceg-pg19, pi-pg19, …; default: the one its sweep file names.
        model: Which model of the table; default: its only one, or the one of the run's name.
        tuned: Which training of the table's rows; default: those without.
        tolerance: Percent by which a value may differ and count as reproduced.
        out: Write the comparison there too, as CSV, Parquet, Markdown and LaTeX.
        mixed: Compare even with another protocol or trained length, and say so.
    """
    if tolerance < 0:
        raise UserError(f"--tolerance must be 0 or more percent, got {tolerance:g}.")
    from harness.cli.tables import grids
    from harness.files import make_folder
    from harness.published.tables import (
        beside,
        read_table,
        readable,
        rows_of,
        tasks_of,
        unlike,
        words,
    )
    from harness.reports._write import save_table
    from harness.runs.frame import make_frame
    from harness.runs.schema import checked_run
    from harness.stats.cells import cells

    record = checked_run(run)
    name = published or _asked(run, record)
    rows = rows_of(read_table(name), model, tuned, record["model"]["name"])
    reasons = unlike(rows, record)
    same = rows["metric"].iloc[0] in {task["metric"] for task in record["tasks"].values()}
    if reasons and not (mixed and same):
        hint = " With --mixed it is compared all the same." * same
        raise UserError(f"{run} is not comparable with {name}: {'; '.join(reasons)}.{hint}")
    scores = cells(make_frame([run]))
    labels = tasks_of(rows, record)
    metric = scores["metric"] == rows["metric"].iloc[0]
    scores = scores[scores["task"].isin(labels) if labels else metric]
    table = beside(rows, scores, tolerance / 100)
    told = words(table, rows, scores, tolerance / 100, record["model"]["name"])
    told += [f"Not comparable: {reason}." for reason in reasons]
    shown = readable(table)
    title = f"{record['model']['name']} beside {name}"
    screen.print(f"\n{title}", highlight=False, markup=False)
    for part in grids(shown, screen.width):
        screen.print(part)
    for sentence in told:
        screen.print(sentence, highlight=False, markup=False)
    if out:
        make_folder(out)
        for file in save_table(table, [({title: shown}, told)], out / f"compare-{name}"):
            screen.print(f"  {file}", highlight=False, soft_wrap=True)
    return WITH_FAILURES if (table["verdict"] == "outside").any() else COMPLETE


def _asked(run: Path, record: dict[str, Any]) -> str:
    """Return the table that a run's sweep file names; raise UserError where it names none."""
    name = record.get("asked", {}).get("published")
    if name is None:
        raise UserError(f"{run} was not asked to reproduce a table; name one with --published.")
    return str(name)
