"""``ropewalk check``: the contract of a method or an encoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.commands.list import kinds_of
from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.spec import (
    MEASURED,
    Lengths,
    Model,
    Opening,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.serve._doctor import Finding

    Base = list[Finding]
else:
    Base = list
MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


class Findings(Base):
    """What was found, one line each; the exit status is 1 where something failed."""

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return int(any(finding.verdict == "failed" for finding in self))

    def __str__(self) -> str:
        width = max((len(finding.about) for finding in self), default=0)
        lines = (f"{MARKS[one.verdict]} {one.about:<{width}}  {one.text}" for one in self)
        return "\n".join(lines)


class Checked(Opening):
    """The settings of a check."""

    length: Annotated[Lengths, Parameter(group=MEASURED)] = ("0.5x", "1x", "2x", "16x")
    """Lengths to check a method at."""


@takes_settings
def check(
    plugin: str,
    /,
    *,
    model: Model = "reference",
    spec: Annotated[Checked, Parameter(name="*")] = Checked(),
) -> Findings:
    """Test the code of a method or an encoding against its contract.

    Args:
        plugin: Your own .py file, or the NAME of a method or an encoding, with its options.
        model: Check a method at the geometry in this model's config. reference is the embedded demo
            model.
    """
    sweep = parse(None, {**settings_of(spec), "length": spec.length, "model": model})
    name = plugin.partition(":")[0]
    kinds = ["method"] if name.endswith(".json") else kinds_of(name, ("method", "encoding"))
    from ropewalk.harness.commands.contracts import check_encoding, check_method
    from ropewalk.harness.models.config import open_config
    from ropewalk.harness.patching.config import rope_of
    from ropewalk.harness.plugins import entry, load
    from ropewalk.harness.serve._doctor import Finding

    findings = Findings()
    for kind in kinds:
        loaded = load(kind, plugin)
        about, where = f"{kind} {loaded.label}", ""
        test: Callable[..., None] = partial(check_encoding, plugin)
        if kind == "method":
            trusted = sweep.trust_remote_code
            config = open_config(sweep.model, sweep.revision, trusted)[2]
            rope = rope_of(config, sweep.trained_length)
            lengths = sweep.lengths(rope.trained_length)
            method = partial(entry(loaded.module, kind), **loaded.arguments)
            test = partial(check_method, method, rope, lengths)
            where = (
                f" at rotary_dim {rope.rotary_dim}, base {rope.base:g}, window "
                f"{rope.trained_length}, lengths {', '.join(map(str, lengths))}"
            )
        if wrong := _broken(test):
            findings.append(Finding(about, "failed", wrong))
            continue
        findings.append(Finding(about, "passed", f"keeps the contract{where}"))
        if kind == "method" and (note := _broken(partial(test, plain_inside=True))):
            findings.append(Finding(about, "note", note))
    return findings


def _broken(test: Callable[[], Any]) -> str:
    from ropewalk.harness.plugins import call

    def found() -> str:
        try:
            test()
        except AssertionError as error:
            return str(error)
        return ""

    try:
        return call("its code", found)
    except UserError as error:
        return str(error)
