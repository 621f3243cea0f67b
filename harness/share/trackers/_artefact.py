"""Send a folder as one artefact, and its figures as pictures, through W&B's interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def send_folder(library: Any, run: Any, name: str, folder: Path) -> None:
    """Send all files of a folder to a run of ``library``, wandb or one with its interface."""
    artefact = library.Artifact(name, type="reports")
    artefact.add_dir(str(folder))
    run.log_artifact(artefact)
    figures = sorted(folder.rglob("*.png"))
    if figures:
        run.log({f"figures/{file.stem}": library.Image(str(file)) for file in figures})
