"""The flags of a command that sets up a sweep: one table, with the help and the default of each.

``harness.sweep.spec.Spec`` has their types and checks their values. It is not imported here: that
takes longer than to print the help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from harness.cli.console import Done

Command = Callable[..., Done]
Many = tuple[str, ...]
OPTIONS = Group.create_ordered("Options")
MODEL = Group.create_ordered("Model")
METHODS = Group.create_ordered("Methods")
TASKS = Group.create_ordered("Tasks, lengths and documents")
EXECUTION = Group.create_ordered("Execution")
OUTPUT = Group.create_ordered("Output")
OPENING = ("revision", "offline", "trust_remote_code")  # how a model's config is read


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


@dataclass(frozen=True)
class Flag:
    """One flag: ``kind`` is what the command line reads, which ``Spec`` checks.

    ``default`` is what help shows: the value that ``Spec`` has, or what is done without one.
    """

    group: Group
    kind: Any
    default: str
    help: str
    alias: tuple[str, ...] = ()


FLAGS = {
    "model": Flag(
        MODEL,
        Many,
        "reference, the embedded demo model",
        "Folders, hub names (NAME@REVISION) or GGUF files.",
        ("-m",),
    ),
    "model_args": Flag(
        MODEL,
        Many,
        "none",
        "The model as lm-eval names it: pretrained=NAME,dtype=…,revision=…,trust_remote_code=True. "
        "Read as --model, --dtype and so on.",
        ("-a",),
    ),
    "revision": Flag(
        MODEL, str, "the main branch", "Branch, tag or commit on the hub, for one model."
    ),
    "adapter": Flag(
        MODEL,
        Many,
        "none",
        "PEFT adapters for the model: folders or hub names. none is the model itself.",
    ),
    "scaling": Flag(
        METHODS,
        Many,
        "none pi ntk dynamic_ntk:factor=2 ntk_by_parts yarn yarn:factor=4 yarn:factor=8",
        "Scaling methods: NAME, NAME:option=value,… (option=[4,8] is one method for each value), "
        "or your own .py file. `ropewalk list methods` names all.",
    ),
    "task": Flag(
        TASKS,
        Many,
        "perplexity passkey",
        "Tasks: NAME, NAME:option=value,… or your own .py file. `ropewalk list tasks` names all.",
        ("--tasks", "-t"),
    ),
    "length": Flag(
        TASKS,
        Many,
        "1x 2x 4x 8x",
        "Lengths in tokens: 512, 4k (4096), or 2x or 1.5x (of the trained window).",
    ),
    "docs": Flag(
        TASKS,
        str,
        "embedded, 23 texts from Python's standard library",
        "A file, a folder, a glob, or DATASET:split=…,field=….",
    ),
    "limit": Flag(
        TASKS,
        str,
        "all documents, and each task's own number of trials",
        "A whole number: the most documents that are read, and the most trials of each generated "
        "task (of each depth, where it has depths).",
        ("-L",),
    ),
    "out": Flag(
        OUTPUT,
        Path,
        "results/run-MODEL",
        "The run folder. With several models, the folder that holds theirs.",
        ("--output-path", "-o"),
    ),
    "seed": Flag(TASKS, Whole, "0", "Seed of every random draw."),
    "dtype": Flag(
        MODEL,
        str,
        "auto",
        "auto (float32 on a CPU, elsewhere that of the checkpoint), float32, bfloat16 or float16.",
    ),
    "device": Flag(EXECUTION, str, "auto", "auto (a GPU if there is one), cpu, cuda, cuda:1, …"),
    "offline": Flag(MODEL, bool, "False", "Send no request to the hub; use what its cache has."),
    "max_memory": Flag(
        EXECUTION,
        str,
        "no limit",
        "Bytes that weights and work may take: 800MiB, 12GB. Less memory takes more time.",
    ),
    "trained_length": Flag(
        MODEL,
        Whole,
        "the config's",
        "The trained window in tokens, for a model whose config does not give it.",
    ),
    "device_map": Flag(
        EXECUTION,
        str,
        "one device",
        "auto: spread one model over all GPUs, then memory, then disk (accelerate).",
    ),
    "compile": Flag(
        EXECUTION,
        bool,
        "False",
        "Compile the norms and MLPs of the layers (torch.compile). Losses differ by rounding.",
    ),
    "attention": Flag(
        EXECUTION,
        str,
        "auto",
        "auto (PyTorch's choice) or flash3: FlashAttention-3, on an H100 or H200, in 16 bits.",
    ),
    "trust_remote_code": Flag(MODEL, bool, "False", "Run code from the model's repository."),
    "allow_pickle": Flag(MODEL, bool, "False", "Accept weights that are not safetensors."),
    "workers": Flag(
        EXECUTION,
        Whole,
        "this process",
        "Number of processes that measure, on Ray. With GPUs, one process per GPU.",
    ),
    "cluster": Flag(
        EXECUTION,
        str,
        "this machine",
        "HOST:PORT of a Ray cluster to measure on, or auto.",
    ),
    "track": Flag(
        OUTPUT,
        str,
        "nowhere",
        "Send scores, tables and figures to trackio, mlflow or wandb (NAME:project=…), or to "
        "your own .py file.",
    ),
}


def with_settings(
    *names: str, without: Collection[str] = (), **helps: str
) -> Callable[[Command], Command]:
    """Give a command flags for settings, by default for all, in place of its ``**settings``.

    A flag that is not given is None: then a sweep file's value, or the default, stands. ``helps``
    are the command's own words for some flags, with "[default: …]" at their end where it differs.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())
        flags = [
            _parameter(name, helps.get(name, FLAGS[name].help))
            for name in names or FLAGS
            if name not in without
        ]
        positional = [p for p in own if p.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
        rest = [p for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*positional, *flags, *rest]
        )
        return command

    return decorate


def _parameter(name: str, text: str) -> inspect.Parameter:
    flag = FLAGS[name]
    text, _, default = text.removesuffix("]").partition(" [default: ")
    shown = Parameter(
        help=text,
        show_default=default or flag.default,
        group=flag.group,
        alias=flag.alias,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[flag.kind | None, shown],
    )
