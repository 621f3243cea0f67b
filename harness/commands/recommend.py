"""``ropewalk recommend``: which method to use at a target length, by a race."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from ropewalk.harness.commands.run import measurer, open_loaded
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import check_name, load
from ropewalk.harness.sweep.spec import (
    EXECUTION,
    MEASURED,
    METHODS,
    MODEL,
    NO_FLAG,
    OUTPUT,
    TASKS,
    Lengths,
    Methods,
    Spec,
    folder,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.models.checkpoint import Checkpoint
    from ropewalk.harness.recommend.answer import Recommendation
    from ropewalk.harness.recommend.measuring import RaceData
    from ropewalk.harness.sweep.backend import Backend
    from ropewalk.harness.sweep.plan import Plan

log = logging.getLogger("ropewalk")


class Candidates(Spec):
    """The settings of a race."""

    scaling: Annotated[Methods, Parameter(group=METHODS, show_default=False)] = ("all",)
    """The candidates: NAME, NAME:option=value,… or your own .py file. [default: all that need no
    training, at the fixed factor of the target, and what the checkpoint ships]"""
    length: Annotated[Lengths, Parameter(group=MEASURED)] = ("4x",)
    """The target: 32k (32768) or 4x (of the trained window)."""
    task: Annotated[tuple[str, ...], NO_FLAG] = TASKS
    track: Annotated[tuple[str, ...], Field(exclude=True), NO_FLAG] = ()
    out: Annotated[
        Path | None,
        BeforeValidator(folder),
        Field(exclude=True),
        Parameter(group=OUTPUT, alias=("--output-path", "-o")),
    ] = None
    """The run folder. [default: results/recommend-MODEL]"""


@takes_settings
def recommend(
    model: Annotated[Any, Parameter(group=MODEL, alias="-m")],
    *,
    tokenizer: Annotated[Any, NO_FLAG] = None,
    to: str | None = None,
    tolerance: float = 1.0,
    margin: float = 1.0,
    budget: str | None = None,
    dry_run: Annotated[bool, Parameter(group=EXECUTION)] = False,
    spec: Annotated[Candidates, Parameter(name="*")] = Candidates(),
) -> Recommendation | None:
    """Recommend the method for a target length (--length, default 4x), by a race on your documents.

    Methods (--scaling, or all training-free ones) are measured on the same documents in
    rounds, and those that are significantly worse are measured no further. The answer is one
    method, with a bound on how much worse than the best it is. The same command continues a race.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file; reference is the embedded demo
            model. From Python also a loaded model, with its ``tokenizer``.
        to: The engine that will serve it (transformers, vllm, sglang, gguf, mlx, hf-code): only
            methods that it can express are candidates.
        tolerance: Percent of perplexity that a method may cost inside the window.
        margin: Percent of perplexity up to which a method is as good as the best.
        budget: The most that it may spend: 2h, 15min, a number of forwards at the target, or all.
            [default: a third of all forwards, and at least all methods on 6 documents]
        dry_run: Say what it may cost; read no weights, write nothing.
    """
    for flag, value, least in (
        ("tolerance", tolerance, "0 or more"),
        ("margin", margin, "above 0"),
    ):
        if not math.isfinite(value) or value < 0 or (flag == "margin" and not value):
            raise UserError(f"--{flag} {value:g} is invalid: it is a percentage, {least}.")
    if to is not None:
        check_name("engine", to.replace("-", "_"))  # before anything that takes long to import
    name, loaded = open_loaded(model, tokenizer, settings_of(spec))
    settings = {"length": "4x", **settings_of(spec), "model": name}
    if not (chosen := spec.scaling != ("all",)):
        settings.pop("scaling", None)
    sweep = parse(None, settings)
    return _race(sweep, tolerance, margin, budget, to, loaded, dry_run=dry_run, chosen=chosen)


def _race(
    spec: Spec,
    tolerance: float,
    margin: float,
    budget: str | None,
    to: str | None,
    loaded: Checkpoint | None,
    *,
    dry_run: bool,
    chosen: bool,
) -> Recommendation | None:
    """Plan a race and note what it may cost; run it and return the answer, unless ``dry_run``."""
    from ropewalk.harness.recommend.answer import Answer, so_far, write
    from ropewalk.harness.recommend.measuring import RaceData, read_budget
    from ropewalk.harness.recommend.race import Race
    from ropewalk.harness.reports.writing.sentences import counted
    from ropewalk.harness.sweep.measure import backend_for
    from ropewalk.harness.sweep.notes import note_plan
    from ropewalk.harness.sweep.record import records

    if to is not None:
        load("engine", to.replace("-", "_"))
    with backend_for(spec) as backend:
        plan, fixed = _race_plan(spec, backend, to, chosen=chosen, loaded=loaded)
        folder = spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
        note_plan(plan)
        if fixed:
            forms = ", ".join(f"`{name}` as `{form}`" for name, form in fixed.items())
            log.info(f"{to} keeps one factor for all lengths. Measured in this form: {forms}.")
        measure = measurer(folder, backend)
        data = RaceData(plan, folder, measure, backend.workers)
        candidates, servable = _candidates(data, to)
        race = Race(data, [*candidates], servable, tolerance / 100, margin / 100)
        data.budget = read_budget(None if budget is None else str(budget), race.default_budget())
        records(plan, folder)  # another run's folder is an error, in a dry run too
        ends, reached = ", ".join(map(str, race.rounds)), len(race.covered(race.rounds[0]))
        log.info(
            f"{counted(len(candidates), 'candidates')} at {data.target:,} tokens, in rounds of "
            f"{ends} documents. Measuring everything takes {race.grid():,.0f} forwards; the budget "
            f"is {data.budget.text(data.budget.most)}."
        )
        if reached < len(candidates):
            log.info(f"The first round has room for the first {reached} candidates.")
        if dry_run:
            return None
        standing = race.run(lambda standing: log.info(so_far(standing)))
        return write(Answer(race, standing, candidates, to))


def _race_plan(
    spec: Spec, backend: Backend, to: str | None, *, chosen: bool, loaded: Checkpoint | None
) -> tuple[Plan, dict[str, str]]:
    """Return the plan of everything that a race could measure: the window and the target.

    Also the form that the engine serves of each method whose factor follows the length.
    """
    from ropewalk.harness.patching.resolve import as_served
    from ropewalk.harness.recommend.measuring import OWN, default_candidates, tasks
    from ropewalk.harness.sweep.plan import make_plan, open_model
    from ropewalk.scaling import native

    checkpoint = loaded or open_model(spec, elsewhere=backend.device)
    trained = checkpoint.rope.trained_length
    target = spec.lengths(trained)
    if len(target) > 1 or target[0] <= trained:
        raise UserError(
            f"--length must be one length beyond the trained window ({trained:,} tokens), got "
            f"{' '.join(spec.length)}."
        )
    ships = native.ships(checkpoint.rope)
    named = spec.scaling if chosen else default_candidates(target[0] / trained, ships=ships)
    fixed = {}
    if to is not None:
        texts = [one for one in named if isinstance(one, str)]
        forms = {one: as_served(one, checkpoint.rope, target[0]) for one in texts}
        fixed = {one: form for one, form in forms.items() if form != one}
        named = tuple(dict.fromkeys(fixed.get(str(one), one) for one in named))
    requested = {
        "scaling": named if OWN in named else (OWN, *named),
        "length": (str(trained), str(target[0])),
        "task": tasks(trained, target[0]),
    }
    return make_plan(spec.model_copy(update=requested), checkpoint=checkpoint), fixed


def _candidates(data: RaceData, to: str | None) -> tuple[dict[str, list[str]], frozenset[str]]:
    """Return the candidates, each with the names that it coincides with, and the servable ones.

    Those that an engine can serve come first.
    """
    from ropewalk.harness.recommend.measuring import OWN, coinciding, unserved
    from ropewalk.harness.reports.writing.sentences import are, counted

    every = coinciding(data.plan, data.names)
    left_out = unserved(data.plan, every, to)
    servable = [name for name in every if name not in left_out]
    if left_out and not {*servable} - {OWN} and to:
        raise UserError(
            f"--to {to} can express none of these methods; name others, or leave --to out. "
            f"`{next(iter(left_out))}`: {next(iter(left_out.values()))}"
        )
    if to and left_out:
        name, reason = next(iter(left_out.items()))
        count = len(left_out)
        example = "" if count == 1 else "For example, "
        log.info(f"{counted(count, 'methods')} {are(count)} left out. {example}`{name}`: {reason}")
    names = servable if to else [*servable, *left_out]
    return {name: every[name] for name in names}, frozenset(servable)
