"""``ropewalk publish``: a run for readers elsewhere."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import COMPLETE, Many, err, screen


def publish(run: Path, /, *, to: str, out: Path | None = None, task: Many = None) -> int:
    """Write a run for readers elsewhere: a model card's section, or a folder for a web server.

    Paths, hosts and the address of a cluster are left out. Nothing is sent anywhere.

    Args:
        run: A run folder.
        to: What for: card, folder or every-eval-ever (JSON of scores with intervals).
        out: A new folder to write; default: RUN-card and so on, beside the run.
        task: Your own task files that the run was measured with: only these are executed.
    """
    with err.status("Writing"):
        from harness.cli.figures import asked, paper
        from harness.publish.publishing import TARGETS, check
        from harness.publish.source import source
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
