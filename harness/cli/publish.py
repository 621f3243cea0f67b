"""``ropewalk publish``: a run for readers elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, Many, err, screen
from harness.errors import UserError
from harness.names import resolved

if TYPE_CHECKING:
    import pandas as pd

    from harness.sweep.ask_again import Asked


def publish(
    run: Path,
    /,
    *,
    to: str,
    out: Path | None = None,
    task: Many = None,
    samples: Annotated[bool, Parameter(negative="")] = False,
    model: str | None = None,
    docs: str | None = None,
    run_code: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write a run for readers elsewhere, or send it to a tracker.

    Paths, hosts and the address of a cluster are left out. What is written is sent nowhere.

    Args:
        run: A run folder.
        to: card, folder or every-eval-ever (JSON of scores with intervals), which are written; or
            a tracker that it is sent to, as in `ropewalk run --track`.
        out: A new folder to write; default: RUN-card and so on, beside the run.
        task: Your own task files that the run was measured with: only these are executed.
        samples: To every-eval-ever, also every sample that is right or wrong, with the text of its
            question, which may be that of your documents; it is made again of them and of the
            model's tokenizer, without weights.
        model: With --samples, where the model or its tokenizer lies now, if it moved.
        docs: With --samples, where the documents lie now, if they moved.
        run_code: With --samples, let code that the record names run: that of a model's repository,
            tasks of lm-eval in a folder.
    """
    from harness.plugins import names

    places = {name: given for name, given in (("model", model), ("docs", docs)) if given}
    _check_samples(to, asked=samples, others=bool(places or run_code))
    if to.partition(":")[0] in names("tracker") or to.endswith(".py"):
        return _send(run, to, task or ())
    with err.status("Writing"):
        from harness.files import new_folder
        from harness.reports._figures import asked, paper
        from harness.runs.frame import make_frame
        from harness.share.publishing import TARGETS, check
        from harness.share.source import source

        place = resolved(run)
        new = out or place.with_name(f"{place.name}-{to}")
        check(to, new)
        frame = make_frame([run], task or ())
        drawn = paper(asked(run, {}), frame)
        questions = _questions(run, frame, places, task or (), code=run_code) if samples else None
        public = source(run, task or (), drawn, frame, questions)
        with new_folder(new, "--out") as folder:
            files = [new / file.relative_to(folder) for file in TARGETS[to](public, folder)]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    screen.print(f"{files[0]}{more}", soft_wrap=True)
    return COMPLETE


def _check_samples(to: str, *, asked: bool, others: bool) -> None:
    """Raise UserError for settings of samples where none are written."""
    if asked and to != "every-eval-ever":
        raise UserError(f"--samples are written by --to every-eval-ever alone, not by {to!r}.")
    if others and not asked:
        raise UserError(
            "--model, --docs and --run-code go with --samples; without it no question is read."
        )


def _questions(
    run: Path, frame: pd.DataFrame, places: dict[str, str], tasks: tuple[str, ...], *, code: bool
) -> dict[str, Asked]:
    """Return the questions of the tasks whose samples are right or wrong."""
    from harness.share.instances import answered
    from harness.sweep.ask_again import ask_again

    return ask_again(run, answered(frame), places, tasks=tasks, code=code)


def _send(run: Path, tracker: str, tasks: tuple[str, ...]) -> int:
    """Send a finished run to a tracker."""
    from harness.cli.tracking import check_tracker, tracked
    from harness.runs.schema import checked_run

    check_tracker(tracker)
    checked_run(run)
    with tracked(tracker, run, tasks) as child:
        pass
    return WITH_FAILURES if child is None or child.returncode else COMPLETE
