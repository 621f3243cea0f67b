"""The forwards of ``ropewalk recommend`` against those of the full grid, on the embedded model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.setting import Row, Setting, row
from harness.cli.models import measurer
from harness.recommend.budget import Budget, read_budget
from harness.recommend.candidates import usual
from harness.recommend.race import Rules, rounds
from harness.recommend.run import Race
from harness.sweep.parse import parse
from harness.sweep.plan import Plan, make_plan

SEEDS = 5  # orders of the documents


def measure(setting: Setting) -> list[Row]:
    """Measure everything once; races of several orders then ask for parts of it."""
    with TemporaryDirectory() as folder:
        return of_grid(setting, Path(folder))


def of_grid(setting: Setting, folder: Path) -> list[Row]:
    """Return the rows of a grid that lies in a folder, or is measured into it."""
    scaling = usual(4)[:4] if setting.quick else usual(4)
    asked = {"scaling": scaling, "task": "perplexity:tail=128", "length": ["1x", "4x"]}
    plan = make_plan(parse(None, {**asked, "device": setting.device}))
    measurer(plan, folder)(plan)
    found = []
    for name, text in (("a third", None), ("all", "all")):
        races = [_race(plan, folder, seed, text) for seed in range(SEEDS)]
        whole = _race(plan, folder, 0, "all")
        far = whole.losses(whole.alike, whole.target, len(whole.order))
        best = min(far, key=lambda method: float(far[method].mean()))
        leaders = [race.run(lambda *_: None).leader for race in races]
        assert set(leaders) == {best}, f"races name {leaders}, the grid {best}"
        gained = [race.grid / len(race.asked) for race in races]
        what = f"race of {len(whole.alike)} methods, 23 documents at 4x, budget {name}"
        bar = 3.0 if text is None and not setting.quick else None
        found.append(row("r", f"{what}: forwards of the grid over its", gained, "x", bar,
                         f"all name {best}"))  # fmt: skip
    return found


def _race(plan: Plan, folder: Path, seed: int, text: str | None) -> Race:
    """Return a race over measured samples; it asks for them as if it measured them."""
    seeded = replace(plan, spec=plan.spec.model_copy(update={"seed": seed}))
    documents = len(plan.cells[0].questions)
    race = Race(seeded, folder, Rules(rounds(documents)), Budget(), measurer(plan, folder))
    race.budget = read_budget(text, race.grid, documents)
    return race
