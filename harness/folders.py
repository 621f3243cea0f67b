"""Where the runs of a sweep go: one folder a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError

REPORTS = "reports"  # of all models together, beside their folders


def run_folders(out: Path | None, models: Sequence[str], *, several: bool) -> list[Path]:
    """Return the run folder of each model: of several, one of its name in ``out``.

    Raises UserError where several models have no ``out``, or would share a folder.
    """
    if not several:
        return [out or Path("results") / f"run-{models[0]}"]
    if out is None:
        message = "several models are swept: say with --out where the folder of each goes."
        raise UserError(message)
    for model in models:
        if models.count(model) > 1 or model == REPORTS:
            message = (
                f"{out} has room for one folder called {model!r}: rename the folder of a model, or"
                " sweep it apart."
            )
            raise UserError(message)
    return [out / model for model in models]
