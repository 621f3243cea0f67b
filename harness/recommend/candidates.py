"""The candidates of a race, and the plan of everything that it could measure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.patching.resolve import as_served, depends_on_length
from ropewalk.harness.plugins import module_of, names, parameters
from ropewalk.harness.reports._text import counted
from ropewalk.harness.serve._export import export
from ropewalk.harness.stats.measure import SHARES, Measure
from ropewalk.harness.stats.selection import plainness
from ropewalk.harness.sweep.plan import Plan, make_plan, open_model
from ropewalk.harness.sweep.record import facts_of
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import native
from ropewalk.scaling.types import Rotation

log = logging.getLogger("ropewalk")
TEXT = "perplexity"  # the task whose options a race sets by itself
PERPLEXITY = Measure("perplexity", "exp", "tail")
OWN = "none"  # the model without scaling, against which in-window costs are measured
SHIPPED = "native"  # the checkpoint's own scaling
# Searched or calibrated on the model: without that they are an error, or another method.
LEFT_OUT = (SHIPPED, "longrope", "ms_poe", "dpe", "lampe")
ADDED = ("log_n", "temperature", "info_scale")  # used on top of another method: here YaRN
CODE = "hf-code"  # the engine that reads any method, by a modelling file in transformers
# A budget that is too small for all takes the candidates in this order: those that are known to
# work first, then the others alphabetically.
ORDER = (OWN, SHIPPED, "yarn", "ntk_by_parts", "mr_rope", "llama3", "ntk", "dynamic_ntk", "pi")


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


def plan_race(
    spec: Spec,
    to: str | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    opening: Callable[[Spec], Checkpoint] = open_model,
) -> Plan:
    """Plan the window and the target; ``to`` is an engine that keeps one factor for all lengths.

    At the target all tokens beyond the window are scored, inside it half of them. Raises UserError
    as ``make_plan`` does, and for a target inside the window.
    """
    checkpoint = checkpoint or opening(spec)
    trained = checkpoint.rope.trained_length
    target, *more = spec.lengths(trained)
    if more or target <= trained:
        raise UserError(
            f"--length must be one length beyond the trained window ({trained:,} tokens), got "
            f"{' '.join(spec.length)}."
        )
    named = spec.scaling
    if "scaling" not in spec.model_fields_set:
        named = default_candidates(target / trained, ships=native.ships(checkpoint.rope))
    if to is not None:
        texts = [one for one in named if isinstance(one, str)]
        forms: dict[Any, Any] = {one: as_served(one, checkpoint.rope, target) for one in texts}
        named = tuple(dict.fromkeys(forms.get(one, one) for one in named))
        if fixed := ", ".join(f"`{one}` as `{form}`" for one, form in forms.items() if form != one):
            log.info(f"{to} keeps one factor for all lengths. Measured in this form: {fixed}.")
    if any(name.partition(":")[0] == TEXT != name for name in spec.task):
        raise UserError(f"recommend sets the options of {TEXT} itself; write --task {TEXT}.")
    ends = f"{TEXT}:tail={target - trained},slide=true", f"{TEXT}:tail={trained // 2}"
    changes = {
        "scaling": named if OWN in named else (OWN, *named),
        "length": (str(trained), str(target)),
        "task": tuple(one for name in spec.task for one in (ends if name == TEXT else (name,))),
    }
    return make_plan(spec.model_copy(update=changes), checkpoint=checkpoint)


def measures(plan: Plan) -> dict[str, Measure]:
    """Return how each task of a race measures, by its label at the target.

    Raises UserError for a task that measures neither perplexity nor shares of trials.
    """
    result = dict[str, Measure]()
    for task in plan.tasks:
        metric = str(facts_of(plan, task)["metric"])
        if task.label.partition(":")[0] == TEXT:
            if PERPLEXITY not in result.values():
                result[task.label] = PERPLEXITY
        elif metric in SHARES:
            result[task.label] = Measure(metric, "parts")
        else:
            raise UserError(
                f"recommend decides by {TEXT} and by shares ({', '.join(sorted(SHARES))}); "
                f"{task.label} measures {metric}."
            )
    return result


def candidates_of(plan: Plan, to: str | None) -> dict[str, list[str]]:
    """Return the candidates, each with the names that it coincides with.

    Methods that are the same at the target are one candidate, under the plainest name: a server
    keeps the form of the target for all lengths, so what a method does at other lengths does not
    matter. A name whose form changes with the length is the last choice. What the engine cannot
    serve is left out, and without an engine, what needs a modelling file. Raises UserError where no
    candidate is left.
    """
    (window, target), given = plan.lengths, {one.label: one.given for one in plan.methods}
    rotations = {(c.scaling, c.length): c.rotation for c in plan.cells if c.rotation is not None}
    groups: dict[str, list[tuple[bool, tuple[int, int, str], str]]] = {}
    for name in given:
        near, far = (rotations.get((name, length)) for length in plan.lengths)
        if near is not None and far is not None:
            merit = depends_on_length(far, near, window), plainness(name), name
            groups.setdefault(far.fingerprint, []).append(merit)
    candidates, left_out = dict[str, list[str]](), dict[str, str]()
    for group in groups.values():
        name, *_ = same = [name for *_, name in sorted(group)]
        changes = {"scaling": (given[name],), "length": (str(target),)}
        if reason := _why_not(rotations[name, target], plan.spec.model_copy(update=changes), to):
            left_out[name] = reason
        else:
            candidates[name] = same
    if left_out:
        name, reason = next(iter(left_out.items()))
        if not candidates.keys() - {OWN}:
            usual = "a config", f"write --to {CODE}"
            what, instead = (f"--to {to}", "leave --to out") if to else usual
            raise UserError(
                f"{what} can express none of these methods; name others, or {instead}. "
                f"`{name}`: {reason}"
            )
        example = "For example, " * (len(left_out) > 1)
        log.info(f"Left out: {counted(len(left_out), 'methods')}. {example}`{name}`: {reason}")
    return candidates


def _why_not(rotation: Rotation, spec: Spec, to: str | None) -> str | None:
    """Return why the engine, or a config without one, cannot express a method."""
    if to is None:
        return f"only --to {CODE} expresses it" if rotation.needs_code else None
    try:
        export(spec, None if to == CODE else to)
    except UserError as error:
        return str(error)
    return None
