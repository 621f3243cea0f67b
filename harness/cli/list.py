"""``ropewalk list``: the catalogue of plug-ins and bundled sweeps, or one of them in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.harness.cli.console import Done, screen
from ropewalk.harness.cli.output import command

if TYPE_CHECKING:
    from ropewalk.harness.api.describe import Description


@command
def list_(name: str | None = None, /) -> Done:
    """List methods, tasks, reports, engines and encodings with their sources, and sweeps.

    Args:
        name: One kind: methods, tasks, reports, engines, encodings or sweeps. The name of
            one, or your own .py file, shows its options and an example. [default: everything]
    """
    from ropewalk.harness.plugins import FOLDERS, catalogue
    from ropewalk.harness.sweep.spec import bundled

    kinds = {f"{kind}s": kind for kind in (*FOLDERS, "sweep")}
    if name is not None and name not in kinds:
        from ropewalk.harness.api.describe import describe

        descriptions = describe(name)
        for description in descriptions:
            _print(description)
        return Done(descriptions)
    every = {
        heading: bundled() if kinds[heading] == "sweep" else catalogue(kinds[heading])
        for heading in (kinds if name is None else (name,))
    }
    for heading, lines in every.items():
        width = max(map(len, lines), default=0)
        screen.print(heading, style="bold")
        for entry, line in lines.items():
            screen.print(f"  {entry:<{width}}  {line}", soft_wrap=True)
    return Done(every)


def _print(description: Description) -> None:
    from rich import box
    from rich.table import Table

    from ropewalk.harness.names import article

    screen.print(f"{description.name}, {article(description.kind)}", style="bold")
    screen.print(f"\n{description.text}\n", soft_wrap=True)
    if description.options:
        table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
        titles = ["option", "values", "default", "searched by tune"]
        searched = any(option.searched for option in description.options)
        for title in titles if searched else titles[:3]:
            table.add_column(title, no_wrap=True)
        for option in description.options:
            row = [option.name, option.type, option.default]
            table.add_row(*row, *([option.searched] if searched else []))
        screen.print(table)
    elif description.kind != "sweep":
        screen.print("It has no options.\n")
    screen.print(f"Example: {description.example}", soft_wrap=True)
