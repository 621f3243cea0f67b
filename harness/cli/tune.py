"""``ropewalk tune``: search a method's options, or free factors of its channels."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from harness.backends.connect import connected
from harness.backends.workers import Cluster
from harness.cli import show
from harness.cli.console import COMPLETE, Many, err, keeping, say, screen
from harness.cli.models import machine_of, measurer
from harness.cli.one_model import read_spec
from harness.cli.settings import MODEL, with_settings
from harness.cli.tables import grids
from harness.errors import UserError
from harness.methods.resolve import resolve
from harness.plugins import load
from harness.reports.writing.sentences import counted
from harness.runs.schema import checked_samples
from harness.runs.store import measured
from harness.select import tune as telling
from harness.select.space import Space, default_of, is_free, of_factors, of_options
from harness.select.tune import (
    EVALUATOR,
    Split,
    Trial,
    Tuning,
    best_of,
    check_installed,
    kind_of,
    perplexity,
)
from harness.serve._line import serving
from harness.sweep.bounds import CELLS
from harness.sweep.eta import before
from harness.sweep.measure import records
from harness.sweep.memory import estimate
from harness.sweep.plan import make_plan
from harness.sweep.spec import Spec
from scaling import yarn

AGAINST = ("pi", "ntk", "critical_ntk", "ntk_by_parts", "yarn", "mr_rope")
DEFAULTS = {"scaling": "yarn", "task": "perplexity", "length": "4x"}
INSIDE = ("0.25x", "1x")  # lengths by which key tokens are found
# Settings of the model and the documents, as a line to type next has them too.
KEPT = ("docs", "adapter", "dtype", "device", "device_map", "max_memory", "allow_pickle")


HELPS = {
    "scaling": "What is searched: a method (yarn), some options of one (yarn:beta_fast=8..64), or "
    "a factor for each channel (spline:knots=5, channels); default: yarn.",
    "task": "What it is searched by: the loss of a task's targets (perplexity, the default) or of "
    "its answers (passkey).",
    "length": "The length in tokens: 4096, 4k or 4x (of the trained window); default: 4x.",
    "out": "The run folder; default: results/tune-MODEL.",
    "seed": "Seed of the split, of the search and of the task.",
}


@partial(with_settings, helps=HELPS, without=("model", "track"))
def tune(
    model: Annotated[str | None, Parameter(help=MODEL)] = None,
    *,
    against: Annotated[
        Many, Parameter(help=f"Closed-form methods to compare; default: {' '.join(AGAINST)}.")
    ] = None,
    trials: Annotated[int, Parameter(help="How many points are tried.")] = 60,
    key_tokens: Annotated[
        bool, Parameter(negative="", help="Search by the tokens that a longer context makes clear.")
    ] = False,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Print what is searched and its cost; measure nothing.")
    ] = False,
    **settings: Any,
) -> int:
    """Search a method's options, or free factors of the channels."""
    spec = read_spec({"model": model, **settings}, DEFAULTS)
    if {len(spec.scaling), len(spec.task), len(spec.length)} != {1}:
        raise UserError("tune searches one --scaling by one --task at one --length.")
    if not 1 <= trials <= CELLS:
        raise UserError(f"--trials {trials} is invalid: tune tries 1 to {CELLS:,} points.")
    with connected(spec, say) as ray:
        tuning, space = _set_up(spec, against or AGAINST, ray, key_tokens=key_tokens)
        check_installed()
        _announce(tuning, space, trials, machine_of(tuning.plan, ray))
        if dry_run:
            return COMPLETE
        with keeping([tuning.folder]):
            found, label = _searched(tuning, space, trials)
    table = telling.rows(tuning, label)
    told = telling.words(tuning, found, table, trials)
    path = telling.write(tuning, found, table, trials)
    _conclude(tuning, found.method, table, told, path)
    return COMPLETE


def _set_up(
    spec: Spec, against: Sequence[str], ray: Cluster | None, *, key_tokens: bool
) -> tuple[Tuning, Space]:
    """Plan the closed-form methods, split the documents, and lay out what is searched."""
    searched = str(spec.scaling[0])
    methods = [*against, *([EVALUATOR] if key_tokens else [])]
    if not is_free(searched):
        methods.append(default_of(searched))
    lengths = (*spec.length, *(INSIDE if key_tokens else ()))
    asked = {"scaling": tuple(dict.fromkeys(methods)), "length": lengths}
    with err.status("Reading config, tokenizer and documents"):
        plan = make_plan(spec.model_copy(update=asked), elsewhere=ray.device if ray else None)
    rope = plan.checkpoint.rope
    (length,) = spec.lengths(rope.trained_length)
    folder = spec.out or Path("results") / f"tune-{plan.checkpoint.label}"
    if is_free(searched):
        begin = yarn.frequencies(rope, length)
        space = of_factors(searched, rope, length, begin, folder / "factors")
    else:
        space = of_options(searched, rope, length)
    kind, split = kind_of(plan, key_tokens=key_tokens), Split.of(plan, spec.seed)
    return Tuning(plan, folder, length, kind, split, measurer(plan, folder, ray)), space


