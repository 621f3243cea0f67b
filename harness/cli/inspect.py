"""``ropewalk inspect``: what each scaling does to a model's channels."""

from __future__ import annotations

from pathlib import Path

from harness.cli.console import COMPLETE, Many, Switch, err, screen
from harness.offline import go_offline


def inspect(
    model: str | None = None,
    /,
    *,
    scaling: Many = None,
    length: Many = None,
    revision: str | None = None,
    offline: Switch = None,
    trust_remote_code: Switch = None,
    out: Path | None = None,
) -> int:
    """Show what each scaling does to a model's channels; reads its config alone, no weights.

    Args:
        model: A folder or a hub name; default: the embedded reference model.
        scaling: Methods: NAME, NAME:option=value,… or a path to your own .py file.
        length: Tokens: 512, 4k (4096) or 2x (twice the trained window).
        revision: Branch, tag or commit on the hub.
        offline: Send no request to the hub; use what its cache has.
        trust_remote_code: Let code from the model's repository run.
        out: Where channels and decay go, as CSV, PNG, SVG and PDF; default: print the table only.
    """
    flags = {name: value for name, value in locals().items() if name != "out"}
    from harness.sweep.parse import parse

    spec = parse(None, {name: value for name, value in flags.items() if value is not None})
    if spec.offline:
        go_offline()
    with err.status("Reading config"):
        from harness.inspection.inspect import inspect, show, write

        inspection = inspect(spec)
    show(inspection, screen)
    for file in write(inspection, out) if out else ():
        screen.print(f"  {file}", highlight=False, soft_wrap=True)
    return COMPLETE
