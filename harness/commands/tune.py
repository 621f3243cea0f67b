"""``ropewalk tune``: search a method's options, or free factors of its channels."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field

from ropewalk.harness.commands.run import DEMO
from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.spec import (
    CELLS,
    MEASURED,
    METHODS,
    DryRun,
    Entries,
    Model,
    OneModel,
    Out,
    Whole,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.recommend.tune import Tuned

log = logging.getLogger("ropewalk")
AGAINST = ("pi", "ntk", "critical_ntk", "ntk_by_parts", "yarn", "mr_rope")


class Searched(OneModel):
    """The settings of a search."""

    scaling: Annotated[tuple[str, ...], Parameter(group=METHODS)] = ("yarn",)
    """What is searched: a method (yarn), some options of one (yarn:beta_fast=8..64), or a factor
    for each channel (spline:knots=5, channels)."""
    task: Annotated[Entries, Parameter(group=MEASURED, alias=("--tasks", "-t"))] = ("perplexity",)
    """What is minimised: the loss of a task's targets (perplexity) or of its answers (passkey)."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), Parameter(group=MEASURED)] = 0
    """Seed of the split, of the search and of the task."""
    out: Out = None
    """The run folder. [default: results/tune-MODEL]"""


@takes_settings
def tune(
    model: Model | None = None,
    *,
    against: tuple[str, ...] = AGAINST,
    trials: Whole = 60,
    dry_run: DryRun = False,
    spec: Annotated[Searched, Parameter(name="*")] = Searched(),
) -> Tuned | None:
    """Search a method's options, or free factors of the channels, by CMA-ES at one length.

    A search that was interrupted goes on when it is called again.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file. [default: reference, the
            embedded demo model]
        against: Closed-form methods to compare.
        trials: How many points are tried.
        dry_run: Print what is searched and its cost; measure nothing.
    """
    closed = parse(None, {"scaling": against}).scaling if against else ()
    usual = {"scaling": spec.scaling, "task": spec.task, "length": spec.length, "model": model}
    sweep = parse(None, {**settings_of(spec), **usual})
    if {len(sweep.scaling), len(sweep.task), len(sweep.length)} != {1}:
        raise UserError("tune searches one --scaling by one --task at one --length.")
    if not 1 <= trials <= CELLS:
        raise UserError(f"--trials {trials} is invalid: tune tries 1 to {CELLS:,} points.")
    if find_spec("cmaes") is None:
        raise UserError("tune needs the package cmaes: pip install 'ropewalk[tune]'.")
    if model is None:
        log.info(DEMO)
    from ropewalk.harness.recommend.tune import Search
    from ropewalk.harness.serve._launch import backend_for

    with backend_for(sweep) as backend:
        return Search(sweep, backend, closed).run(trials, dry_run=dry_run)
