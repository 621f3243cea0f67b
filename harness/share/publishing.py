"""Publish a run: the targets by name, and a new folder for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import UserError
from harness.files import is_free
from harness.names import nearest
from harness.plugins import names
from harness.share import card, every_eval_ever, folder
from harness.share.source import Source

TARGETS: Mapping[str, Callable[[Source, Path], list[Path]]] = {
    "card": card.write,
    "folder": folder.write,
    "every-eval-ever": every_eval_ever.write,
}


def check(to: str, out: Path) -> None:
    """Raise UserError for an unknown target, and for a folder that has anything in it."""
    if to not in TARGETS:
        known = nearest(to, [*TARGETS, *names("tracker")])
        raise UserError(f"nothing is published to {to!r}; {known}.")
    if not is_free(out):
        raise UserError(f"{out} exists; name a new folder with --out, or remove it.")
