"""``ropewalk list``: the catalogue of plug-ins and bundled sweeps, or one of them in full."""

from __future__ import annotations

from harness.cli.console import COMPLETE, screen


def list_(name: str | None = None, /) -> int:
    """List methods, tasks, reports, engines and encodings with their sources, and sweeps.

    Args:
        name: One of them, or your own .py file: prints its options and an example.
    """
    from harness.plugins import FOLDERS, catalogue, names

    if name is not None:
        kinds: list[str | None] = [
            kind for kind in FOLDERS if name.partition(":")[0] in names(kind)
        ]
        for each in kinds or [None]:
            _describe(name, each)
        return COMPLETE
    from harness.sweep.spec import bundled

    for kind, lines in ({kind: catalogue(kind) for kind in FOLDERS} | {"sweep": bundled()}).items():
        width = max(map(len, lines), default=0)
        screen.print(f"{kind}s", style="bold")
        for entry, line in lines.items():
            screen.print(f"  {entry:<{width}}  {line}", soft_wrap=True)
    return COMPLETE


def _describe(given: str, kind: str | None) -> None:
    from rich import box
    from rich.table import Table

    from harness.cli.describe import describe

    found = describe(given, kind)
    article = "an" if found.kind[0] in "aeiou" else "a"
    screen.print(f"{found.name}, {article} {found.kind}", style="bold")
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
