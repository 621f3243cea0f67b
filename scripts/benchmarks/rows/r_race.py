"""The forwards of ``ropewalk recommend`` against those of the full grid, on the embedded model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.setting import Row, Setting, row
from harness.api.run import machine_of, measurer
from harness.select.candidates import OWN, families, usual
from harness.select.measuring import Measured, tasks
from harness.select.race import FAR, Race, Rules, read_budget, rounds
from harness.sweep.plan import Plan, make_plan
from harness.sweep.spec import parse

SEEDS = 5  # orders of the documents


def measure(setting: Setting) -> list[Row]:
    """Measure everything once; races of several orders then ask for parts of it."""
    with TemporaryDirectory() as folder:
        return of_grid(setting, Path(folder))


def of_grid(setting: Setting, folder: Path) -> list[Row]:
    """Return the rows of a grid that lies in a folder, or is measured into it."""
    scaling = usual(4)[:4] if setting.quick else usual(4)
    asked = {"scaling": scaling, "length": ["1x", "4x"], "device": setting.device}
    plan = make_plan(parse(None, {**asked, "task": list(tasks(256, 1024))}))
    found = []
    for name, text in (("a third", None), ("all", "all")):
        races = [_race(plan, folder, seed, text) for seed in range(SEEDS)]
        ended = [race.run(lambda _: None) for race, _ in races]
        whole = races[0][1]
        count = len(whole.order)
        whole.ask((FAR, one, count) for one in ended[0].names)
        far = {one: float(whole.losses(FAR, one, count).mean()) for one in ended[0].names}
        for standing in ended:
            above = far[standing.recommended] - min(far.values())
            assert above <= standing.regret[standing.recommended], "the grid is beyond the bound"
        gained = [one.grid(race.names) / one.forwards for race, one in races[1:]]
        what = f"race of {len(far)} methods, {count} documents at 4x, budget {name}"
        bar = 3.0 if text is None and not setting.quick else None
        names = sorted({standing.recommended for standing in ended})
        remark = f"recommended: {', '.join(names)}; the grid is within each bound"
        title = f"{what}: forwards of the grid over its"
        found.append(row("r", title, gained, "x", bar, remark))
    return found


def _race(plan: Plan, folder: Path, seed: int, text: str | None) -> tuple[Race, Measured]:
    """Return a race in an order of the documents; what an earlier one measured is not again."""
    seeded = replace(plan, spec=plan.spec.model_copy(update={"seed": seed}))
    measure, machine = measurer(plan, folder), machine_of(plan, None)
    measured = Measured(seeded, folder, measure, read_budget("all", 0), machine)
    measured.plan = plan  # the run has one seed, which only orders the documents
    names = tuple(families(plan, measured.names))
    race = Race(measured, names, Rules(rounds(len(measured.order)), OWN, frozenset(names)))
    measured.budget = read_budget(text, race.usual(measured.grid(names)))
    return race, measured
