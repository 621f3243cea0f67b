"""``ropewalk recommend`` and ``ropewalk tune``: which method, or which options, at a length."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import Field

from ropewalk.harness.commands.run import open_loaded
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import check_name
from ropewalk.harness.sweep.spec import (
    CELLS,
    MEASURED,
    METHODS,
    MODEL,
    NO_FLAG,
    DryRun,
    Entries,
    Methods,
    Model,
    OneModel,
    Out,
    Whole,
    one_model,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.recommend.recommend import Recommendation
    from ropewalk.harness.recommend.tune import Tuned

AGAINST = ("pi", "ntk", "critical_ntk", "ntk_by_parts", "yarn", "mr_rope")


class Candidates(OneModel):
    """The settings of a race."""

    scaling: Annotated[Methods, Parameter(group=METHODS, show_default=False)] = ("all",)
    """The candidates: NAME, NAME:option=value,… or your own .py file. [default: all that need no
    training, at the fixed factor of the target, and what the checkpoint ships]"""
    task: Annotated[Entries, Parameter(group=MEASURED, alias=("--tasks", "-t"))] = ("perplexity",)
    """What decides: perplexity, or tasks that score shares, such as passkey, niah and
    ruler. Several tasks get one method."""
    out: Out = None
    """The run folder. [default: results/recommend-MODEL]"""


@takes_settings
def recommend(
    model: Annotated[Any, Parameter(group=MODEL, alias="-m")],
    *,
    tokenizer: Annotated[Any, NO_FLAG] = None,
    to: str | None = None,
    tolerance: float = 1.0,
    margin: float = 1.0,
    budget: str | None = None,
    dry_run: DryRun = False,
    spec: Annotated[Candidates, Parameter(name="*")] = Candidates(),
) -> Recommendation | None:
    """Recommend the method for a target length (--length, default 4x), by a race on your documents.

    Methods (--scaling, or all training-free ones) are measured on the same documents or trials in
    rounds, and those that are significantly worse are measured no further. The answer is one
    method for all tasks (--task, default perplexity), with a bound on how much worse than the best
    it is. The same command continues a race.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file; reference is the embedded demo
            model. From Python also a loaded model, with its ``tokenizer``.
        to: The engine that will serve it (transformers, vllm, sglang, gguf, mlx, hf-code): only
            methods that it can express are candidates. [default: those that need no modelling
            file]
        tolerance: Percent of perplexity, or percentage points, that a method may cost inside the
            window.
        margin: Percent of perplexity, or percentage points, up to which a method is as good as the
            best.
        budget: The most that it may spend: 2h, 15min, a number of forwards at the target, or all.
            [default: a third of all forwards, and at least all methods on 6 documents]
        dry_run: Say what it may cost; read no weights, write nothing.
    """
    if to is not None:
        check_name("engine", to.replace("-", "_"))  # before anything that takes long to import
    name, loaded = open_loaded(model, tokenizer, settings_of(spec))
    named = None if spec.scaling == ("all",) else spec.scaling
    sweep = one_model(spec, model=name, task=spec.task, length=spec.length, scaling=named)
    from ropewalk.harness.recommend.recommend import recommend as race
    from ropewalk.harness.serve._launch import backend_for

    if sweep.server:
        raise UserError("a server runs one scaling; with --engine each candidate has a server.")
    with backend_for(sweep) as backend:
        return race(
            sweep, backend, to=to or sweep.engine, tolerance=tolerance, margin=margin,
            budget=None if budget is None else str(budget), checkpoint=loaded, dry_run=dry_run,
        )  # fmt: skip


class Searched(OneModel):
    """The settings of a search."""

    scaling: Annotated[tuple[str, ...], Parameter(group=METHODS)] = ("yarn",)
    """What is searched: a method (yarn), some options of one (yarn:beta_fast=8..64), or a factor
    for each channel (spline:knots=5, channels)."""
    task: Annotated[Entries, Parameter(group=MEASURED, alias=("--tasks", "-t"))] = ("perplexity",)
    """What is minimised: the loss of a task's targets (perplexity) or of its answers (passkey)."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), Parameter(group=MEASURED)] = 0
    """Seed of the split, of the search and of the task."""
    out: Out = None
    """The run folder. [default: results/tune-MODEL]"""


@takes_settings
def tune(
    model: Model = "reference",
    *,
    against: tuple[str, ...] = AGAINST,
    trials: Whole = 60,
    dry_run: DryRun = False,
    spec: Annotated[Searched, Parameter(name="*")] = Searched(),
) -> Tuned | None:
    """Search a method's options, or free factors of the channels, by CMA-ES at one length.

    A search that was interrupted goes on when it is called again.

    Args:
        model: A folder, a hub name (NAME@REVISION) or a GGUF file; reference is the embedded demo
            model.
        against: Closed-form methods to compare.
        trials: How many points are tried.
        dry_run: Print what is searched and its cost; measure nothing.
    """
    closed = parse(None, {"scaling": against}).scaling if against else ()
    usual = {"scaling": spec.scaling, "task": spec.task, "length": spec.length}
    sweep = one_model(spec, model=model, **usual)
    if {len(sweep.scaling), len(sweep.task), len(sweep.length)} != {1}:
        raise UserError("tune searches one --scaling by one --task at one --length.")
    if not 1 <= trials <= CELLS:
        raise UserError(f"--trials {trials} is invalid: tune tries 1 to {CELLS:,} points.")
    if find_spec("cmaes") is None:
        raise UserError("tune needs the package cmaes: pip install 'ropewalk[tune]'.")
    from ropewalk.harness.recommend.tune import Search
    from ropewalk.harness.serve._launch import backend_for

    with backend_for(sweep) as backend:
        return Search(sweep, backend, closed).run(trials, dry_run=dry_run)
