"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, err, keeping, say
from harness.cli.report import write
from harness.cli.settings import with_settings
from harness.hub import go_offline
from harness.sweep.parse import parse_all


@with_settings
def run(
    sweep: Annotated[
        Path | None,
        Parameter(
            help="A YAML file with the same settings, or a sweep that `list` names; flags win over "
            "it."
        ),
    ] = None,
    /,
    *,
    dry_run: Annotated[
        bool,
        Parameter(
            negative="", help="Print the plan and its cost; read no weights and write nothing."
        ),
    ] = False,
    **settings: Any,
) -> int:
    """Run a sweep: every scaling x task x length. The same command continues where it stopped."""
    specs = parse_all(sweep, {k: value for k, value in settings.items() if value is not None})
    if specs[0].offline:
        go_offline()
    from harness.backends.connect import connected
    from harness.cli import show
    from harness.cli.models import measured, planned, shown
    from harness.runs.folders import reports_of

    with ExitStack() as reported:
        with connected(specs[0], say) as ray:
            pairs = planned(specs, ray)
            if dry_run:
                return COMPLETE if shown(pairs, ray) == len(specs) else WITH_FAILURES
            # Reports of several models together are others than a tracker has of each.
            done = measured(pairs, ray, reported if len(specs) == 1 else None)
        folders, failed = [folder for folder, _ in done], [one for _, some in done for one in some]
        reports = folders[0] if len(specs) == 1 else folders[0].parent
        # Models of one sweep may have different tokenizers: then they are kept apart, under a note.
        with keeping(folders):
            mixed = len(folders) > 1
            place = reports_of(reports)
            whole = write(folders, place, None, specs[0].task, mixed=mixed, brief=True)
    for plan, _ in pairs:
        show.warnings(plan, err)
    show.failures(failed, err)
    return WITH_FAILURES if failed or not whole or len(done) < len(specs) else COMPLETE
