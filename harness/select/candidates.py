"""The candidates of a race: the default ones, those that coincide, and those no engine serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.errors import UserError
from harness.methods.resolve import depends_on_length
from harness.plugins import module_of, names, parameters
from harness.serve._export import export
from harness.stats.selection import plainness

if TYPE_CHECKING:
    from harness.sweep.plan import Plan

OWN = "none"  # the model without scaling, against which in-window costs are measured
SHIPPED = "native"  # the checkpoint's own scaling
# Searched or calibrated on the model: without that they are an error, or another method.
LEFT_OUT = (SHIPPED, "longrope", "ms_poe", "dpe", "lampe")
ADDED = ("log_n", "temperature", "info_scale")  # used on top of another method: here YaRN
CODE = "hf-code"  # the engine that reads any method, by a modelling file in transformers
# The order in which a budget too small for all takes the candidates: the plainest and most used
# first, then the others alphabetically.
ORDER = (OWN, SHIPPED, "yarn", "ntk", "pi", "ntk_by_parts", "llama3", "dynamic_ntk", "self_extend")


def default_candidates(stretch: float, *, ships: bool = False) -> tuple[str, ...]:
    """Return every training-free method with its usual options, at the fixed factor of a target.

    A server has one factor for all lengths. Methods whose authors train with them are left out:
    their files have TRAINING. What a checkpoint ``ships`` is a candidate: it is the unchanged
    model.
    """
    factor = f"factor={stretch:g}"
    candidates = {OWN: OWN} | ({SHIPPED: SHIPPED} if ships else {})
    for name in names("method"):
        module = module_of("method", name)[0]
        if name in (OWN, *LEFT_OUT) or hasattr(module, "TRAINING"):
            continue
        option = parameters(module, "method").get("factor")
        fixed = option is not None and option.default is None
        options = f"on=yarn:{factor}" if name in ADDED else factor if fixed else ""
        candidates[name] = f"{name}:{options}" if options else name
    first = [name for name in ORDER if name in candidates]
    return tuple(candidates[name] for name in dict.fromkeys([*first, *candidates]))


def coinciding(plan: Plan, labels: Iterable[str]) -> dict[str, list[str]]:
    """Return, under the plainest name of each, the methods that are the same at the target.

    A server keeps the form of the target for all lengths, so what a method does at other lengths
    does not matter; a name whose form changes with the length is still the last choice.
    """
    window, target = plan.lengths
    cells = {(cell.scaling, cell.length): cell for cell in plan.cells}
    groups: dict[str | None, list[str]] = {}
    for label in labels:
        groups.setdefault(cells[label, target].frequencies, []).append(label)

    def merit(label: str) -> tuple[bool, tuple[int, int, str]]:
        far, near = (cells[label, length].rotation for length in (target, window))
        return depends_on_length(far, near, window), plainness(label)

    return {min(same, key=merit): sorted(same, key=merit) for same in groups.values()}


def unserved(plan: Plan, labels: Iterable[str], to: str | None) -> dict[str, str]:
    """Return the methods that an engine cannot express at the target, and why.

    Without an engine these are the methods that none reads but transformers with a modelling file.
    """
    given = {method.label: method.given for method in plan.methods}
    target = plan.lengths[-1]
    cells = {cell.scaling: cell for cell in plan.cells if cell.length == target}
    reasons = {}
    for label in labels:
        rotation = cells[label].rotation
        if to is None:
            if rotation is not None and rotation.needs_code:
                reasons[label] = f"only --to {CODE} expresses it"
            continue
        changes = {"scaling": (given[label],), "length": (str(target),)}
        engine = "transformers" if to == CODE and not (rotation and rotation.needs_code) else to
        try:
            export(plan.spec.model_copy(update=changes), engine)
        except UserError as error:
            reasons[label] = str(error)
    return reasons
