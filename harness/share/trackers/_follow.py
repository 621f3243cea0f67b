"""Follow a run folder while it is measured, and send a tracker what is new in it."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from harness.errors import UserError, reason
from harness.files import read_regular, replacing
from harness.names import printable, resolved
from harness.plugins import RAISED, Plugin
from harness.runs.frame import make_frame
from harness.runs.schema import checked_run
from harness.share.trackers._sent import Scores, scores, settings, write_reports_of
from harness.share.trackers._types import Tracked
from harness.share.trackers._words import FINISHED, REPORTED, STOPPED, again, written_at

STATE = "tracked.json"  # beside the record: the tracker's run, and what it was sent
SOON, EVERY = 0.5, 30.0  # seconds between looks, before and after measuring has begun
Say = Callable[[str], object]
SHARE = 20  # a look that takes a second is followed by a pause of so many
LARGEST = 2**24  # bytes of the state


class Following:
    """A run folder and the tracker that it is sent to."""

    def __init__(self, folder: Path, tracker: Plugin, tasks: Sequence[str], say: Say) -> None:
        self.folder, self.tracker, self.tasks, self.say = folder, tracker, tasks, say
        self.run: Tracked | None = None
        self.state = _state(folder).get(tracker.label, {"id": None, "sent": {}})

    def send(self) -> Any:
        """Send every complete cell that is new, and return the frame of the run."""
        if self.run is None:
            self._begin()
        frame = make_frame([self.folder], self.tasks)
        for length, values in sorted(self._new(scores(frame)).items()):
            assert self.run is not None
            self.run.scores(length, values)
            self.state["sent"].setdefault(str(length), {}).update(values)
            self._keep()
        return frame

    def end(self, frame: Any, word: str) -> None:
        """Send the files of a finished run, and close it."""
        assert self.run is not None
        if word != STOPPED:
            with TemporaryDirectory() as place:
                made = word == REPORTED
                write_reports_of(self.folder, self.tasks, frame, Path(place), made=made)
                self.run.files(Path(place))
        self.run.end(finished=word != STOPPED)

    def _begin(self) -> None:
        record, known = checked_run(self.folder), self.state["id"]
        begin = self.tracker.module.begin
        name = printable(resolved(self.folder).name)
        self.run = begin(name, settings(record), known, **self.tracker.arguments)
        if self.run.id != known:
            self.state = {"id": self.run.id, "sent": {}}
        again = "continues the run" if self.run.id == known else "a new run"
        lost = ", as it has no longer that of before" if known not in (None, self.run.id) else ""
        self._keep()
        self.say(f"{self.tracker.label}: {again}{lost}: {self.run.place}")

    def _new(self, found: Scores) -> Scores:
        sent = self.state["sent"]
        unsent = {
            length: {n: v for n, v in values.items() if sent.get(str(length), {}).get(n) != v}
            for length, values in found.items()
        }
        return {length: values for length, values in unsent.items() if values}

    def _keep(self) -> None:
        whole = {**_state(self.folder), self.tracker.label: self.state}
        with replacing(self.folder / STATE) as new:
            new.write(f"{json.dumps(whole, indent=1, ensure_ascii=False)}\n".encode())


def follow(following: Following, written: int, words: TextIO) -> bool:
    """Send until a word says that measuring has ended, and return whether all was sent.

    ``written`` is when the record was last written before measuring began: stopped without a new
    one, as a run is that is refused, it sends nothing of what the folder had. Without a word, as
    after a kill, the run was stopped. Whatever a tracker raises is one warning, and what was not
    sent is tried again.
    """
    pause, whole, warned = 0.0, True, False
    while True:
        told, _, _ = select.select([words], [], [], pause)
        word = (words.readline().strip() or STOPPED) if told else None
        began = time.monotonic()
        pause = SOON
        if word not in (FINISHED, REPORTED) and written_at(following.folder) == written:
            if word is None:
                continue
            return whole
        try:
            frame = following.send()
            if word is not None:
                following.end(frame, word)
            whole = True
        except RAISED as error:
            whole = False
            if not warned:
                following.say(_warning(following, error))
            warned = True
        if word is not None:
            return whole
        pause = max(EVERY, SHARE * (time.monotonic() - began))


def _warning(following: Following, error: BaseException) -> str:
    told = reason(error).rstrip(".")
    if not isinstance(error, UserError | ValueError):  # else a sentence
        told = f"{type(error).__name__}: {told}"
    return (
        f"{following.tracker.label}: not everything was sent ({told}). "
        f"Nothing measured is lost; {again(following.folder, following.tracker.given)}."
    )


def _state(folder: Path) -> dict[str, Any]:
    """Return what earlier starts sent; a file that is broken counts as none."""
    try:
        found = json.loads(read_regular(folder / STATE, limit=LARGEST, follow=False))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
