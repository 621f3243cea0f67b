"""``ropewalk tune``: search a method's options, or free factors of its channels."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from harness.cli.console import COMPLETE, TERMINAL, Many, screen
from harness.cli.settings import MODEL, with_settings

HELPS = {
    "scaling": "What is searched: a method (yarn), some options of one (yarn:beta_fast=8..64), or "
    "a factor for each channel (spline:knots=5, channels); default: yarn.",
    "task": "What it is searched by: the loss of a task's targets (perplexity, the default) or of "
    "its answers (passkey).",
    "length": "The length in tokens: 4096, 4k or 4x (of the trained window); default: 4x.",
    "out": "The run folder; default: results/tune-MODEL.",
    "seed": "Seed of the split, of the search and of the task.",
}


@partial(with_settings, helps=HELPS, without=("model", "track"))
def tune(
    model: Annotated[str | None, Parameter(help=MODEL)] = None,
    *,
    against: Annotated[
        Many,
        Parameter(
            help="Closed-form methods to compare; default: pi, ntk, critical_ntk, ntk_by_parts, "
            "yarn and mr_rope."
        ),
    ] = None,
    trials: Annotated[int, Parameter(help="How many points are tried.")] = 60,
    key_tokens: Annotated[
        bool, Parameter(negative="", help="Search by the tokens that a longer context makes clear.")
    ] = False,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Print what is searched and its cost; measure nothing.")
    ] = False,
    **settings: Any,
) -> int:
    """Search a method's options, or free factors of the channels."""
    from harness.api.select import AGAINST, search
    from harness.cli.tables import grids

    given = {"model": model, **settings}
    with search(given, against or AGAINST, trials, key_tokens=key_tokens, observer=TERMINAL) as run:
        if dry_run:
            return COMPLETE
        result = run()
    screen.print(result.text, soft_wrap=True)
    screen.print()
    for part in grids(result.table, screen.width):
        screen.print(part)
    screen.print("Files:", *result.files, soft_wrap=True)
    for line in result.next:
        screen.print(line, soft_wrap=True)
    return COMPLETE
