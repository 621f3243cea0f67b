"""``ropewalk list``: the catalogue of plug-ins and bundled sweeps, or one of them in full."""

from __future__ import annotations

from harness.cli.console import COMPLETE, screen


def list_(name: str | None = None, /) -> int:
    """List methods, tasks and reports, each with what it does and its source, and the sweeps.

    Args:
        name: One of them, or your own .py file: prints its options and an example.
    """
    if name is not None:
        return _describe(name)
    from harness.plugins import FOLDERS, catalogue
    from harness.sweep.sweep_file import bundled

    for kind, lines in ({kind: catalogue(kind) for kind in FOLDERS} | {"sweep": bundled()}).items():
        width = max(map(len, lines), default=0)
        screen.print(f"{kind}s", style="bold")
        for entry, line in lines.items():
            screen.print(f"  {entry:<{width}}  {line}", soft_wrap=True)
    return COMPLETE


def _describe(given: str) -> int:
    from rich import box
    from rich.table import Table

    from harness.cli.describe import describe

    found = describe(given)
    screen.print(f"{found.name}, a {found.kind}", style="bold")
    screen.print(f"\n{found.text}\n", soft_wrap=True)
    if found.options:
        ranges = any(option.range for option in found.options)
        table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
        for title in ("option", "values", "default"):
            table.add_column(title, no_wrap=True)
        if ranges:
            table.add_column("range")
        for option in found.options:
            row = [option.name, option.type, option.default]
            table.add_row(*row, *([option.range] if ranges else []))
        screen.print(table)
    elif found.kind != "sweep":
        screen.print("It has no options.\n")
    screen.print(f"Example: {found.example}", soft_wrap=True)
    return COMPLETE
