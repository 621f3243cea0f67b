"""Plans of many samples: how the time grows of all that comes before the weights are read."""

from __future__ import annotations

from typing import Any

from benchmarks.setting import Row, Setting, ratios, row
from harness.models.config import REFERENCE
from harness.plugins import names
from harness.sweep import eta
from harness.sweep.eta import ETA
from harness.sweep.memory import estimate
from harness.sweep.plan import make_plan
from harness.sweep.spec import parse

TRIALS = (4, 40)
LENGTHS = [str(256 * windows) for windows in range(1, 13)]
ASKING = ("layerwise", "longrope")  # of parameters that a model does not ship


def measure(setting: Setting) -> list[Row]:
    """Every method at twelve lengths: questions, the time they take and the memory, as dry-run."""
    counts = [max(1, setting.size(8 * trials) // 8) for trials in TRIALS]
    samples: list[int] = []

    def planned(trials: int) -> None:
        eta.tree_of.cache_clear()
        plan = make_plan(parse(None, asked(trials)))
        ETA(plan, plan.work(set()), {})
        samples[:] = [estimate(plan, set()).samples]

    planned(1)  # the first of a process imports
    small, large = setting.interleaved(*(lambda count=count: planned(count) for count in counts))
    grown = [ratio * counts[0] / counts[1] for ratio in ratios(large, small)]
    share = f"{counts[0]} / {counts[1]}"
    what = f"plan of {samples[0]:,} samples: time a sample over that of {share} of them"
    return [row("s", what, grown, "x", 1.25, above=False)]


def asked(trials: int) -> dict[str, Any]:
    """Return a sweep of pass keys, so many trials at each of five depths."""
    return {
        "model": str(REFERENCE),
        "docs": "embedded",
        "scaling": [name for name in names("method") if name not in ASKING],
        "task": f"passkey:depths=5,trials={trials}",
        "length": LENGTHS,
    }
