"""``ropewalk check``, ``doctor`` and ``inspect``: faults of code and models; what methods do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.commands.list import kinds_of
from ropewalk.harness.errors import UserError, article
from ropewalk.harness.sweep.spec import (
    LENGTHS,
    MEASURED,
    METHODS,
    OUT,
    SCALING,
    Model,
    Opening,
    Reading,
    one_model,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.reports._inspection import Inspection
    from ropewalk.harness.sweep.identity import Finding
MARKS = {"passed": "✓", "failed": "✗", "note": "·"}


class Findings(list["Finding"]):
    """What was found, one line each; the exit status is 1 where something failed."""

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return int(any(finding.verdict == "failed" for finding in self))

    def __str__(self) -> str:
        width = max((len(finding.about) for finding in self), default=0)
        lines = (f"{MARKS[one.verdict]} {one.about:<{width}}  {one.text}" for one in self)
        return "\n".join(lines)


@takes_settings
def check(
    plugin: str,
    /,
    *,
    model: Model = "reference",
    length: Annotated[tuple[str, ...], Parameter(group=MEASURED)] = ("0.5x", "1x", "2x", "16x"),
    spec: Annotated[Opening, Parameter(name="*")] = Opening(),
) -> Findings:
    """Test the code of a method or an encoding against its contract.

    Args:
        plugin: Your own .py file, or the NAME of a method or an encoding, with its options.
        model: Check a method at the geometry in this model's config. reference is the embedded demo
            model.
        length: Lengths to check a method at.
    """
    sweep = one_model(spec, model=model, length=length)
    from ropewalk.harness.sweep.identity import Finding

    name, findings = plugin.partition(":")[0], Findings()
    kinds = ["method"] if name.endswith(".json") else kinds_of(name)
    if not {"method", "encoding"} & {*kinds}:
        raise UserError(f"check tests methods and encodings, and {name} is {article(kinds[0])}.")
    from ropewalk.harness.commands.contracts import check_encoding, check_method
    from ropewalk.harness.models.checkpoint import open_config
    from ropewalk.harness.patching.config import rope_of
    from ropewalk.harness.plugins import entry, load

    if "encoding" in kinds:
        about, wrong = f"encoding {plugin}", _broken(partial(check_encoding, plugin))
        passed = Finding(about, "passed", "keeps the contract")
        findings.append(Finding(about, "failed", wrong) if wrong else passed)
    if "method" not in kinds:
        return findings
    loaded = load("method", plugin)
    config = open_config(sweep.model, sweep.revision, sweep.trust_remote_code)[2]
    rope = rope_of(config, sweep.trained_length)
    lengths = sweep.lengths(rope.trained_length)
    function = partial(entry(loaded.module, "method"), **loaded.arguments)
    test, about = partial(check_method, function, rope, lengths), f"method {loaded.label}"
    if wrong := _broken(test):
        findings.append(Finding(about, "failed", wrong))
        return findings
    text = (
        f"keeps the contract at rotary_dim {rope.rotary_dim}, base {rope.base:g}, window "
        f"{rope.trained_length}, lengths {', '.join(map(str, lengths))}"
    )
    findings.append(Finding(about, "passed", text))
    if note := _broken(partial(test, plain_inside=True)):
        findings.append(Finding(about, "note", note))
    return findings


def _broken(test: Callable[[], Any]) -> str:
    """Return how code breaks its contract, or what it raises; "" where it does neither."""
    from ropewalk.harness.plugins import call

    try:
        call("its code", test)
    except UserError as error:
        return str(error.__cause__ if isinstance(error.__cause__, AssertionError) else error)
    return ""


@takes_settings
def doctor(
    model: Model,
    *,
    scaling: str = "native",
    length: str = "1x",
    server: str | None = None,
    spec: Annotated[Reading, Parameter(name="*")] = Reading(),
) -> Findings:
    """Find faults of one model: its config, patch, cache and server; exit status 1 if it has any.

    Args:
        model: A folder, a hub name or a GGUF file.
        scaling: The method that should be in use, NAME:option=value,…; native is the shipped one.
        length: The length that the method is for: 512, 4k (4096) or 2x (twice the trained window).
        server: http://HOST:PORT of a running server (vLLM, SGLang, llama.cpp); losses are compared.
    """
    sweep = one_model(spec, model=model, scaling=[scaling], length=[str(length)])
    from ropewalk.harness.serve._doctor import examine
    from ropewalk.harness.sweep.server import connect

    running = connect(server) if server else None  # before weights are read
    return Findings(examine(sweep, running))


@takes_settings
def inspect(
    model: Model = "reference",
    *,
    scaling: Annotated[tuple[str, ...], Parameter(group=METHODS)] = SCALING,
    length: Annotated[tuple[str, ...], Parameter(group=MEASURED)] = LENGTHS,
    out: Annotated[Path | None, OUT] = None,
    spec: Annotated[Opening, Parameter(name="*")] = Opening(),
) -> Inspection:
    """Show what each scaling does to a model's channels, from the model's config alone.

    Args:
        model: A folder or a hub name. reference is the embedded demo model.
        scaling: Scaling methods, as for `ropewalk run`.
        length: Lengths in tokens: 512, 4k (4096), or 2x or 1.5x (of the trained window).
        out: Where tables and figures go, as CSV and PNG. [default: print the table only]
    """
    sweep = one_model(spec, model=model, scaling=scaling, length=length)
    from ropewalk.harness.reports._inspection import inspect as compute

    return compute(sweep, Path(out) if out else None)
