"""``ropewalk check``: the contract and property tests on a method or an encoding."""

from __future__ import annotations

from typing import Any

from harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Done, print_finding, screen
from harness.cli.output import command
from harness.cli.settings import OPENING, MaybeModel, with_settings


@command
@with_settings(*OPENING)
def check(
    plugin: str, /, *, model: MaybeModel = None, length: str | None = None, **settings: Any
) -> Done:
    """Test the code of a method or an encoding against its contract.

    Args:
        plugin: Your own .py file, or the NAME of a method or an encoding, with its options.
        model: Check a method at this model's geometry, from its config alone. [default: at
            many geometries]
        length: With --model, the longest length: 512, 4k (4096) or 2x. [default: 16x]
    """
    from harness.api.model import check

    results = check(plugin, model=model, observer=TERMINAL, length=length, **settings)
    total = 0
    for label, findings in results:
        width = max(len(finding.about) for finding in findings)
        for finding in findings:
            print_finding(finding, width)
        failed = sum(finding.verdict == "failed" for finding in findings)
        screen.print(f"{label}: {failed} failed" if failed else f"{label}: passed")
        total += failed
    return Done(results, WITH_FAILURES if total else COMPLETE)
