"""``ropewalk run``: measure a sweep and report it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.cli.console import (
    COMPLETE,
    TERMINAL,
    WITH_FAILURES,
    Done,
    err,
    note_demo,
    screen,
)
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import EXECUTION, DryRun, FailIf, with_settings
from ropewalk.harness.errors import UserError


@command
@with_settings()
def run(
    sweep: Path | None = None,
    /,
    *,
    from_: Annotated[Path | None, Parameter(name="--from", group=EXECUTION)] = None,
    fail_if: FailIf = None,
    dry_run: DryRun = False,
    **settings: Any,
) -> Done:
    """Run a sweep: every scaling x task x length. The same command continues where it stopped.

    Args:
        sweep: A YAML file with the same settings, or a sweep that `list` names; flags win over it.
        from_: Measure what another run measured: the settings of its record, where no flag gives
            another. Then `ropewalk compare RUN NEW`.
        fail_if: Conditions that end in exit status 3: queries of pandas on the cells, such as
            'scaling == "yarn" and effective_length < 16384'. Exit status 4: one cannot be
            evaluated.
        dry_run: Print the plan and its cost; read no weights and write nothing.
    """
    from ropewalk.harness.api.settings import read_specs, settings_of
    from ropewalk.harness.sweep.spec import Spec

    if from_ is not None:
        settings = settings_of(from_, sweep, settings)
    specs = read_specs(sweep, settings)  # before anything that takes long to import
    if settings.get("model") is None and specs[0].model == Spec.model_fields["model"].default:
        note_demo()
    from ropewalk.harness.api.gate import check, known_of
    from ropewalk.harness.api.report import write
    from ropewalk.harness.api.run import MeasuredRun, PlanSummary, planned, summarize
    from ropewalk.harness.cli.outcome import brief, print_brief, print_conditions, status_of
    from ropewalk.harness.cli.show import print_failures, print_plan
    from ropewalk.harness.runs.store import REPORTS
    from ropewalk.harness.sweep.notes import doc_warnings
    from ropewalk.harness.sweep.plan import Plan

    with planned(specs, TERMINAL) as planning:
        for plan, _ in planning.pairs:
            check(fail_if or (), known_of(plan))
        if dry_run:

            def shown(plan: Plan, folder: Path) -> PlanSummary:
                summary = summarize(plan, folder)
                print_plan(plan, summary, screen)
                return summary

            plans = planning.each(shown)
            return Done(plans, COMPLETE if len(plans) == len(specs) else WITH_FAILURES)
        done = planning.measure()
    folders = list(done.folders)
    place = folders[0] if len(specs) == 1 else folders[0].parent
    # Models of one sweep may have different tokenizers: then a note keeps them separate.
    making = partial(write, folders, tasks=specs[0].task, mixed=len(folders) > 1)
    try:
        reports = making(place / REPORTS, conditions=fail_if or (), observer=TERMINAL)
    except UserError as error:  # a full disk, for instance
        scores = making(None, ["scores"])
        brief(scores.frame, scores.written, screen)
        raise UserError(
            f"{error} The scores are above; everything measured is kept, and the same "
            "command writes the reports."
        ) from error
    print_brief(reports, folders, screen)
    for plan, _ in planning.pairs:
        for warning in doc_warnings(plan.documents):
            TERMINAL.note(warning, warning=True)
    print_failures(done.missing, err)
    complete = reports.complete and not done.missing and len(folders) == len(specs)
    print_conditions(reports, err if screen.quiet else screen)
    return Done(MeasuredRun(done, reports), status_of(reports, complete=complete))
