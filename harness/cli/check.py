"""``ropewalk check``: the contract and property tests on a method or an encoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.cli.console import COMPLETE, WITH_FAILURES, Switch, err, screen

if TYPE_CHECKING:
    from harness.methods.findings import Finding
    from scaling.types import Rope

MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


def check(
    plugin: str,
    /,
    *,
    model: str | None = None,
    length: str | None = None,
    revision: str | None = None,
    offline: Switch = None,
    trust_remote_code: Switch = None,
) -> int:
    """Test the contract of a method at many geometries, or of an encoding, and say what it does.

    Args:
        plugin: Your own .py file or a NAME, with options as in --scaling; all of one name.
        model: Check a method at this model's geometry, from its config alone; default: at many.
        length: Up to this length of the model: 512, 4k (4096) or 2x (the default is 16x).
        revision: Branch, tag or commit of the model on the hub.
        offline: Send no request to the hub; use what its cache has.
        trust_remote_code: Let code from the model's repository run.
    """
    asked = {
        "model": model, "length": None if length is None else [length], "revision": revision,
        "offline": offline, "trust_remote_code": trust_remote_code,
    }  # fmt: skip
    with err.status("Checking"):
        checked = _checked(plugin, {k: v for k, v in asked.items() if v is not None})
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


def _checked(given: str, asked: dict[str, Any]) -> list[tuple[str, Sequence[Finding]]]:
    """Return the label of a method or an encoding and what was found; of a name of both, both."""
    from harness.encodings._check import check as check_encoding
    from harness.errors import UserError
    from harness.plugins import CONTRACTS, METHOD, defines, load, module_of, names

    name = given.partition(":")[0]
    kinds = [kind for kind in ("method", "encoding") if name in names(kind)]
    if "." in name and not name.endswith(".json"):
        module, contract = module_of("plug-in", name)[0], CONTRACTS["encoding"]
        own = all(defines(name, module, part) for part in contract)
        kinds = ["encoding" if own else "method"]
        if not own and not any(defines(name, module, part) for part in METHOD):
            raise UserError(
                f"{name} is no method, which defines {' or '.join(METHOD)}, and no encoding, which "
                f"defines {', '.join(contract)}."
            )
    geometry = _geometry(asked) if asked else None
    if geometry:
        kinds = [kind for kind in kinds if kind == "method"] or ["method"]
    checked: list[tuple[str, Sequence[Finding]]] = []
    for kind in kinds or ["method"]:
        label = load(kind, given).label
        found = check_encoding(given) if kind == "encoding" else _check_method(given, geometry)
        checked.append((f"{kind} {label}" if len(kinds) > 1 else label, found))
    return checked


def _geometry(asked: dict[str, Any]) -> tuple[Rope, tuple[float, ...]]:
    """Return the geometry of the user's own model, and its lengths in trained windows."""
    from harness.api.settings import read_spec
    from harness.errors import UserError
    from harness.methods.check_positions import WINDOWS
    from harness.models.config import read_config
    from harness.patching.config import rope_of

    if "model" not in asked:
        raise UserError(f"--{next(iter(asked))} is for a model; give --model too.")
    spec = read_spec(asked, {"length": [f"{WINDOWS[-1]:g}x"]})
    config = read_config(
        spec.model, revision=spec.revision, trust_remote_code=spec.trust_remote_code
    )[1]
    rope = rope_of(config)
    longest = max(spec.lengths(rope.trained_length)) / rope.trained_length
    return rope, (*(one for one in (*WINDOWS, 4.0) if one < longest), longest)


def _check_method(given: str, own: tuple[Rope, tuple[float, ...]] | None) -> Sequence[Finding]:
    from harness.methods.check import check
    from harness.methods.check_positions import check_bands, moves_positions
    from harness.plugins import entry, load

    plugin = load("method", given)
    ask = partial(entry(plugin.module, "method"), **plugin.arguments)
    if own is None:
        return check_bands(ask) if moves_positions(ask) else check(ask)
    rope, windows = own
    if moves_positions(ask, [rope]):
        return check_bands(ask, [(rope, one) for one in windows], own=())
    return check(ask, [rope], windows)
