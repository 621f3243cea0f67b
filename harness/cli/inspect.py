"""``ropewalk inspect``: what each scaling does to a model's channels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.api.settings import read_spec
from harness.cli.console import COMPLETE, Many, Switch, err, screen
from harness.errors import UserError

APART = ("base", "encoding", "out")  # what is no setting of a sweep


def inspect(
    model: str | None = None,
    *,
    scaling: Many = None,
    length: Many = None,
    revision: str | None = None,
    offline: Switch = None,
    trust_remote_code: Switch = None,
    base: Annotated[Sequence[float] | None, Parameter(consume_multiple=True)] = None,
    encoding: Many = None,
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
        base: Other bases of the rotary embedding, for the figure of scores.
        encoding: Encodings for that figure: NAME, or the folder of a trained model of one.
        out: Where tables and figures go, as CSV, PNG, SVG and PDF; default: print the table only.
    """
    flags = {name: value for name, value in locals().items() if name not in APART}
    spec = read_spec(flags)
    with err.status("Reading config"):
        from harness.inspection.identities import show as show_identities
        from harness.inspection.inspect import inspect, show, write
        from harness.inspection.scores import of_base, of_encoding
        from harness.sweep.plan import once_each

        inspection = inspect(spec)
        rope, longest = inspection.rope, max(reading.length for reading in inspection.readings)
        if out and longest < 2:
            raise UserError("figures over distance need a --length of 2 tokens or more.")
        bases = [of_base(one, rope, longest) for one in base or ()]
        trusted = spec.trust_remote_code
        encodings = [of_encoding(one, rope, longest, trusted=trusted) for one in encoding or ()]
        once_each("base", [curve.name for curve in bases])
        once_each("encoding", [curve.name for curve in encodings])
    show(inspection, screen)
    show_identities(rope, longest, screen)
    for file in write(inspection, out, [*bases, *encodings]) if out else ():
        screen.print(f"  {file}", highlight=False, soft_wrap=True)
    return COMPLETE
