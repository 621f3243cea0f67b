"""The flags of a command that sets up a sweep, with the help and the default of each.

``harness/sweep/spec.py`` checks their values. It is not imported here: that takes longer than to
print the help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from ropewalk.harness.cli.console import Done

Command = Callable[..., Done]
Many = tuple[str, ...]
OPTIONS = Group.create_ordered("Options")
MODEL = Group.create_ordered("Model")
METHODS = Group.create_ordered("Methods")
TASKS = Group.create_ordered("Tasks, lengths and documents")
EXECUTION = Group.create_ordered("Execution")
OUTPUT = Group.create_ordered("Output")
OPENING = (
    "revision",
    "offline",
    "trained_length",
    "trust_remote_code",
)  # how a model's config is read


def whole(kind: Any, tokens: Sequence[Token]) -> int:  # noqa: ARG001
    """Return the whole number of a flag; cyclopts alone would read 0.5 as 0."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text} is not a whole number.") from None


Whole = Annotated[int, Parameter(converter=whole)]
FailIf = Annotated[Many | None, Parameter(group=OUTPUT)]
DryRun = Annotated[bool, Parameter(group=EXECUTION)]
Model = Annotated[str, Parameter(alias="-m", group=MODEL)]
MaybeModel = Annotated[str | None, Parameter(alias="-m", group=MODEL)]
OutFile = Annotated[Path, Parameter(alias=("--output-path", "-o"), group=OUTPUT)]
Out = Annotated[Path | None, Parameter(alias=("--output-path", "-o"), group=OUTPUT)]


FLAGS = {
    MODEL: {
        "model": "Folders, hub names (NAME@REVISION) or GGUF files. "
        "[default: reference, the embedded demo model]",
        "revision": "Branch, tag or commit on the hub, for one model. [default: the main branch]",
        "adapter": "PEFT adapters for the model: folders or hub names. none is the model itself. "
        "[default: none]",
        "dtype": "auto (float32 on a CPU, elsewhere that of the checkpoint), float32, bfloat16 or "
        "float16. [default: auto]",
        "offline": "Send no request to the hub; use what its cache has. [default: False]",
        "trained_length": "The trained window in tokens, where the config gives none or another. "
        "[default: the config's]",
        "trust_remote_code": "Run code from the model's repository. [default: False]",
        "allow_pickle": "Accept weights that are not safetensors. [default: False]",
    },
    METHODS: {
        "scaling": "Scaling methods: NAME, NAME:option=value,… (option=[4,8] is one method for "
        "each value), or your own .py file. `ropewalk list methods` names all. [default: none pi "
        "ntk dynamic_ntk:factor=2 ntk_by_parts yarn yarn:factor=4 yarn:factor=8]",
    },
    TASKS: {
        "task": "Tasks: NAME, NAME:option=value,… or your own .py file. `ropewalk list tasks` "
        "names all. [default: perplexity passkey]",
        "length": "Lengths in tokens: 512, 4k (4096), or 2x or 1.5x (of the trained window). "
        "[default: 1x 2x 4x 8x]",
        "docs": "A file, a folder, a glob, or DATASET:split=…,field=…. [default: embedded, 23 "
        "texts from Python's standard library]",
        "limit": "The most documents to read, and the most trials of each generated task (per "
        "depth, if it has depths). [default: all documents, and each task's own number of trials]",
        "seed": "Seed of every random draw. [default: 0]",
    },
    EXECUTION: {
        "device": "auto (a GPU if there is one), cpu, cuda, cuda:1, … [default: auto]",
        "max_memory": "Bytes that weights and work may take: 800MiB, 12GB. Less memory takes more "
        "time. [default: no limit]",
        "device_map": "auto: spread one model over all GPUs, then memory, then disk (accelerate). "
        "[default: one device]",
        "compile": "Compile the norms and MLPs of the layers (torch.compile). Losses differ by "
        "rounding. [default: False]",
        "attention": "auto (PyTorch's choice) or flash3: FlashAttention-3, on an H100 or H200, in "
        "16 bits. [default: auto]",
        "workers": "Number of processes that measure, on Ray. With GPUs, one process per GPU. "
        "[default: this process]",
        "cluster": "HOST:PORT of a Ray cluster to measure on, or auto. [default: this machine]",
    },
    OUTPUT: {
        "out": "The run folder. With several models, the folder that holds theirs. "
        "[default: results/run-MODEL]",
        "track": "Send scores, their table and figures to trackers: wandb, mlflow, tensorboard, "
        "trackio, comet_ml, … (NAME or NAME:project=…). [default: nowhere]",
    },
}
# What the command line reads where it is not one text.
KINDS: dict[str, Any] = dict.fromkeys(
    ("model", "adapter", "scaling", "task", "length", "track"), Many
)
KINDS |= dict.fromkeys(("offline", "compile", "trust_remote_code", "allow_pickle"), bool)
KINDS |= dict.fromkeys(("trained_length", "seed", "workers"), Whole) | {"out": Path}
ALIASES = {
    "model": ("-m",),
    "task": ("--tasks", "-t"),
    "limit": ("-L",),
    "out": ("--output-path", "-o"),
}


def with_settings(
    *names: str, without: Collection[str] = (), **helps: str
) -> Callable[[Command], Command]:
    """Give a command flags for settings, by default for all, in place of its ``**settings``.

    A flag that is not given is None, and a sweep file's value or the default is used. ``helps``
    are the command's own words for some flags.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        flags = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    KINDS.get(name, str) | None,
                    Parameter(help=helps.get(name, text), group=group, alias=ALIASES.get(name)),
                ],
            )
            for group, texts in FLAGS.items()
            for name, text in texts.items()
            if name in (names or texts) and name not in without
        ]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=sorted([*flags, *own], key=lambda parameter: parameter.kind)
        )
        return command

    return decorate
