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
        plugin: Your own .py file or a NAME, with options as in --scaling; all of one name.
    """
    with err.status("Checking"):
        checked = _checked(plugin)
    total = 0
    for label, findings in checked:
        width = max(len(finding.about) for finding in findings)
        for finding in findings:
            line = f"{MARKS[finding.verdict]} {finding.about:<{width}}  {finding.text}"
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
        failed = sum(finding.verdict == "failed" for finding in findings)
        screen.print(f"{label}: {failed} failed" if failed else f"{label}: passed")
        total += failed
    return WITH_FAILURES if total else COMPLETE


def _checked(given: str) -> list[tuple[str, Sequence[Finding]]]:
    """Return the label of a method or an encoding and what was found; of a name of both, both."""
    from harness.encodings._check import check as check_encoding
    from harness.errors import UserError
    from harness.plugins import CONTRACTS, METHOD, load, module_of, names

    name = given.partition(":")[0]
    kinds = [kind for kind in ("method", "encoding") if name in names(kind)]
    if "." in name and not name.endswith(".json"):
        module, contract = module_of("plug-in", name)[0], CONTRACTS["encoding"]
        own = all(hasattr(module, part) for part in contract)
        kinds = ["encoding" if own else "method"]
        if not own and not any(hasattr(module, part) for part in METHOD):
            message = (
                f"{name} is no method, which defines {' or '.join(METHOD)}, and no encoding, which "
                f"defines {', '.join(contract)}."
            )
            raise UserError(message)
    checked: list[tuple[str, Sequence[Finding]]] = []
    for kind in kinds or ["method"]:
        label = load(kind, given).label
        found = check_encoding(given) if kind == "encoding" else _check_method(given)
        checked.append((f"{kind} {label}" if len(kinds) > 1 else label, found))
    return checked


def _check_method(given: str) -> Sequence[Finding]:
    from harness.methods.check import check
    from harness.methods.check_positions import check_bands, moves_positions
    from harness.plugins import entry, load

    plugin = load("method", given)
    ask = partial(entry(plugin.module, "method"), **plugin.arguments)
    return check_bands(ask) if moves_positions(ask) else check(ask)
