"""Choose a method for one length by racing candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.harness.api.observer import LOG, Observer
from ropewalk.harness.api.run import measurer, note_plan
from ropewalk.harness.api.settings import open_loaded, read_spec
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import Checkpoint
from ropewalk.harness.patching.resolve import as_served
from ropewalk.harness.plugins import load
from ropewalk.harness.recommend.answer import Answer, Recommendation, so_far, write
from ropewalk.harness.recommend.measuring import (
    OWN,
    RaceData,
    coinciding,
    default_candidates,
    read_budget,
    tasks,
    unserved,
)
from ropewalk.harness.recommend.race import Race
from ropewalk.harness.reports.writing.sentences import are, counted
from ropewalk.harness.sweep.backend import Backend
from ropewalk.harness.sweep.measure import backend_for
from ropewalk.harness.sweep.plan import Plan, make_plan, open_model
from ropewalk.harness.sweep.record import records
from ropewalk.harness.sweep.spec import Spec
from ropewalk.scaling import native

TARGET = "4x"


def recommend(
    model: Any = "reference",
    *,
    tokenizer: Any = None,
    to: str | None = None,
    tolerance: float = 1.0,
    margin: float = 1.0,
    budget: str | int | None = None,
    observer: Observer = LOG,
    **settings: Any,
) -> Recommendation:
    """Race the candidates for one length, or continue the race, and return the recommendation.

    ``model`` and ``tokenizer`` are those of ``run``; ``to`` is the engine that will serve the
    method. The settings are those of the command line (``ropewalk recommend --help``):
    ``scaling``, the candidates, ``length``, the target, ``docs``, ``out``, … Raises UserError
    before any weight is read.
    """
    name, loaded = open_loaded(model, tokenizer, settings)
    limit = None if budget is None else str(budget)
    given = {"model": name, **settings}
    result = race(given, tolerance, margin, limit, to=to, loaded=loaded, observer=observer)
    assert result is not None  # it is no dry run
    return result


def race(
    settings: Mapping[str, Any],
    tolerance: float,
    margin: float,
    budget: str | None,
    *,
    to: str | None = None,
    loaded: Checkpoint | None = None,
    observer: Observer = LOG,
    dry_run: bool = False,
) -> Recommendation | None:
    """Plan a race and note what it may cost; run it and return the answer, unless ``dry_run``."""
    spec = read_spec(settings, {"length": TARGET})
    for flag, value, least in (
        ("tolerance", tolerance, "0 or more"),
        ("margin", margin, "above 0"),
    ):
        if not math.isfinite(value) or value < 0 or (flag == "margin" and not value):
            raise UserError(f"--{flag} {value:g} is invalid: it is a percentage, {least}.")
    if to is not None:
        load("engine", to.replace("-", "_"))
    with backend_for(spec) as backend:
        with observer.status("Reading config, tokenizer and documents"):
            chosen = settings.get("scaling") is not None
            plan, fixed = _race_plan(spec, backend, to, chosen=chosen, loaded=loaded)
        folder = spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
        note_plan(plan, observer)
        if fixed:
            forms = ", ".join(f"`{one}` as `{form}`" for one, form in fixed.items())
            observer.note(f"{to} keeps one factor for all lengths. Measured in this form: {forms}.")
        measure = measurer(folder, observer, backend)
        data = RaceData(plan, folder, measure, backend.workers)
        candidates, servable = _candidates(data, to, observer)
        race = Race(data, [*candidates], servable, tolerance / 100, margin / 100)
        data.budget = read_budget(budget, race.default_budget())
        records(plan, folder)  # another run's folder is an error, in a dry run too
        ends, reached = ", ".join(map(str, race.rounds)), len(race.covered(race.rounds[0]))
        observer.note(
            f"{counted(len(candidates), 'candidates')} at {data.target:,} tokens, in rounds of "
            f"{ends} documents. Measuring everything takes {race.grid():,.0f} forwards; the budget "
            f"is {data.budget.text(data.budget.most)}."
        )
        if reached < len(candidates):
            observer.note(f"The first round has room for the first {reached} candidates.")
        if dry_run:
            return None
        standing = race.run(lambda standing: observer.note(so_far(standing)))
        return write(Answer(race, standing, candidates, to))


def _race_plan(
    spec: Spec, backend: Backend, to: str | None, *, chosen: bool, loaded: Checkpoint | None
) -> tuple[Plan, dict[str, str]]:
    """Return the plan of everything that a race could measure: the window and the target.

    Also the form that the engine serves of each method whose factor follows the length.
    """
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


def _candidates(
    data: RaceData, to: str | None, observer: Observer
) -> tuple[dict[str, list[str]], frozenset[str]]:
    """Return the candidates, each with the names that it coincides with, and the servable ones.

    Those that an engine can serve come first.
    """
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
        observer.note(
            f"{counted(count, 'methods')} {are(count)} left out. {example}`{name}`: {reason}"
        )
    names = servable if to else [*servable, *left_out]
    return {name: every[name] for name in names}, frozenset(servable)
