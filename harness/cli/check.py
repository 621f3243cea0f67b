"""``ropewalk check``: the contract and property tests on a method or an encoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.cli.console import COMPLETE, WITH_FAILURES, err, screen

if TYPE_CHECKING:
    from harness.methods.findings import Finding

MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


def check(plugin: str, /) -> int:
    """Test the contract of a method at many geometries, or of an encoding, and say what it does.

    Args:
        plugin: A path to your own .py file or a NAME, with options as in --scaling.
    """
    with err.status("Checking"):
        label, findings = _checked(plugin)
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        line = f"{MARKS[finding.verdict]} {finding.about:<{width}}  {finding.text}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    failed = sum(finding.verdict == "failed" for finding in findings)
    screen.print(f"{label}: {failed} failed" if failed else f"{label}: passed")
    return WITH_FAILURES if failed else COMPLETE


def _checked(given: str) -> tuple[str, Sequence[Finding]]:
    """Return the name of a method or an encoding, and what was found."""
    from harness.encodings._check import check as check_encoding
    from harness.errors import UserError
    from harness.methods.check import check
    from harness.methods.check_positions import check_bands, moves_positions
    from harness.plugins import CONTRACTS, METHOD, entry, load, module_of, names

    name = given.partition(":")[0]
    own = False
    if "." in name and not name.endswith(".json"):
        module, contract = module_of("plug-in", name)[0], CONTRACTS["encoding"]
        own = all(hasattr(module, part) for part in contract)
        if not own and not any(hasattr(module, part) for part in METHOD):
            message = (
                f"{name} is no method, which defines {' or '.join(METHOD)}, and no encoding, which "
                f"defines {', '.join(contract)}."
            )
            raise UserError(message)
    if own or (name in names("encoding") and name not in names("method")):
        return load("encoding", given).label, check_encoding(given)
    plugin = load("method", given)
    ask = partial(entry(plugin.module, "method"), **plugin.arguments)
    return plugin.label, check_bands(ask) if moves_positions(ask) else check(ask)
