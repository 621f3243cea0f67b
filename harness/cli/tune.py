"""``ropewalk tune``: search a method's options, or free factors of its channels."""

from __future__ import annotations

from typing import Any

from ropewalk.harness.cli.console import TERMINAL, Done, note_demo, screen
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import DryRun, MaybeModel, Whole, with_settings


@command
@with_settings(
    without=("model", "track"),
    scaling="What is searched: a method (yarn), some options of one (yarn:beta_fast=8..64), or a "
    "factor for each channel (spline:knots=5, channels). [default: yarn]",
    task="What is minimised: the loss of a task's targets (perplexity) or of its answers "
    "(passkey). [default: perplexity]",
    length="The length in tokens: 4096, 4k or 4x (of the trained window). [default: 4x]",
    out="The run folder. [default: results/tune-MODEL]",
    seed="Seed of the split, of the search and of the task. [default: 0]",
)
def tune(
    model: MaybeModel = None,
    *,
    against: tuple[str, ...] | None = None,
    trials: Whole = 60,
    dry_run: DryRun = False,
    **settings: Any,
) -> Done:
    """Search a method's options, or free factors of the channels.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file. [default: reference, the
            embedded demo model]
        against: Closed-form methods to compare. [default: pi, ntk, critical_ntk, ntk_by_parts, yarn
            and mr_rope]
        trials: How many points are tried.
        dry_run: Print what is searched and its cost; measure nothing.
    """
    from ropewalk.harness.sweep.spec import methods_of

    named = methods_of(against or ())  # before anything that takes long to import
    from ropewalk.harness.api.tune import AGAINST
    from ropewalk.harness.api.tune import tune as search
    from ropewalk.harness.cli.tables import grids

    if model is None:
        note_demo()
    result = search(
        model,
        **settings,
        against=named or AGAINST,
        trials=trials,
        dry_run=dry_run,
        observer=TERMINAL,
    )
    if result is None:
        return Done(None)
    screen.print(result.text, soft_wrap=True)
    screen.print()
    for part in grids(result.table, screen.width):
        screen.print(part)
    screen.print("Files:", *result.files, soft_wrap=True)
    for line in result.next:
        screen.print(line, soft_wrap=True)
    return Done(result)
