"""What goes into ``run.json``: enough to trace any number of the run."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, cast

import torch

from ropewalk.harness.files import recorded
from ropewalk.harness.plugins import ROOT, Plugin, call, recorded_entry
from ropewalk.harness.runs.compatible import check_same_sweep
from ropewalk.harness.runs.record import SCHEMA, Model, Run, Task
from ropewalk.harness.runs.record import Plugin as PluginRecord
from ropewalk.harness.runs.store import record_in
from ropewalk.harness.sweep.plan import Cell, Plan

PACKAGES = (
    "ropewalk", "torch", "transformers", "tokenizers", "datasets", "accelerate", "scipy", "peft",
    "lm_eval",
)  # fmt: skip


def records(plan: Plan, folder: Path) -> tuple[Run | None, Run]:
    """Return the record that a folder has, and the one that a run of this plan writes there.

    The new one has the sessions of the old. Raises UserError where the folder has a run of another
    model, or another sweep.
    """
    before, record = record_in(folder), describe(plan)
    if before:
        check_same_sweep(folder, before, record)
        record["sessions"] = [*before["sessions"]]
    return before, record


def describe(plan: Plan) -> Run:
    """Return the record of a plan, of which nothing is measured."""
    asked, template = plan.spec.model_dump(mode="json"), None
    if getattr(plan.checkpoint.tokenizer, "chat_template", None):
        chats = [task.label for task in plan.tasks if task.options.get("chat")]
        template = f"applied in {', '.join(chats)}" if chats else "not applied"
    return {
        "schema": SCHEMA,
        "asked": asked,
        "model": _model(plan),
        "parts_left_out": list(plan.checkpoint.left_out),
        "chat_template": template,
        "lengths": list(plan.lengths),
        "seed": plan.spec.seed,
        "methods": {method.label: _plugin(method) for method in plan.methods},
        "tasks": {task.label: _task(plan, task) for task in plan.tasks},
        "documents": {
            "given": asked["docs"],
            "read": list(plan.documents),
            "left_out": plan.left_out,
        },
        "cells": [
            {
                "scaling": cell.scaling,
                "task": cell.task,
                "length": cell.length,
                "frequencies": cell.frequencies,
                "key": cell.key,
                "failed": cell.failed,
            }
            for cell in plan.cells
        ],
        "frequencies": {
            cell.rotation.fingerprint: cell.rotation.to_record()
            for cell in plan.cells
            if cell.rotation
        },
        "sessions": [],
    }


def _model(plan: Plan) -> Model:
    checkpoint, rope = plan.checkpoint, plan.checkpoint.rope
    alike = (
        "revision", "fingerprint", "dtype", "sliding_window", "served", "encoding",
        "quantized",
    )  # fmt: skip
    model = {name: getattr(checkpoint, name) for name in alike} | {
        "name": checkpoint.label,
        "type": checkpoint.config.model_type,
        "trained_length": rope.trained_length,
        "base": rope.base if rope.rotary_dim else None,
        "rotary_dim": rope.rotary_dim,
        "shipped": dict(rope.shipped),
        "bos": checkpoint.tokenizer.bos_token_id,
        "tokenizer": checkpoint.tokenizer_hash,
        "loaded": checkpoint.loaded is not None,
        "adapter": checkpoint.adapter.metadata if checkpoint.adapter else None,
    }
    return cast(Model, model)


def _plugin(plugin: Plugin) -> PluginRecord:
    options = {
        name: recorded(value) if isinstance(value, str) else value
        for name, value in plugin.options.items()
    }
    return {"given": recorded_entry(plugin.given), "options": options, "file": plugin.digest}


def _task(plan: Plan, task: Plugin) -> Task:
    facts: Any = facts_of(plan, task)
    digests = {cell.length: [q.digest for q in cell.questions] for cell in _cells(plan, task)}
    return {
        **_plugin(task),
        "version": task.module.VERSION,
        "metric": task.module.METRIC,
        **facts,
        "questions": {str(length): listed for length, listed in digests.items()},
    }


def facts_of(plan: Plan, task: Plugin) -> dict[str, Any]:
    """Return the metric of a task, and what else it says of itself."""
    about = getattr(task.module, "about", None)
    asked = [question for cell in _cells(plan, task) for question in cell.questions]
    more = call(f"task {task.label}", lambda: about(asked, **task.arguments)) if about else {}
    return {"metric": task.module.METRIC, **more}


def _cells(plan: Plan, task: Plugin) -> list[Cell]:
    first = plan.methods[0].label  # every method is asked the same
    return [cell for cell in plan.cells if (cell.task, cell.scaling) == (task.label, first)]


def machine(device: str) -> dict[str, Any]:
    """Return what measures: processor or GPU, threads, versions, commit."""
    return {
        "device": named(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def named(device: str) -> str:
    """Return the name of a GPU, or of the processor; also where only workers have a GPU."""
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")  # platform.processor() is empty on many Linux systems
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def version(package: str) -> str | None:
    """Return which version of a package is installed, None where none is."""
    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of a checkout, with a + when files differ from it; None elsewhere."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty=+"]
    exact = [*words, "--exclude=*"]  # no tag
    if not (ROOT / ".git").exists():
        return None
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(exact, text=True, stderr=subprocess.DEVNULL).strip()
    return None
