"""``ropewalk check``: the contract of a method or an encoding."""

from __future__ import annotations

from typing import Any

from ropewalk.harness.cli.console import COMPLETE, TERMINAL, WITH_FAILURES, Done, print_finding
from ropewalk.harness.cli.output import command
from ropewalk.harness.cli.settings import OPENING, MaybeModel, with_settings


@command
@with_settings("length", *OPENING, length="Lengths to check a method at. [default: 0.5x 1x 2x 16x]")
def check(plugin: str, /, *, model: MaybeModel = None, **settings: Any) -> Done:
    """Test the code of a method or an encoding against its contract.

    Args:
        plugin: Your own .py file, or the NAME of a method or an encoding, with its options.
        model: Check a method at the geometry in this model's config. [default: reference, the
            embedded demo model]
    """
    from ropewalk.harness.api.model import check

    findings = check(plugin, model=model, observer=TERMINAL, **settings)
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        print_finding(finding, width)
    failed = any(finding.verdict == "failed" for finding in findings)
    return Done(findings, WITH_FAILURES if failed else COMPLETE)
