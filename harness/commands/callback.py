"""Measure how far a model reads while transformers' Trainer fine-tunes it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from ropewalk.harness.commands.run import Run, measured, open_loaded, planned
from ropewalk.harness.errors import UserError
from ropewalk.harness.reports._trackers import series
from ropewalk.harness.stats.cells import cell_scores
from ropewalk.harness.sweep.spec import parse_all

log = logging.getLogger("ropewalk")


class Callback(TrainerCallback):  # type: ignore[misc]
    """A callback for ``transformers.Trainer`` that measures the model every so many steps.

    Each measurement is a run folder, ``OUT/checkpoint-STEP``, equal to what ``rw.run`` measures of
    the checkpoint saved at that step. The scores go to the trainer's own loggers as
    ``eval_TASK/METHOD/LENGTH``. Training is not disturbed: its random numbers stay the same. A
    mistake in the settings raises UserError before the first step; a measurement that fails later
    is a warning, and training goes on.

    Args:
        docs: documents, as ``rw.run`` takes them.
        scaling: names, files or functions of methods.
        lengths: tokens, as ``512``, ``4k`` or ``2x`` (of the trained window).
        every: steps between measurements; the last step is measured too.
        task: names or files of tasks.
        tokenizer: default: the trainer's ``processing_class``.
        out: folder of the runs; default: ``ropewalk`` in the trainer's output folder.
        settings: further settings of ``rw.run``: ``seed``, ``max_memory``, ``trained_length``, …

    Attributes:
        runs: the measurements by step.
    """

    def __init__(
        self,
        docs: Any = "embedded",
        scaling: str | Sequence[str | Callable[..., Any]] = "none",
        lengths: str | Sequence[str] = ("1x", "2x", "4x"),
        *,
        every: int = 500,
        task: str | Sequence[str] = "perplexity",
        tokenizer: Any = None,
        out: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if every < 1:
            raise UserError(f"every={every} is invalid: measure every 1 or more steps.")
        self.every, self.tokenizer = every, tokenizer
        self.out = None if out is None else Path(out)
        self.settings = {
            "docs": docs, "scaling": scaling, "length": lengths, "task": task, **settings
        }  # fmt: skip
        self.runs: dict[int, Run] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Check the settings; raise UserError before the first step."""
        if not state.is_world_process_zero:
            return
        if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
            raise UserError(
                "rw.Callback measures a model that each process holds whole, not one sharded by "
                "FSDP or DeepSpeed; measure its saved checkpoints with rw.run."
            )
        _loggers()
        out = self._out(args)
        if state.global_step == 0 and out.is_dir() and any(out.iterdir()):
            raise UserError(
                f"{out} holds runs of an earlier training; give rw.Callback another out."
            )
        with _evaluated(given["model"]), self._planned(args, state, given):
            pass

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the model after every so many steps."""
        if state.is_world_process_zero and state.global_step % self.every == 0:
            self._measure(args, state, control, given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the model after the last step."""
        if state.is_world_process_zero and state.global_step not in self.runs:
            self._measure(args, state, control, given)

    def _measure(self, args: Any, state: Any, control: Any, given: dict[str, Any]) -> None:
        try:
            with _evaluated(given["model"]), self._planned(args, state, given) as (pairs, backend):
                run = self.runs[state.global_step] = measured(pairs, backend)
        except UserError as error:
            log.warning(f"step {state.global_step} is not measured: {error}")
            return
        logs = _scores(run)
        if state.epoch is not None:
            logs["epoch"] = state.epoch
        state.log_history.append({**logs, "step": state.global_step})
        wanted = control.should_log  # the loss of this step is still to be logged
        _loggers().on_log(args, state, control, logs)
        control.should_log = wanted

    def _planned(self, args: Any, state: Any, given: dict[str, Any]) -> AbstractContextManager[Any]:
        tokenizer = self.tokenizer or given.get("processing_class")
        _, loaded = open_loaded(given["model"], tokenizer, self.settings)
        name = f"checkpoint-{state.global_step}"
        settings = {**self.settings, "model": name, "out": self._out(args) / name}
        checkpoint = None if loaded is None else replace(loaded, name=name, label=name)
        return planned(parse_all(None, settings), checkpoint)

    def _out(self, args: Any) -> Path:
        return self.out or Path(args.output_dir) / "ropewalk"


def _scores(run: Run) -> dict[str, float]:
    rows = cell_scores(run.frame()).dropna(subset="score").to_dict("records")
    names = (f"eval_{row['task']}/{row['scaling']}/{row['length']}" for row in rows)
    return {series(name): float(row["score"]) for name, row in zip(names, rows, strict=True)}


@contextmanager
def _evaluated(model: Any) -> Iterator[None]:
    """Hold a model in eval mode as its checkpoint is: in its own dtype, and restore it after."""
    training = [module for module in model.modules() if module.training]
    forward = vars(model).pop("forward", None)  # accelerate's, which computes in mixed precision
    devices = [model.device] if model.device.type == "cuda" else []
    model.eval()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        if forward is not None:
            model.forward = forward
        for module in training:
            module.training = True


def _loggers() -> CallbackHandler:
    """Return the handler of the trainer that is calling; it has the trainer's loggers.

    It gives its callbacks everything but itself, so it is found among the callers.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(handler := frame.f_locals.get("self"), CallbackHandler):
            return handler
        frame = frame.f_back
    raise UserError("rw.Callback is for transformers.Trainer: Trainer(callbacks=[rw.Callback(…)]).")
