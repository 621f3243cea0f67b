"""``ropewalk list``: the catalogue of plug-ins."""

from __future__ import annotations

from harness.commands._screen import COMPLETE, screen


def list_() -> int:
    """List the methods, tasks and reports, each with what it does and its source."""
    from harness.plugins import FOLDERS, catalogue

    for kind in FOLDERS:
        lines = catalogue(kind)
        width = max(map(len, lines), default=0)
        screen.print(f"[bold]{kind}s[/bold]")
        for name, line in lines.items():
            screen.print(
                f"  {name:<{width}}  {line}", highlight=False, markup=False, soft_wrap=True
            )
    return COMPLETE
