"""``ropewalk recommend``: which method to use at a target length, by a race."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from harness.cli.console import COMPLETE, WITH_FAILURES, err, keeping, say, screen
from harness.cli.one_model import read_spec
from harness.cli.settings import MODEL, with_settings
from harness.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.backends.workers import Cluster
    from harness.models.checkpoint import Checkpoint
    from harness.select.measuring import Measured
    from harness.select.race import Race
    from harness.select.recommend import Recommendation
    from harness.sweep.plan import Plan
    from harness.sweep.spec import Spec

TARGET = "4x"
HELPS = {
    "scaling": "The candidates: NAME, NAME:option=value,… or your own .py file; default: all that "
    "need no training, at the fixed factor of the target, and what the checkpoint ships.",
    "length": "The target: 32k (32768) or 4x (of the trained window); default: 4x.",
    "out": "The run folder; default: results/recommend-MODEL.",
}


@partial(with_settings, helps=HELPS, without=("model", "task", "track"))
def recommend(
    model: Annotated[str | None, Parameter(help=MODEL)] = None,
    *,
    to: Annotated[
        str | None,
        Parameter(
            help="The engine that will serve it (transformers, vllm, sglang, gguf, mlx, hf-code): "
            "only methods that it can express are candidates."
        ),
    ] = None,
    tolerance: Annotated[
        float, Parameter(help="Percent of perplexity that a method may cost inside the window.")
    ] = 1.0,
    margin: Annotated[
        float,
        Parameter(help="Percent of perplexity up to which a method is as good as the best."),
    ] = 1.0,
    budget: Annotated[
        str | None,
        Parameter(
            help="The most that it may spend: 2h, 15min, a number of forwards at the target, or "
            "all; default: a third of what measuring every method on every document takes, or all "
            "methods on 6 documents where that is more."
        ),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Say what it may cost; read no weights, write nothing.")
    ] = False,
    **settings: Any,
) -> int:
    """Recommend the method for a target length (--length, default 4x), by a race on your documents.

    Methods (--scaling; default: all training-free ones) are measured on the same documents in
    rounds, and those that are significantly worse are measured no further. The answer is one
    method, with a bound of how much worse than the best it can be. The same command continues.
    """
    found = answered(
        {"model": model, **settings}, tolerance, margin, budget, to=to, dry_run=dry_run
    )
    return COMPLETE if found is None else _print(found)


def answered(
    settings: Mapping[str, Any], tolerance: float, margin: float, budget: str | None, *,
    to: str | None = None, loaded: Checkpoint | None = None, dry_run: bool = False,
) -> Recommendation | None:  # fmt: skip
    """Race, with progress on stderr, and return the written answer; None of a dry run."""
    spec = read_spec(settings, {"length": TARGET})
    for flag, value, least in (
        ("tolerance", tolerance, "0 or more"),
        ("margin", margin, "above 0"),
    ):
        if not math.isfinite(value) or value < 0 or (flag == "margin" and not value):
            raise UserError(f"--{flag} {value:g} is invalid: it is a percentage, {least}.")
    from harness.backends.connect import connected
    from harness.plugins import load
    from harness.select.recommend import Ended, so_far, written

    if to is not None:
        load("engine", to.replace("-", "_"))
    with connected(spec, say) as ray:
        chosen = settings.get("scaling") is not None
        with err.status("Reading config, tokenizer and documents"):
            plan = _plan(spec, ray, chosen=chosen, loaded=loaded)
        race, measured, families, left_out = _race(plan, ray, to, tolerance, margin, budget)
        _before(race, measured, families, left_out)
        if dry_run:
            return None
        with keeping([measured.folder]):
            standing = race.run(lambda standing: say(so_far(standing)))
            return written(Ended(race, measured, standing, families, to))


def _plan(spec: Spec, ray: Cluster | None, *, chosen: bool, loaded: Checkpoint | None) -> Plan:
    """Return the plan of everything that a race could measure: the window and the target."""
    from harness.select.candidates import OWN, usual
    from harness.select.measuring import tasks
    from harness.sweep.plan import make_plan, open_model
    from scaling import native

    checkpoint = loaded or open_model(spec, elsewhere=ray.device if ray else None)
    trained = checkpoint.rope.trained_length
    target = spec.lengths(trained)
    if len(target) > 1 or target[0] <= trained:
        raise UserError(
            f"--length must be one length beyond the trained window ({trained:,} tokens), got "
            f"{' '.join(spec.length)}."
        )
    ships = native.ships(checkpoint.rope)
    named = spec.scaling if chosen else usual(target[0] / trained, ships=ships)
    requested = {
        "scaling": named if OWN in named else (OWN, *named),
        "length": (str(trained), str(target[0])),
        "task": tasks(trained, target[0]),
    }
    return make_plan(spec.model_copy(update=requested), checkpoint=checkpoint)


def _race(
    plan: Plan, ray: Cluster | None, to: str | None, tolerance: float, margin: float,
    budget: str | None,
) -> tuple[Race, Measured, dict[str, list[str]], dict[str, str]]:  # fmt: skip
    """Return the race that is asked for, its candidates, and those that the engine cannot express.

    Nothing is measured yet.
    """
    from harness.cli import show
    from harness.cli.models import machine_of, measurer
    from harness.select.candidates import OWN, families, unserved
    from harness.select.measuring import Measured
    from harness.select.race import Budget, Race, Rules, read_budget, rounds

    show.left_out(plan, err)
    folder = plan.spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
    workers = ray.count if ray else 1
    measure, machine = measurer(plan, folder, ray), machine_of(plan, ray)
    measured = Measured(plan, folder, measure, Budget(), machine, workers)
    every = families(plan, measured.names)
    coded = unserved(plan, every, to)
    names = {name: same for name, same in every.items() if to is None or name not in coded}
    if not names:
        raise UserError(
            f"--to {to} can express none of the candidates; leave it out, or name others."
        )
    servable = frozenset(name for name in names if name not in coded)
    rules = Rules(rounds(len(measured.order)), OWN, servable, tolerance / 100, margin / 100)
    race = Race(measured, tuple(names), rules)
    measured.budget = read_budget(budget, race.usual(measured.grid(names)))
    return race, measured, names, coded if to else {}


def _before(
    race: Race, measured: Measured, families: Mapping[str, Any], left_out: Mapping[str, str]
) -> None:
    """Say what the race may cost, before the first sample."""
    from harness.reports.writing.sentences import are, counted
    from harness.select.race import FAR
    from harness.sweep.measure import records

    records(measured.plan, measured.folder)  # a folder of another run is refused, in a dry run too
    if left_out:
        name, reason = next(iter(left_out.items()))
        count = len(left_out)
        say(f"{counted(count, 'methods')} {are(count)} left out, as `{name}`: {reason}")
    race.fit()
    first, last = race.rules.rounds[0], race.rules.rounds[-1]
    time = measured.pace([(FAR, name, first) for name in race.names]).estimate()
    if len(race.names) < len(families):
        taken = f"{len(race.names)} of {len(families)} candidates"
        say(f"The budget takes {taken}, the plainest and most used, or those named first.")
    say(
        f"{counted(len(race.names), 'candidates')} at {measured.target:,} tokens on up to "
        f"{counted(last, 'documents')}; the first round is {first} of them, "
        f"{counted(len(race.names) * first, 'forwards')} (time {time}). Budget: "
        f"{measured.budget}; "
        f"measuring everything takes {measured.grid(families):,.0f} forwards."
    )


def _print(found: Recommendation) -> int:
    """Print the paragraph, the table, the files and the next line to type."""
    from harness.cli.tables import grids, print_words

    print_words({"recommend": [found.text]}, screen)
    screen.print()
    for part in grids(found.shown, screen.width):
        screen.print(part)
    if found.note:
        screen.print(found.note, soft_wrap=True)
    for name, reason in found.failures.items():
        screen.print(f"No number of {name}: {reason}", soft_wrap=True)
    screen.print(f"\nTable and figure: {found.files[0].with_suffix('')}.*")
    if found.next:
        screen.print(f"Next:  {found.next}", soft_wrap=True)
    return WITH_FAILURES if found.failures else COMPLETE
