"""Send a run folder to a tracker while another process measures it.

``python -m harness.share.trackers._follow TRACKER RUN WRITTEN TASK…`` runs in a process of its own,
so a tracker that fails, waits or writes to the terminal never disturbs the measurement. It reads
one word from stdin when measuring has ended, and prints its messages to the user on stdout.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import pandas as pd

from harness.errors import UserError, reason
from harness.files import read_regular, replacing
from harness.names import printable, resolved
from harness.plugins import RAISED, Plugin, load
from harness.runs.frame import NOT_MEASURED, make_frame
from harness.runs.provenance import command, facts
from harness.runs.store import checked_run
from harness.share.clean import clean_record, entry
from harness.share.trackers import FINISHED, STOPPED, TrackedRun, send_again, written_at
from harness.stats.cells import cells

STATE = "tracked.json"  # beside the record: the tracker's run, and what it was sent
MOST_BYTES = 2**24  # of this file
SOON, EVERY = 0.5, 30.0  # seconds between looks, before and after measuring has begun
SHARE = 20  # a look that takes one second is followed by a pause of this many


class Follower:
    """A run folder and the tracker that it is sent to."""

    def __init__(
        self, folder: Path, tracker: Plugin, tasks: Sequence[str], tell: Callable[[str], object]
    ) -> None:
        self.folder, self.tracker, self.tasks, self.tell = folder, tracker, tasks, tell
        self.run: TrackedRun | None = None
        self.state = _state(folder).get(tracker.label, {"id": None, "sent": {}})

    def send(self, word: str | None) -> None:
        """Send every complete cell that is new or changed, and end the run after the last word."""
        run = self.run = self.run or self._begin()
        frame = make_frame([self.folder], self.tasks)
        for length, values in sorted(scores(frame).items()):
            sent = self.state["sent"].setdefault(str(length), {})
            if new := {name: value for name, value in values.items() if sent.get(name) != value}:
                run.scores(length, new)
                sent.update(new)
                self._save()
        if word == FINISHED:
            with TemporaryDirectory() as folder:
                _write_reports(self.folder, self.tasks, frame, Path(folder))
                run.files(Path(folder))
        if word is not None:
            run.end(finished=word == FINISHED)

    def warning(self, error: BaseException) -> str:
        """Return the one warning about a tracker that raised an error."""
        text = reason(error).rstrip(".")
        if not isinstance(error, UserError | ValueError):  # whose text is a sentence
            text = f"{type(error).__name__}: {text}"
        return (
            f"{self.tracker.label}: not everything was sent ({text}). "
            f"Nothing measured is lost; {send_again(self.folder, self.tracker.given)}."
        )

    def _begin(self) -> TrackedRun:
        known = self.state["id"]
        run: TrackedRun = self.tracker.module.begin(
            printable(resolved(self.folder).name),
            settings(checked_run(self.folder)),
            known,
            **self.tracker.arguments,
        )
        text = "continues the run"
        if run.id != known:
            text = "a new run" if known is None else "a new run, because the earlier one is gone"
            self.state = {"id": run.id, "sent": {}}
        self._save()
        self.tell(f"{self.tracker.label}: {text}: {run.place}")
        return run

    def _save(self) -> None:
        state = {**_state(self.folder), self.tracker.label: self.state}
        with replacing(self.folder / STATE) as file:
            file.write(f"{json.dumps(state, indent=1, ensure_ascii=False)}\n".encode())


def _state(folder: Path) -> dict[str, Any]:
    """Return what earlier processes sent to each tracker; a broken file counts as none."""
    try:
        state = json.loads(read_regular(folder / STATE, limit=MOST_BYTES, follow=False))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def follow(follower: Follower, written: int, stdin: TextIO) -> bool:
    """Send until a word says that measuring has ended; return whether everything was sent.

    If ``stdin`` ends without that word, as after a kill, the run was stopped.
    ``written`` is when the record was last written before measuring began: a run that stops without
    writing a new one was rejected, and nothing of what its folder had is sent. Whatever a tracker
    raises is one warning, and what was not sent is tried again.
    """
    pause, complete, warned = 0.0, True, False
    while True:
        ready, _, _ = select.select([stdin], [], [], pause)
        word = (stdin.readline().strip() or STOPPED) if ready else None
        began, pause = time.monotonic(), SOON
        if word == FINISHED or written_at(follower.folder) != written:
            try:
                follower.send(word)
                complete = True
            except RAISED as error:
                complete = False
                if not warned:
                    follower.tell(follower.warning(error))
                warned = True
            pause = max(EVERY, SHARE * (time.monotonic() - began))
        if word is not None:
            return complete


def settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return how a run is measured: settings of the model, of every method and of every task."""
    public = clean_record(record)
    values = {
        f"model {name}": str(value)
        for name, value in public["model"].items()
        if isinstance(value, str | int | float)
    }
    values |= {
        name: "; ".join(lines)
        for name, lines in facts([public])
        if name in ("documents", "seed", "machine")
    }
    for kind in ("task", "method"):
        values[f"{kind}s"] = ", ".join(public[f"{kind}s"])
        for label, plugin in public[f"{kind}s"].items():
            options = {name: plugin[name] for name in ("version",) if name in plugin}
            options |= plugin["options"]
            text = ", ".join(f"{name}={value}" for name, value in options.items())
            values[f"{kind} {label}"] = text or "no options"
    lengths = ", ".join(map(str, public["lengths"]))
    return {**values, "lengths": lengths, "command": command(public)}


def scores(frame: pd.DataFrame) -> dict[int, dict[str, float]]:
    """Return the scores of the complete cells and the ends of their intervals, by length and name.

    Raises ValueError where two cells have the same name once the folders of files are removed.
    """
    found: dict[int, dict[str, float]] = {}
    for row in cells(frame).to_dict("records"):
        if pd.isna(row["score"]) or NOT_MEASURED in row["status"]:
            continue
        task, scaling = entry(row["task"]), entry(row["scaling"])
        values = found.setdefault(int(row["length"]), {})
        if f"{task}/{scaling}" in values:
            raise ValueError(f"{task}, {scaling} are two without the folders of their files")
        values[f"{task}/{scaling}"] = row["score"]
        for end in ("low", "high"):
            if pd.notna(row[end]):
                values[f"{task} {end}/{scaling}"] = row[end]
    return found


def _write_reports(run: Path, tasks: Sequence[str], frame: pd.DataFrame, out: Path) -> None:
    """Write the page, tables and figures of a run without any path of this machine."""
    # Not needed while a run is measured: what draws figures takes a second to import.
    from harness.reports.plots.style import Paper
    from harness.share.public import public_run, write_page_and_reports

    write_page_and_reports(public_run(run, tasks, Paper(), frame, out), out)


def main() -> int:
    """Follow a folder; return 1 where something was not sent."""
    given, folder, written, *tasks = sys.argv[1:]
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as out:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        tell = partial(print, file=out, flush=True)
        follower = Follower(Path(folder), load("tracker", given), tasks, tell)
        return 0 if follow(follower, int(written), sys.stdin) else 1


if __name__ == "__main__":
    sys.exit(main())
