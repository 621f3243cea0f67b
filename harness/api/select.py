"""Choose a method for one length by racing candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.api.observer import LOG, Observer
from harness.api.run import keeping, measurer, note_plan
from harness.api.settings import open_loaded, read_spec
from harness.backends.connect import connected
from harness.backends.workers import Cluster
from harness.errors import UserError
from harness.methods.resolve import as_served
from harness.models.checkpoint import Checkpoint
from harness.plugins import load
from harness.reports.writing.sentences import are, counted
from harness.select.measuring import (
    OWN,
    RaceField,
    coinciding,
    default_candidates,
    tasks,
    unserved,
)
from harness.select.race import Budget, Race, Rules, read_budget, rounds
from harness.select.recommend import FinishedRace, Recommendation, so_far, write
from harness.sweep.measure import records
from harness.sweep.plan import Plan, make_plan, open_model
from harness.sweep.spec import Spec
from scaling import native

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
    with connected(spec, observer.note) as cluster:
        with observer.status("Reading config, tokenizer and documents"):
            chosen = settings.get("scaling") is not None
            plan, fixed = _race_plan(spec, cluster, to, chosen=chosen, loaded=loaded)
        folder = spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
        note_plan(plan, observer)
        if fixed:
            forms = ", ".join(f"`{one}` as `{form}`" for one, form in fixed.items())
            observer.note(f"{to} keeps one factor for all lengths. Measured in this form: {forms}.")
        measure = measurer(plan, folder, observer, cluster)
        workers = cluster.count if cluster else 1
        field = RaceField(plan, folder, measure, Budget(), workers)
        race, candidates = _candidates(field, to, tolerance / 100, margin / 100, observer)
        field.budget = read_budget(budget, race.default_budget(field.grid(candidates)))
        records(plan, folder)  # another run's folder is an error, in a dry run too
        _note_cost(race, field, candidates, observer)
        if dry_run:
            return None
        with keeping([folder]):
            standing = race.run(lambda standing: observer.note(so_far(standing)))
            return write(FinishedRace(race, field, standing, candidates, to))


def _race_plan(
    spec: Spec, cluster: Cluster | None, to: str | None, *, chosen: bool, loaded: Checkpoint | None
) -> tuple[Plan, dict[str, str]]:
    """Return the plan of everything that a race could measure: the window and the target.

    Also the form that the engine serves of each method whose factor follows the length.
    """
    checkpoint = loaded or open_model(spec, elsewhere=cluster.device if cluster else None)
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
    field: RaceField, to: str | None, tolerance: float, margin: float, observer: Observer
) -> tuple[Race, dict[str, list[str]]]:
    """Return a race and its candidates, each with the names that it coincides with."""
    every = coinciding(field.plan, field.names)
    left_out = unserved(field.plan, every, to)
    names = {name: same for name, same in every.items() if to is None or name not in left_out}
    if left_out and not names.keys() - {OWN}:
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
    servable = frozenset(name for name in names if name not in left_out)
    rules = Rules(rounds(len(field.order)), OWN, servable, tolerance, margin)
    return Race(field, tuple(names), rules), names


def _note_cost(
    race: Race, field: RaceField, candidates: Mapping[str, Any], observer: Observer
) -> None:
    race.fit_budget()
    first, last = race.rules.rounds[0], race.rules.rounds[-1]
    if len(race.names) < len(candidates):
        observer.note(
            f"The budget takes {len(race.names)} of {len(candidates)} candidates, the plainest and "
            "most used, or those named first."
        )
    observer.note(
        f"{counted(len(race.names), 'candidates')} at {field.target:,} tokens on up to "
        f"{counted(last, 'documents')}. The first round reads {first} of the documents in "
        f"{counted(len(race.names) * first, 'forwards')}. Budget: {field.budget}. "
        f"Measuring everything takes {field.grid(candidates):,.0f} forwards."
    )
