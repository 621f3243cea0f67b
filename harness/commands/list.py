"""``ropewalk list``: the catalogue of plug-ins and of carried sweeps."""

from __future__ import annotations

from harness.commands._screen import COMPLETE, screen


def list_() -> int:
    """List methods, tasks and reports, each with what it does and its source, and the sweeps."""
    from harness.plugins import FOLDERS, catalogue
    from harness.sheet import carried

    for kind, lines in ({kind: catalogue(kind) for kind in FOLDERS} | {"sweep": carried()}).items():
        width = max(map(len, lines), default=0)
        screen.print(f"{kind}s", style="bold")
        for name, line in lines.items():
            screen.print(f"  {name:<{width}}  {line}", soft_wrap=True)
    return COMPLETE
