"""``ropewalk recommend``: which method to use at a target length, by a race."""

from __future__ import annotations

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

    from harness.cluster.workers import Cluster
    from harness.model.checkpoint import Checkpoint
    from harness.recommend.race import Standing
    from harness.recommend.run import Race
    from harness.recommend.write import Recommendation
    from harness.sweep.plan import Plan
    from harness.sweep.spec import Spec

TARGET = "4x"
HELPS = {
    "scaling": "The candidates: NAME, NAME:option=value,… or your own .py file; default: all that "
    "need no training, at the fixed factor of the target, and what the checkpoint ships.",
    "length": "The target: 32k (32768) or 4x (of the trained window); default: 4x.",
    "out": "The run folder; default: results/recommend-MODEL.",
}
MOST_TAIL = 2048  # tokens that are scored of a document; half a window where it is shorter


@partial(with_settings, helps=HELPS, without=("model", "task", "track"))
def recommend(
    model: Annotated[str | None, Parameter(help=MODEL)] = None,
    *,
    tolerance: Annotated[
        float, Parameter(help="Percent of perplexity that a method may cost inside the window.")
    ] = 1.0,
    margin: Annotated[
        float, Parameter(help="Percent of perplexity below which methods are alike: it ends then.")
    ] = 1.0,
    budget: Annotated[
        str | None,
        Parameter(
            help="What it may spend: 2h, 30min, a number of forwards, or all; default: a third of "
            "what measuring every method on every document takes. The first round is always "
            "measured."
        ),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Say what it may cost; read no weights, write nothing.")
    ] = False,
    **settings: Any,
) -> int:
    """Name the method for a target length (--length, default 4x), by a race on your documents.

    Methods (--scaling; default: all training-free ones) are measured on the same documents in
    rounds, and what is surely worse than the leader is dropped. The same command goes on.
    """
    found = answered({"model": model, **settings}, tolerance, margin, budget, dry_run=dry_run)
    return COMPLETE if found is None else _print(found)


def answered(
    settings: Mapping[str, Any], tolerance: float, margin: float, budget: str | None, *,
    loaded: Checkpoint | None = None, dry_run: bool = False,
) -> Recommendation | None:  # fmt: skip
    """Race, with progress on stderr, and return the written answer; None of a dry run."""
    spec = read_spec(settings, {"length": TARGET})
    if not (tolerance >= 0 and margin > 0):
        message = f"--tolerance must be 0 or more and --margin above 0, got {tolerance}, {margin}."
        raise UserError(message)
    from harness.cluster.connect import connected
    from harness.recommend.write import written

    with connected(spec, say) as ray:
        chosen = settings.get("scaling") is not None
        race = _race(spec, ray, tolerance, margin, budget, chosen=chosen, loaded=loaded)
        _before(race, ray)
        if dry_run:
            return None
        with keeping([race.folder]):
            return written(race, race.run(partial(_round, race)))


def _race(
    spec: Spec, ray: Cluster | None, tolerance: float, margin: float, budget: str | None, *,
    chosen: bool, loaded: Checkpoint | None,
) -> Race:  # fmt: skip
    """Return the race that is asked for; nothing is measured yet."""
    from harness.cli import show
    from harness.cli.models import measurer
    from harness.recommend.budget import Budget, read_budget
    from harness.recommend.race import Rules, rounds
    from harness.recommend.run import Race
    from harness.sweep.plan import open_model

    with err.status("Reading config, tokenizer and documents"):
        elsewhere = ray.device if ray else None
        plan = _plan(spec, loaded or open_model(spec, elsewhere=elsewhere), chosen=chosen)
    show.left_out(plan, err)
    folder = spec.out or Path("results") / f"recommend-{plan.checkpoint.label}"
    documents = len(plan.cells[0].questions)
    rules = Rules(rounds(documents), tolerance / 100, margin / 100)
    race = Race(plan, folder, rules, Budget(), measurer(plan, folder, ray))
    race.budget = read_budget(budget, race.grid, documents)
    return race


def _plan(spec: Spec, checkpoint: Checkpoint, *, chosen: bool) -> Plan:
    """Return the plan of everything that a race could measure: the window and the target."""
    from harness.recommend.candidates import OWN, usual
    from harness.sweep.plan import make_plan
    from scaling import native

    trained = checkpoint.rope.trained_length
    target = spec.lengths(trained)
    if len(target) > 1 or target[0] <= trained:
        message = (
            f"--length must be one length beyond the trained window ({trained:,} tokens), got "
            f"{' '.join(spec.length)}."
        )
        raise UserError(message)
    ships = native.ships(checkpoint.rope)
    named = spec.scaling if chosen else usual(target[0] / trained, ships=ships)
    scaling = named if OWN in named else (OWN, *named)
    asked = {
        "scaling": scaling,
        "length": (str(trained), str(target[0])),
        "task": (f"perplexity:tail={max(1, min(trained // 2, MOST_TAIL))}",),
    }
    return make_plan(spec.model_copy(update=asked), checkpoint=checkpoint)


def _before(race: Race, ray: Cluster | None) -> None:
    """Say what the race may cost, before the first sample."""
    from harness.cli.models import machine_of
    from harness.reports.writing.sentences import counted
    from harness.runs.store import measured
    from harness.sweep.measure import records
    from harness.sweep.pace import before, duration

    records(race.plan, race.folder)  # a folder of another run is refused, in a dry run too
    first = race.first()
    work = first.work(measured(race.samples))
    left = before(first, work, machine_of(first, ray)).seconds_left() if work else 0.0
    rounds, count = race.rules.rounds, len(race.alike)
    about = "" if left is None else f", about {duration(left)} here"
    forwards = counted(count * rounds[0], "forwards")
    say(
        f"{count} candidates at {race.target:,} tokens on {counted(rounds[-1], 'documents')}; the "
        f"first round is {rounds[0]} of them, {forwards}{about}. Budget: {race.budget}; measuring "
        f"everything takes {race.grid:,} forwards."
    )


def _round(race: Race, standing: Standing, forwards: int) -> None:
    """Say how the race stands after a round."""
    from harness.reports.writing.sentences import counted

    left = f"{len(standing.left)} of {standing.everyone} candidates left"
    say(
        f"After {counted(standing.documents, 'documents')}: {left}, lowest `{standing.leader}`; "
        f"{forwards:,} of {race.grid:,} forwards."
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
    screen.print(f"Next:  {found.next}", soft_wrap=True)
    return WITH_FAILURES if found.failures else COMPLETE
