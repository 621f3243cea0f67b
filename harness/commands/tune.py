"""``ropewalk tune``: search a method's options, or free factors of its channels."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from ropewalk.harness.commands.run import DEMO, measurer
from ropewalk.harness.data.documents import Documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import load
from ropewalk.harness.sweep.spec import (
    CELLS,
    EXECUTION,
    MEASURED,
    METHODS,
    MODEL,
    NO_FLAG,
    OUTPUT,
    Entries,
    Lengths,
    Spec,
    folder,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    import pandas as pd

    from ropewalk.harness.recommend.space import Space
    from ropewalk.harness.recommend.tune import Row, Trial, Tuning
    from ropewalk.harness.sweep.backend import Backend

log = logging.getLogger("ropewalk")
AGAINST = ("pi", "ntk", "critical_ntk", "ntk_by_parts", "yarn", "mr_rope")
# Settings of the model and the documents, which the next command to type repeats.
REPEATED = (
    "docs", "adapter", "dtype", "device", "device_map", "compile", "attention", "max_memory",
    "allow_pickle",
)  # fmt: skip


class Search(Spec):
    """The settings of a search."""

    scaling: Annotated[tuple[str, ...], Parameter(group=METHODS)] = ("yarn",)
    """What is searched: a method (yarn), some options of one (yarn:beta_fast=8..64), or a factor
    for each channel (spline:knots=5, channels)."""
    task: Annotated[Entries, Parameter(group=MEASURED, alias=("--tasks", "-t"))] = ("perplexity",)
    """What is minimised: the loss of a task's targets (perplexity) or of its answers (passkey)."""
    length: Annotated[Lengths, Parameter(group=MEASURED)] = ("4x",)
    """The length in tokens: 4096, 4k or 4x (of the trained window)."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), Parameter(group=MEASURED)] = 0
    """Seed of the split, of the search and of the task."""
    track: Annotated[tuple[str, ...], Field(exclude=True), NO_FLAG] = ()
    out: Annotated[
        Path | None,
        BeforeValidator(folder),
        Field(exclude=True),
        Parameter(group=OUTPUT, alias=("--output-path", "-o")),
    ] = None
    """The run folder. [default: results/tune-MODEL]"""


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        method: the best method of the search, or the file that holds its factors.
        text: which method to use, and what the found one is worth on the held-out documents.
        table: one row per method, the best one of the search first.
        next: what to type next: to measure the in-window cost, and to serve the method to use.
        files: ``found.json``, which ``scaling`` reads, and the page.
    """

    method: str
    text: str
    table: pd.DataFrame
    next: tuple[str, ...]
    folder: Path
    files: tuple[Path, ...]

    def __str__(self) -> str:
        from ropewalk.harness.reports.writing.tables import as_text

        files = "\n".join(map(str, self.files))
        return "\n".join([self.text, "", as_text(self.table), "", files, *self.next])


@takes_settings
def tune(
    model: Annotated[str | None, Parameter(group=MODEL, alias="-m")] = None,
    *,
    against: tuple[str, ...] = AGAINST,
    trials: int = 60,
    dry_run: Annotated[bool, Parameter(group=EXECUTION)] = False,
    spec: Annotated[Search, Parameter(name="*")] = Search(),
) -> Tuned | None:
    """Search a method's options, or free factors of the channels, by CMA-ES at one length.

    A search that was interrupted goes on when it is called again.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file. [default: reference, the
            embedded demo model]
        against: Closed-form methods to compare.
        trials: How many points are tried.
        dry_run: Print what is searched and its cost; measure nothing.
    """
    closed = parse(None, {"scaling": against}).scaling if against else ()
    settings = {"scaling": "yarn", "task": "perplexity", "length": "4x", **settings_of(spec)}
    spec_ = parse(None, {**settings, "model": model}, names=False)
    if {len(spec_.scaling), len(spec_.task), len(spec_.length)} != {1}:
        raise UserError("tune searches one --scaling by one --task at one --length.")
    if not 1 <= trials <= CELLS:
        raise UserError(f"--trials {trials} is invalid: tune tries 1 to {CELLS:,} points.")
    if find_spec("cmaes") is None:
        raise UserError("tune needs the package cmaes: pip install 'ropewalk[tune]'.")
    if model is None:
        log.info(DEMO)
    from ropewalk.harness.recommend.tune import (
        best_of,
        compare,
        display,
        perplexity,
        summary,
        write,
    )
    from ropewalk.harness.reports.writing.sentences import counted
    from ropewalk.harness.sweep.measure import backend_for
    from ropewalk.harness.sweep.notes import note_plan
    from ropewalk.harness.sweep.record import records

    with backend_for(spec_) as backend:
        tuning, space = _set_up(spec_, closed, backend)
        records(tuning.plan, tuning.folder)  # another run's folder is an error, in a dry run too
        note_plan(tuning.plan)
        _note_search(tuning, space, trials)
        if dry_run:
            return None

        def note_best(done: Sequence[Trial]) -> None:
            best = min(done, key=lambda trial: trial.score)
            log.info(
                f"{len(done)} of {counted(trials, 'trials')}; best: "
                f"{perplexity(best.score)}, {best.method}"
            )

        best = best_of(tuning.run(space, trials, tuning.plan.spec.seed, note_best))
        table = compare(tuning, tuning.hold_out(best))
    text = summary(tuning, best, table, trials)
    files = write(tuning, best, table, trials, text)
    return Tuned(
        method=best.method,
        text=" ".join(text),
        table=display(table),
        next=tuple(_next(tuning, best.method, table, files[0])),
        folder=tuning.folder,
        files=files,
    )


