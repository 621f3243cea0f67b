"""``ropewalk inspect``: what each scaling does to a model's channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from ropewalk.harness.cli.console import TERMINAL, Done, screen
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import OPENING, MaybeModel, Out, with_settings

if TYPE_CHECKING:
    from ropewalk.harness.reports._inspection import Change, Inspection, Reading
    from ropewalk.scaling.types import Rope

KINDS: tuple[Change, ...] = ("unchanged", "in part", "in full", "beyond", "faster")


@command
@with_settings("scaling", "length", *OPENING)
def inspect(
    model: MaybeModel = None,
    *,
    out: Out = None,
    **settings: Any,
) -> Done:
    """Show what each scaling does to a model's channels, from the model's config alone.

    Args:
        model: A folder or a hub name. [default: reference, the embedded demo model]
        out: Where tables and figures go, as CSV, PNG, SVG and PDF. [default: print the table only]
    """
    from ropewalk.harness.api.model import inspect

    result = inspect(model, out=out, observer=TERMINAL, **settings)
    print_channels(result, screen)
    for file in result.files:
        screen.print(f"  {file}", soft_wrap=True)
    return Done(result)


def print_channels(inspection: Inspection, console: Console) -> None:
    """Print one row per scaling and length: how many channel pairs change, and how."""
    rope = inspection.rope
    turns = rope.turns().tolist()
    slow = sum(turn < 1 for turn in turns)
    console.print(
        f"{inspection.model}: trained window {rope.trained_length:,} tokens, base {rope.base:g}, "
        f"{len(turns)} channel pairs of {turns[0]:,.1f} to {turns[-1]:.2g} turns in the window, "
        f"{slow} of less than one",
        *inspection.notes,
        sep="\n",
    )
    seen = {channel.change for reading in inspection.readings for channel in reading.channels}
    kinds = KINDS[:3] + tuple(kind for kind in KINDS[3:] if kind in seen)
    table = Table(box=box.SIMPLE, padding=0)
    table.add_column("scaling", overflow="fold")  # fits 80 columns, the other columns first
    heads = [kind.replace("in ", "in\n").replace("un", "un-\n") for kind in kinds]
    for head in ("length", "att.\nfactor", *heads, "unseen", "longest\nwave"):
        table.add_column(head, justify="right", no_wrap=True)
    for reading in inspection.readings:
        table.add_row(*_row(reading, rope, kinds))
    console.print(table)
    console.print(
        "Channel pairs unchanged, interpolated in part or in full (by the stretch)"
        f"{', slowed beyond it' * ('beyond' in kinds)}{', made faster' * ('faster' in kinds)}; "
        "unseen: those (0 the fastest) that meet angles not seen in training; longest wave: "
        "tokens in a turn of the slowest.",
        *_moved(inspection),
        sep="\n",
    )


def _moved(inspection: Inspection) -> list[str]:
    """Return a sentence on the reach of every method that moves positions."""
    from ropewalk.harness.reports.writing.sentences import counted

    last = {r.scaling: r for r in inspection.readings if r.rotation.moves_positions}
    lines = []
    for scaling, reading in last.items():
        bands = reading.rotation.as_bands(reading.length)
        line = (
            f"{scaling} at {counted(reading.length, 'tokens')}: relative positions up to "
            f"{bands.reach:,.6g} of {reading.length - 1:,}"
        )
        share = bands.pairs / (reading.length * (reading.length + 1) / 2)
        rest = (
            f"; {100 * (1 - share):.0f} % of the pairs are not attended to." if share < 1 else "."
        )
        lines.append(line + rest)
    return lines


def _row(reading: Reading, rope: Rope, kinds: tuple[Change, ...]) -> list[str]:
    changes = [channel.change for channel in reading.channels]
    waves = [channel.wavelength or math.inf for channel in reading.channels]  # an unrotated pair: ∞
    unseen = [channel.pair for channel in reading.channels if channel.unseen]
    neighbours = unseen and unseen[-1] - unseen[0] == len(unseen) - 1
    return [
        reading.scaling,
        f"{reading.length} ({reading.length / rope.trained_length:.3g}x)",
        f"{reading.attention_factor:.4g}",
        *(str(changes.count(kind)) for kind in kinds),
        f"{len(unseen)} ({unseen[0]}–{unseen[-1]})" if neighbours else str(len(unseen)),
        f"{max(waves):,.0f}".replace("inf", "∞"),
    ]
