"""``ropewalk check``: the contract and property tests on a method."""

from __future__ import annotations

from harness.cli.console import COMPLETE, WITH_FAILURES, err, screen

MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


def check(method: str, /) -> int:
    """Test the contract of a method at many geometries, and say what it does.

    Args:
        method: A path to your own .py file or a NAME, with options as in --scaling.
    """
    with err.status("Checking"):
        from functools import partial

        from harness.methods.check import check
        from harness.methods.check_positions import check_bands, moves_positions
        from harness.plugins import entry, load

        plugin = load("method", method)
        ask = partial(entry(plugin.module, "method"), **plugin.arguments)
        findings = check_bands(ask) if moves_positions(ask) else check(ask)
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        line = f"{MARKS[finding.verdict]} {finding.about:<{width}}  {finding.text}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    failed = sum(finding.verdict == "failed" for finding in findings)
    screen.print(f"{plugin.label}: {failed} failed" if failed else f"{plugin.label}: passed")
    return WITH_FAILURES if failed else COMPLETE
