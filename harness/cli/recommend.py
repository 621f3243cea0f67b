"""``ropewalk recommend``: which method to use at a target length, by a race."""

from __future__ import annotations

from textwrap import wrap
from typing import Any, Literal

from rich.table import Table

from ropewalk.harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Done, screen
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import DryRun, MaybeModel, with_settings
from ropewalk.harness.errors import UserError


@command
@with_settings(
    without=("model", "task", "track"),
    scaling="The candidates: NAME, NAME:option=value,… or your own .py file. [default: all that "
    "need no training, at the fixed factor of the target, and what the checkpoint ships]",
    length="The target: 32k (32768) or 4x (of the trained window). [default: 4x]",
    out="The run folder. [default: results/recommend-MODEL]",
)
def recommend(
    model: MaybeModel = None,
    *,
    to: str | None = None,
    tolerance: float = 1.0,
    margin: float = 1.0,
    budget: str | None = None,
    dry_run: DryRun = False,
    **settings: Any,
) -> Done:
    """Recommend the method for a target length (--length, default 4x), by a race on your documents.

    Methods (--scaling, or all training-free ones) are measured on the same documents in
    rounds, and those that are significantly worse are measured no further. The answer is one
    method, with a bound on how much worse than the best it is. The same command continues a race.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file. Required, here or as --model.
        to: The engine that will serve it (transformers, vllm, sglang, gguf, mlx, hf-code): only
            methods that it can express are candidates.
        tolerance: Percent of perplexity that a method may cost inside the window.
        margin: Percent of perplexity up to which a method is as good as the best.
        budget: The most that it may spend: 2h, 15min, a number of forwards at the target, or all.
            [default: a third of all forwards, and at least all methods on 6 documents]
        dry_run: Say what it may cost; read no weights, write nothing.
    """
    from ropewalk.harness.plugins import check_name

    if to is not None:
        check_name("engine", to.replace("-", "_"))  # before anything that takes long to import
    from ropewalk.harness.api.select import race
    from ropewalk.harness.cli.tables import print_sentences

    if model is None:
        raise UserError(
            "recommend needs a model: ropewalk recommend FOLDER or OWNER/NAME. (reference is the "
            "embedded demo model.)"
        )
    given = {"model": model, **settings}
    result = race(given, tolerance, margin, budget, to=to, observer=TERMINAL, dry_run=dry_run)
    if result is None:
        return Done(None)
    screen.print("\nrecommend", style="bold")
    print_sentences(result.text.splitlines(), screen)
    screen.print()
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in result.shown:
        justify: Literal["left", "right"] = "left" if column in ("method", "verdict") else "right"
        table.add_column(str(column).replace(" ", "\n", 1), justify=justify, no_wrap=True)
    for name, *cells in result.shown.to_numpy().tolist():
        table.add_row("\n".join(wrap(name, max(16, screen.width - 59))), *cells)
    screen.print(table)
    for name, reason in result.failures.items():
        screen.print(f"No number of {name}: {reason}", soft_wrap=True)
    screen.print(f"\nTable: {result.files[0].with_suffix('')}.*")
    if result.next:
        screen.print(f"Next:  {result.next}", soft_wrap=True)
    return Done(result, WITH_FAILURES if result.failures else COMPLETE)
