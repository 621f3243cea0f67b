"""What the trackers that accelerate drives have in common."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TypeVar

from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TrackioTracker, WandBTracker

T = TypeVar("T", bound=GeneralTracker)


def started(tracker: T) -> T:
    """Start a tracker in this process alone and return it."""
    PartialState(cpu=True)  # accelerate writes no message without it
    tracker.start()
    return tracker


def send_folder(
    library: ModuleType, tracker: WandBTracker | TrackioTracker, name: str, folder: Path
) -> None:
    """Send a folder as one artifact and its figures as images; wandb and Trackio share an API."""
    artifact = library.Artifact(f"reports-{name}", type="reports")
    artifact.add_dir(str(folder))
    tracker.tracker.log_artifact(artifact)
    if figures := sorted(folder.rglob("*.png")):
        tracker.log({f"figures/{file.stem}": library.Image(str(file)) for file in figures})
