"""``ropewalk inspect``: what each scaling does to a model's channels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.harness.sweep.spec import (
    LENGTHS,
    MEASURED,
    METHODS,
    OUT,
    SCALING,
    Lengths,
    Methods,
    Model,
    Opening,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.reports._inspection import Inspection


class Inspected(Opening):
    """The settings of an inspection."""

    scaling: Annotated[Methods, Parameter(group=METHODS)] = SCALING
    """Scaling methods, as for `ropewalk run`."""
    length: Annotated[Lengths, Parameter(group=MEASURED)] = LENGTHS
    """Lengths in tokens: 512, 4k (4096), or 2x or 1.5x (of the trained window)."""


@takes_settings
def inspect(
    model: Model = "reference",
    *,
    out: Annotated[Path | None, OUT] = None,
    spec: Annotated[Inspected, Parameter(name="*")] = Inspected(),
) -> Inspection:
    """Show what each scaling does to a model's channels, from the model's config alone.

    Args:
        model: A folder or a hub name. reference is the embedded demo
            model.
        out: Where tables and figures go, as CSV and PNG. [default: print the table only]
    """
    sweep = parse(None, {**settings_of(spec), "model": model})
    from ropewalk.harness.reports._inspection import inspect as compute

    return compute(sweep, Path(out) if out else None)
