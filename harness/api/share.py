"""Write a run for readers elsewhere, or send it to a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.api.observer import LOG, Observer
from harness.api.tracking import check_tracker, tracked
from harness.errors import UserError
from harness.files import new_folder
from harness.names import resolved
from harness.plugins import names
from harness.reports._figures import asked, paper
from harness.runs.frame import make_frame
from harness.runs.schema import checked_run
from harness.share.instances import answered
from harness.share.publishing import TARGETS, check
from harness.share.source import source
from harness.sweep.rerun import ask_again


class NotSentError(UserError):
    """A tracker lacks a part of a run, and has said why."""


def publish(
    run: str | Path,
    *,
    to: str,
    out: str | Path | None = None,
    task: Sequence[str] = (),
    samples: bool = False,
    model: str | None = None,
    docs: str | None = None,
    run_code: bool = False,
    observer: Observer = LOG,
) -> list[Path]:
    """Write a run for readers elsewhere and return the files, or send it to a tracker.

    ``to`` is card, folder, every-eval-ever or a tracker. File paths, hosts and addresses of
    clusters are left out. ``samples`` adds every sample that is right or wrong to every-eval-ever,
    with the text of its request; ``model`` and ``docs`` say where these lie now, and ``run_code``
    lets code that the record names run. Raises UserError where the tracker lacks a part of the run.
    """
    run, tasks = Path(run), tuple(task)
    places = {name: place for name, place in (("model", model), ("docs", docs)) if place}
    if samples and to != "every-eval-ever":
        raise UserError(f"--samples are written by --to every-eval-ever alone, not by {to!r}.")
    if (places or run_code) and not samples:
        raise UserError(
            "--model, --docs and --run-code go with --samples; without it no question is read."
        )
    if to.partition(":")[0] in names("tracker") or to.endswith(".py"):
        check_tracker(to)
        checked_run(run)
        with tracked(to, run, tasks, observer) as child:
            pass
        if child is None or child.returncode:
            raise NotSentError(f"{to} has not received all of {run}.")
        return []
    with observer.status("Writing"):
        place = resolved(run)
        new = Path(out) if out else place.with_name(f"{place.name}-{to}")
        check(to, new)
        frame = make_frame([run], tasks)
        drawn = paper(asked(run, {}), frame)
        requests = (
            ask_again(run, answered(frame), places, tasks=tasks, code=run_code) if samples else None
        )
        public = source(run, tasks, drawn, frame, requests)
        with new_folder(new, "--out") as folder:
            return [new / file.relative_to(folder) for file in TARGETS[to](public, folder)]
