"""``ropewalk recommend``: which method to use at a target length, by a race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ropewalk.harness.commands.run import open_loaded
from ropewalk.harness.errors import UserError
from ropewalk.harness.plugins import check_name
from ropewalk.harness.sweep.spec import (
    MEASURED,
    METHODS,
    MODEL,
    NO_FLAG,
    DryRun,
    Entries,
    Methods,
    OneModel,
    Out,
    parse,
    settings_of,
    takes_settings,
)

if TYPE_CHECKING:
    from ropewalk.harness.recommend.recommend import Recommendation


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
    settings = {**settings_of(spec), "length": spec.length, "model": name}
    if spec.scaling == ("all",):
        settings.pop("scaling", None)
    sweep = parse(None, settings)
    from ropewalk.harness.recommend.recommend import recommend as race
    from ropewalk.harness.serve._launch import backend_for

    if sweep.server:
        raise UserError("a server runs one scaling; with --engine each candidate has a server.")
    with backend_for(sweep) as backend:
        return race(
            sweep, backend, to=to or sweep.engine, tolerance=tolerance, margin=margin,
            budget=None if budget is None else str(budget), checkpoint=loaded, dry_run=dry_run,
        )  # fmt: skip