def _set_up(spec: Spec, against: Sequence[Any], backend: Backend) -> tuple[Tuning, Space]:
    """Plan the closed-form methods, split the documents, and lay out what is searched."""
    from ropewalk.harness.recommend.space import closed_form, is_free, of_factors, of_options
    from ropewalk.harness.recommend.tune import Split, Tuning, kind_of
    from ropewalk.harness.sweep.plan import make_plan
    from ropewalk.scaling import yarn

    searched = str(spec.scaling[0])
    methods = [*against, *([] if is_free(searched) else [closed_form(searched)])]
    changes = {"scaling": tuple(dict.fromkeys(methods))}
    plan = make_plan(spec.model_copy(update=changes), elsewhere=backend.device)
    rope, (length,) = plan.checkpoint.rope, plan.lengths
    folder = spec.out or Path("results") / f"tune-{plan.checkpoint.label}"
    if is_free(searched):
        begin = yarn.frequencies(rope, length)
        space = of_factors(searched, rope, length, begin, folder / "factors")
    else:
        space = of_options(searched, rope, length)
    measure = measurer(folder, backend)
    return Tuning(plan, folder, length, kind_of(plan), Split.of(plan, spec.seed), measure), space


def _note_search(tuning: Tuning, space: Space, trials: int) -> None:
    """Say what is searched and how many tokens that takes, as estimated from the closed forms."""
    from ropewalk.harness.reports.writing.sentences import counted
    from ropewalk.harness.runs.store import measured
    from ropewalk.harness.sweep.memory import estimate

    plan, closed, split = tuning.plan, len(tuning.closed), tuning.split
    units = "trials" if tuning.kind == "answers" else "documents"
    everything = estimate(plan, set()).tokens / closed  # of one method, on all documents
    held = len(split.held) / (len(split.search) + len(split.held))
    each = sum(len(cell.questions) for cell in plan.cells) / closed
    begun = len(measured(tuning.samples.values())) / each
    times = max(0.0, trials * (1 - held) + held + closed - begun)
    log.info(
        f"Searching {space.text}. {counted(trials, 'trials')} and "
        f"{counted(closed, 'closed-form methods')} ({', '.join(tuning.closed)}) at "
        f"{tuning.length:,} tokens, by the loss of the {tuning.kind} of {plan.tasks[0].label}, on "
        f"{counted(len(split.search), units)}; {len(split.held)} held out. "
        f"{'Left' if begun else 'Cost'}: about {round(everything * times):,} tokens. "
        f"Run folder: {tuning.folder}."
    )


def _next(tuning: Tuning, method: str, table: Sequence[Row], path: Path) -> Iterator[str]:
    """Say how to measure the in-window cost of a method, and how to serve the one to use."""
    from ropewalk.harness.patching.resolve import as_served
    from ropewalk.harness.recommend.tune import to_use
    from ropewalk.harness.serve._export import express

    spec, task = tuning.plan.spec, tuning.plan.tasks[0]
    closed = {method.label: method.given for method in tuning.plan.methods}[table[1].scaling]
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    served = [as_served(str(given), rope, length) for given in (closed, method)]
    if served[1] == method:
        served[1] = str(path)
    words = [*spec.opened]
    for name in REPEATED:
        value = getattr(spec, name)
        if value != Spec.model_fields[name].default and not isinstance(value, dict | Documents):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    words += ["--scaling", *dict.fromkeys(["none", *served]), "--length", "1x", str(length)]
    # The search's own task, if the window holds it; else half of a short window is context.
    window, options = rope.trained_length, task.options
    fits = options.get("protocol") != "tail" or options.get("tail", 0) < window - 2
    tail = min(load("task", "perplexity").options["tail"], max(1, window // 2))
    own = task.module.METRIC == "perplexity" and fits
    words += ["--task", task.given if own else f"perplexity:tail={tail}"]
    yield f"Next, the in-window cost: ropewalk run --model {shlex.join(words)}"
    use = to_use(table)
    given = str(path if use is table[0] else closed)
    yield f"To serve {use.scaling}: {express(spec, given, length).text}"