def _announce(tuning: Tuning, space: Space, trials: int, machine: str) -> None:
    """Say what is searched, by what, on which documents, and what it will cost."""
    plan, split = tuning.plan, tuning.split
    records(plan, tuning.folder)  # a folder of another run is refused, in a dry run too
    show.left_out(plan, err)
    units = "trials" if tuning.kind == "answers" else "documents"
    count = counted(len(tuning.closed), "closed-form methods")
    closed = f"{count} ({', '.join(tuning.closed)})"
    tokens, time, begun = _cost(tuning, trials, machine)
    for sentence in (
        f"Searching {space.told}.",
        f"{counted(trials, 'trials')} and {closed} at {tuning.length:,} tokens, by the loss of the "
        f"{tuning.kind} of {plan.tasks[0].label}, on {counted(len(split.search), units)}; "
        f"{len(split.held)} held out.",
        f"{'Left' if begun else 'Cost'}: about {tokens:,} tokens; time {time}. "
        f"Run folder: {tuning.folder}.",
    ):
        err.print(sentence, soft_wrap=True)


def _cost(tuning: Tuning, trials: int, machine: str) -> tuple[int, str, bool]:
    """Return the tokens and the time left of a search, from those of the closed forms.

    Third comes whether a part of it is measured.
    """
    cells = tuple(cell for cell in tuning.plan.cells if cell.length == tuning.length)
    plan = replace(tuning.plan, cells=cells)
    work = plan.work(set())
    held = len(tuning.split.held) / (len(tuning.split.search) + len(tuning.split.held))
    times = trials * (1 - held) + held + len(tuning.closed)  # of all documents
    of_one = sum(len(cell.questions) for cell in cells) / len(cells)
    samples = checked_samples(tuning.folder)
    done = sum(samples[key]["length"] == tuning.length for key in measured(samples))
    times = max(0.0, times - done / of_one)
    tokens = estimate(plan, set()).tokens / len(work) * times
    time = before(plan, work, machine).estimate(times / len(work))
    return round(tokens), time, done > 0


def _searched(tuning: Tuning, space: Space, trials: int) -> tuple[Trial, str]:
    """Search, then measure the best trial on what was held out; return it and its label."""
    found = best_of(tuning.run(space, trials, tuning.plan.spec.seed, partial(_told, trials)))
    return found, tuning.hold_out(found)


def _told(trials: int, done: Sequence[Trial]) -> None:
    """Say after a generation which of so many trials is the best so far."""
    best = min(done, key=lambda trial: trial.score)
    say(
        f"{len(done)} of {counted(trials, 'trials')}; best: {perplexity(best.score)}, {best.method}"
    )


def _conclude(
    tuning: Tuning, method: str, table: Sequence[telling.Row], told: Sequence[str], path: Path
) -> None:
    """Print the sentences, the table, the files and what to do next."""
    screen.print(" ".join(told), soft_wrap=True)
    screen.print()
    for part in grids(telling.shown(tuning, table), screen.width):
        screen.print(part)
    screen.print(f"Files: {path} {telling.report(tuning, table, told)}", soft_wrap=True)
    spec = tuning.plan.spec
    best = {method.label: method.given for method in tuning.plan.methods}[table[1].scaling]
    better = str(path if table[0].held < table[1].held else best)
    found = resolve(load("method", better), tuning.plan.checkpoint.rope, tuning.length)
    priced = [telling.served(str(given), tuning) for given in (best, method)]
    if priced[1] == method:
        priced[1] = str(path)
    words = [*spec.opened, *_kept(spec), "--scaling", *dict.fromkeys(["none", *priced])]
    for line in (
        f"Next, the price inside the window: ropewalk run --model {shlex.join(words)} --length 1x "
        f"{tuning.length} --task {shlex.quote(_priced_by(tuning))}",
        *telling.unpriced(priced, tuning),
        "To serve what was better held out: " + serving(spec, better, found, tuning.length)[1],
    ):
        screen.print(line, soft_wrap=True)


def _priced_by(tuning: Tuning) -> str:
    """Return the task that measures the price: the search's own perplexity, if the window holds it.

    Else the usual one, with as many targets as leave half of a short window for the context.
    """
    task, window = tuning.plan.tasks[0], tuning.plan.checkpoint.rope.trained_length
    asked = task.options
    fits = asked.get("protocol") != "tail" or asked.get("tail", 0) < window - 2  # with begin tokens
    own = task.module.METRIC == "perplexity" and fits
    usual = min(load("task", "perplexity").options["tail"], max(1, window // 2))
    return task.given if own else f"perplexity:tail={usual}"


def _kept(spec: Spec) -> list[str]:
    """Return the flags that another run of the same model on the same documents has."""
    words = []
    for name in KEPT:
        value = getattr(spec, name)
        if value != Spec.model_fields[name].default and not isinstance(value, dict):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words
