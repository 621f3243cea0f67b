"""Write a run for readers elsewhere, or send it to a tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.api.observer import LOG, Observer
from harness.api.tracking import check_tracker, tracked
from harness.errors import UserError
from harness.files import is_free, new_folder
from harness.names import nearest, resolved
from harness.plugins import names
from harness.reports.plots.style import Paper
from harness.runs.frame import make_frame
from harness.runs.store import checked_run
from harness.share import card, every_eval_ever, public
from harness.sweep.rerun import ask_again

TARGETS: Mapping[str, Callable[[public.PublicRun, Path], list[Path]]] = {
    "card": card.write,
    "folder": public.write,
    "every-eval-ever": every_eval_ever.write,
}


class NotSentError(UserError):
    """A tracker did not receive a part of a run, and has said why."""


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
    lets code that the record names run. Raises UserError if the tracker misses a part of the run.
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
    if to not in TARGETS:
        known = nearest(to, [*TARGETS, *names("tracker")])
        raise UserError(f"nothing is published to {to!r}; {known}.")
    with observer.status("Writing"):
        place = resolved(run)
        new = Path(out) if out else place.with_name(f"{place.name}-{to}")
        if not is_free(new):
            raise UserError(f"{new} exists; name a new folder with --out, or remove it.")
        frame = make_frame([run], tasks)
        requests = None
        if samples:
            graded = every_eval_ever.graded_tasks(frame)
            requests = ask_again(run, graded, places, tasks=tasks, code=run_code)
        drawn = Paper()
        with new_folder(new, "--out") as folder:
            cleaned = public.public_run(run, tasks, drawn, frame, folder, requests)
            return [new / file.relative_to(folder) for file in TARGETS[to](cleaned, folder)]
