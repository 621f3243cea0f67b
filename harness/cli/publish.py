"""``ropewalk publish``: a run for readers elsewhere."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import COMPLETE, WITH_FAILURES, Many, err, screen


def publish(run: Path, /, *, to: str, out: Path | None = None, task: Many = None) -> int:
    """Write a run for readers elsewhere, or send it to a tracker.

    Paths, hosts and the address of a cluster are left out. What is written is sent nowhere.

    Args:
        run: A run folder.
        to: card, folder or every-eval-ever (JSON of scores with intervals), which are written; or
            a tracker that it is sent to, as in `ropewalk run --track`.
        out: A new folder to write; default: RUN-card and so on, beside the run.
        task: Your own task files that the run was measured with: only these are executed.
    """
    from harness.plugins import names

    if to.partition(":")[0] in names("tracker") or to.endswith(".py"):
        return _send(run, to, task or ())
    with err.status("Writing"):
        from harness.publish.publishing import TARGETS, check
        from harness.publish.source import source
        from harness.runs.figures import asked, paper
        from harness.runs.frame import make_frame

        place = run.resolve()
        new = out or place.with_name(f"{place.name}-{to}")
        check(to, new)
        frame = make_frame([run], task or ())
        drawn = paper(asked(run, {}), set(frame["scaling"]))
        files = TARGETS[to](source(run, task or (), drawn, frame), new)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    screen.print(f"{files[0]}{more}", soft_wrap=True)
    return COMPLETE


def _send(run: Path, tracker: str, tasks: tuple[str, ...]) -> int:
    """Send a finished run to a tracker."""
    from harness.cli.tracking import check_tracker, tracked
    from harness.runs.schema import checked_run

    check_tracker(tracker)
    checked_run(run)
    with tracked(tracker, run, tasks) as child:
        pass
    return WITH_FAILURES if child is None or child.returncode else COMPLETE
