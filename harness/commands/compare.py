"""``ropewalk compare``: compare two runs, or a run with a published table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.spec import OUT

if TYPE_CHECKING:
    from ropewalk.harness.reports._comparison import Comparison


def compare(
    run: Path,
    other: Path | None = None,
    /,
    *,
    published: str | None = None,
    model: str | None = None,
    tuned: str | None = None,
    tolerance: float | None = None,
    mixed: bool = False,
    task: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    out: Annotated[Path | None, OUT] = None,
) -> Comparison:
    """Compare two runs cell by cell on the same documents, or a run with a published table.

    The runs may be of two models. They may also be of one model before and after a change to it, to
    a package or to the machine. For every cell that both runs have, the table shows the second
    minus the first.

    Args:
        run: A run folder.
        other: The run folder to compare it with.
        published: Compare one run with this table instead: dca, lceg-pg19, pi-pg19, …; exit
            status 1 if a value is outside the tolerance. [default: the one that the run's sweep
            file names]
        model: A model of the table. [default: its only one, or the one with the run's name]
        tuned: A training that the table names: use the rows with it. [default: rows without]
        tolerance: Percent by which a value may differ and count as reproduced. [default: 2]
        mixed: Compare with a table of another protocol or trained length too, with a warning.
        task: Your own task files that the runs were measured with: only these are executed.
        out: Write the comparison there too, as CSV and Markdown.
    """
    from ropewalk.harness.reports._comparison import two_runs, with_table

    folder = Path(out) if out else None
    options = {"published": published, "model": model, "tuned": tuned, "tolerance": tolerance}
    if other is None:
        return with_table(Path(run), task, folder, mixed=mixed, **options)
    for name, value in {**options, "mixed": mixed or None}.items():
        if value is not None:
            raise UserError(
                f"--{name} is for one run beside a published table; two runs were given."
            )
    return two_runs(Path(run), Path(other), task, folder)
