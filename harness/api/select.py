"""Choose a method for one length: ``recommend`` races candidates, ``tune`` searches options."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.api.observer import LOG, Observer
from harness.api.run import keeping, machine_of, measurer, note_plan
from harness.api.settings import name_of, open_loaded, read_spec
from harness.backends.connect import connected
from harness.backends.workers import Cluster
from harness.data.documents import Documents
from harness.errors import UserError
from harness.methods.resolve import as_served, resolve
from harness.models.checkpoint import Checkpoint
from harness.plugins import load
from harness.reports.writing.sentences import are, counted
from harness.runs.store import measured
from harness.select import tune as searching
from harness.select.measuring import (
    OWN,
    RaceField,
    coinciding,
    default_candidates,
    tasks,
    unserved,
)
from harness.select.race import FAR, Budget, Race, Rules, read_budget, rounds
from harness.select.recommend import FinishedRace, Recommendation, so_far, write
from harness.select.space import Space, default_of, is_free, of_factors, of_options
from harness.select.tune import EVALUATOR, Split, Trial, Tuning, best_of, check_installed, kind_of
from harness.serve._export import serving_command
from harness.sweep.eta import initial_eta
from harness.sweep.measure import records
from harness.sweep.memory import estimate
from harness.sweep.plan import Plan, make_plan, open_model
from harness.sweep.spec import CELLS, Spec, methods_of
from scaling import native, yarn

TARGET = "4x"
AGAINST = ("pi", "ntk", "critical_ntk", "ntk_by_parts", "yarn", "mr_rope")
SEARCHED = {"scaling": "yarn", "task": "perplexity", "length": TARGET}
INSIDE = ("0.25x", "1x")  # lengths by which key tokens are found
# Settings of the model and the documents, which the next command to type repeats.
REPEATED = (
    "docs", "adapter", "dtype", "device", "device_map", "compile", "attention", "max_memory",
    "allow_pickle",
)  # fmt: skip


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
        measure, machine = measurer(plan, folder, observer, cluster), machine_of(plan, cluster)
        workers = cluster.count if cluster else 1
        field = RaceField(plan, folder, measure, Budget(), machine, workers)
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
    time = field.eta([(FAR, name, first) for name in race.names]).estimate()
    if len(race.names) < len(candidates):
        observer.note(
            f"The budget takes {len(race.names)} of {len(candidates)} candidates, the plainest and "
            "most used, or those named first."
        )
    observer.note(
        f"{counted(len(race.names), 'candidates')} at {field.target:,} tokens on up to "
        f"{counted(last, 'documents')}. The first round reads {first} of the documents in "
        f"{counted(len(race.names) * first, 'forwards')} (time {time}). Budget: {field.budget}. "
        f"Measuring everything takes {field.grid(candidates):,.0f} forwards."
    )


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        method: the best method of the search, or the file that holds its factors.
        text: what it is worth on the held-out documents.
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


def tune(
    model: str | Path | None = None,
    *,
    against: Sequence[str] = AGAINST,
    trials: int = 60,
    key_tokens: bool = False,
    observer: Observer = LOG,
    **settings: Any,
) -> Tuned:
    """Search a method's options, or free factors of the channels, by CMA-ES at one length.

    ``against`` are the closed-form methods to compare with; ``key_tokens`` searches by the tokens
    that a longer context makes clear. The settings are those of the command line (``ropewalk tune
    --help``): ``scaling``, what is searched, ``task``, ``length``, ``docs``, ``out``, … Raises
    UserError before any weight is read.
    """
    given = {"model": name_of(model), **settings}
    result = search(given, against, trials, key_tokens=key_tokens, observer=observer)
    assert result is not None  # it is no dry run
    return result


def search(
    settings: Mapping[str, Any],
    against: Sequence[str],
    trials: int,
    *,
    key_tokens: bool,
    observer: Observer = LOG,
    dry_run: bool = False,
) -> Tuned | None:
    """Plan a search and note what it may cost; run it and return its result, unless ``dry_run``."""
    spec = read_spec(settings, SEARCHED)
    if {len(spec.scaling), len(spec.task), len(spec.length)} != {1}:
        raise UserError("tune searches one --scaling by one --task at one --length.")
    if not 1 <= trials <= CELLS:
        raise UserError(f"--trials {trials} is invalid: tune tries 1 to {CELLS:,} points.")
    with connected(spec, observer.note) as cluster:
        tuning, space = _set_up(spec, against, cluster, observer, key_tokens=key_tokens)
        check_installed()
        records(tuning.plan, tuning.folder)  # another run's folder is an error, in a dry run too
        note_plan(tuning.plan, observer)
        _note_search(tuning, space, trials, machine_of(tuning.plan, cluster), observer)
        if dry_run:
            return None

        def note_best(done: Sequence[Trial]) -> None:
            best = min(done, key=lambda trial: trial.score)
            observer.note(
                f"{len(done)} of {counted(trials, 'trials')}; best: "
                f"{searching.perplexity(best.score)}, {best.method}"
            )

        with keeping([tuning.folder]):
            best = best_of(tuning.run(space, trials, tuning.plan.spec.seed, note_best))
            label = tuning.hold_out(best)
    table = searching.compare(tuning, label)
    text = searching.summary(tuning, best, table, trials)
    path = searching.write_found(tuning, best, table, trials)
    page = searching.write_page(tuning, table, text)
    return Tuned(
        method=best.method,
        text=" ".join(text),
        table=searching.display(tuning, table),
        next=tuple(_next(tuning, best.method, table, path)),
        folder=tuning.folder,
        files=(path, page),
    )


def _set_up(
    spec: Spec,
    against: Sequence[str],
    cluster: Cluster | None,
    observer: Observer,
    *,
    key_tokens: bool,
) -> tuple[Tuning, Space]:
    """Plan the closed-form methods, split the documents, and lay out what is searched."""
    searched = str(spec.scaling[0])
    methods = [
        *methods_of(against),
        *([EVALUATOR] if key_tokens else []),
    ]
    if not is_free(searched):
        methods.append(default_of(searched))
    lengths = (*spec.length, *(INSIDE if key_tokens else ()))
    requested = {"scaling": tuple(dict.fromkeys(methods)), "length": lengths}
    with observer.status("Reading config, tokenizer and documents"):
        elsewhere = cluster.device if cluster else None
        plan = make_plan(spec.model_copy(update=requested), elsewhere=elsewhere)
    rope = plan.checkpoint.rope
    (length,) = spec.lengths(rope.trained_length)
    folder = spec.out or Path("results") / f"tune-{plan.checkpoint.label}"
    if is_free(searched):
        begin = yarn.frequencies(rope, length)
        space = of_factors(searched, rope, length, begin, folder / "factors")
    else:
        space = of_options(searched, rope, length)
    kind, split = kind_of(plan, key_tokens=key_tokens), Split.of(plan, spec.seed)
    measure = measurer(plan, folder, observer, cluster)
    return Tuning(plan, folder, length, kind, split, measure), space


def _note_search(
    tuning: Tuning, space: Space, trials: int, machine: str, observer: Observer
) -> None:
    units = "trials" if tuning.kind == "answers" else "documents"
    count = counted(len(tuning.closed), "closed-form methods")
    tokens, time, begun = _cost(tuning, trials, machine)
    observer.note(f"Searching {space.text}.")
    observer.note(
        f"{counted(trials, 'trials')} and {count} ({', '.join(tuning.closed)}) at "
        f"{tuning.length:,} tokens, by the loss of the {tuning.kind} of "
        f"{tuning.plan.tasks[0].label}, on {counted(len(tuning.split.search), units)}; "
        f"{len(tuning.split.held)} held out."
    )
    observer.note(
        f"{'Left' if begun else 'Cost'}: about {tokens:,} tokens; time {time}. "
        f"Run folder: {tuning.folder}."
    )


def _cost(tuning: Tuning, trials: int, machine: str) -> tuple[int, str, bool]:
    """Return the tokens and the time left of a search, from those of the closed-form methods.

    Third comes whether a part of it is measured.
    """
    cells = tuple(cell for cell in tuning.plan.cells if cell.length == tuning.length)
    plan = replace(tuning.plan, cells=cells)
    work = plan.work(set())
    held = len(tuning.split.held) / (len(tuning.split.search) + len(tuning.split.held))
    times = trials * (1 - held) + held + len(tuning.closed)  # of all documents
    of_one = sum(len(cell.questions) for cell in cells) / len(cells)
    samples = tuning.samples
    done = sum(samples[key]["length"] == tuning.length for key in measured(samples))
    times = max(0.0, times - done / of_one)
    tokens = estimate(plan, set()).tokens / len(work) * times
    time = initial_eta(plan, work, machine).estimate(times / len(work))
    return round(tokens), time, done > 0


def _next(tuning: Tuning, method: str, table: Sequence[searching.Row], path: Path) -> Iterator[str]:
    """Say how to measure the in-window cost of a method, and how to serve the one to use."""
    spec = tuning.plan.spec
    closed = {method.label: method.given for method in tuning.plan.methods}[table[1].scaling]
    rope, length = tuning.plan.checkpoint.rope, tuning.length
    served = [as_served(str(given), rope, length) for given in (closed, method)]
    if served[1] == method:
        served[1] = str(path)
    words = [*spec.opened, *repeated(spec), "--scaling", *dict.fromkeys(["none", *served])]
    yield (
        f"Next, the in-window cost: ropewalk run --model {shlex.join(words)} --length 1x "
        f"{tuning.length} --task {shlex.quote(cost_task(tuning))}"
    )
    yield from searching.cost_notes(served, tuning)
    use = searching.to_use(table)
    given = str(path if use is table[0] else closed)
    rotation = resolve(load("method", given), rope, length)
    line = serving_command(spec, given, rotation, length)[1]
    yield f"To serve {use.scaling}: {line}"


def cost_task(tuning: Tuning) -> str:
    """Return the task that measures the in-window cost: the search's own, if the window holds it.

    Else perplexity with as many targets as leave half of a short window for the context.
    """
    task, window = tuning.plan.tasks[0], tuning.plan.checkpoint.rope.trained_length
    options = task.options
    fits = options.get("protocol") != "tail" or options.get("tail", 0) < window - 2  # begin tokens
    own = task.module.METRIC == "perplexity" and fits
    tail = min(load("task", "perplexity").options["tail"], max(1, window // 2))
    return task.given if own else f"perplexity:tail={tail}"


def repeated(spec: Spec) -> list[str]:
    """Return the flags that another run of the same model on the same documents has."""
    words = []
    for name in REPEATED:
        value = getattr(spec, name)
        if value != Spec.model_fields[name].default and not isinstance(value, dict | Documents):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words
