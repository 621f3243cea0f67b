"""What users of lm-eval and of the hub's command line type, read as it is meant or answered.

``--model_args`` is read; every other option of theirs is answered by naming the flag that does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import UserError

TYPES = ("hf", "hf-auto", "huggingface")  # what lm-eval calls models that transformers runs
# The arguments of such a model, and the settings that they are here.
ARGUMENTS = {
    "pretrained": "model",
    "revision": "revision",
    "dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "peft": "adapter",
    "device": "device",
    "parallelize": "device_map",
}
SWITCHES = {"trust_remote_code": True, "parallelize": "auto"}  # what True sets
INSTEAD = {
    "max_length": "lengths are --length 4096 8192",
    "max_memory_per_gpu": "memory is --max-memory 12GB",
    "gguf_file": "a GGUF file is --model OWNER/NAME/FILE.gguf",
    "tokenizer": "the tokenizer is the one in the model's folder",
    "attn_implementation": "attention is PyTorch's own kernel",
}
STORED = "every sample is stored in samples.jsonl of the run folder"
GROUPED = "requests are grouped to fit into memory; limit it with --max-memory 12GB"
TASK = "it is an option of the task, as in --task "
LEAVE = "; leave it out"
ANSWERS = {
    "--batch-size": GROUPED,
    "--max-batch-size": GROUPED,
    "--num-fewshot": f"{TASK}lm_eval:tasks=hellaswag,num_fewshot=5",
    "--include-path": f"{TASK}lm_eval:tasks=NAME,include=FOLDER",
    "--apply-chat-template": f"{TASK}passkey:chat=true",
    "--fewshot-as-multiturn": f"{TASK}lm_eval:tasks=NAME,chat=true",
    "--system-instruction": f"prompts have none{LEAVE}",
    "--gen-kwargs": f"answers are decoded greedily{LEAVE}",
    "--metadata": "lengths are --length 4096 8192, and the tokenizer is the model's",
    "--log-samples": f"{STORED}{LEAVE}",
    "--predict-only": STORED,
    "--write-out": STORED,
    "--samples": "the first documents and trials are measured; --limit 10 takes fewer",
    "--use-cache": f"the same command continues its run folder, --out FOLDER{LEAVE}",
    "--cache-requests": f"prompts are made once per run{LEAVE}",
    "--check-integrity": "--dry-run checks names, options and documents",
    "--show-config": "--dry-run prints the plan; run.json has every setting",
    "--wandb-args": "it is --track wandb:project=NAME",
    "--wandb-config-args": "it is --track wandb:project=NAME",
    "--trackio-args": "it is --track trackio:project=NAME",
    "--hf-hub-log-args": "ropewalk publish RUN --to card writes what the hub shows",
    "--verbosity": f"notes go to stderr{LEAVE}",
    "--confirm-run-unsafe-code": "code of a model's repository runs with --trust-remote-code",
    "--config": "a sweep file is named without a flag: ropewalk run sweep.yaml",
    "--token": "set the environment variable HF_TOKEN, or log in with hf auth login",
    "--cache-dir": "set the environment variable HF_HOME",
    "-M": "write --model or -m",
    "validate": "ropewalk run … --dry-run checks names, options and documents",
    "--methods": "methods are --scaling",
    "--max-length": "lengths are --length 4096 8192",
}
SHORT = {
    "-b": "--batch-size",
    "-f": "--num-fewshot",
    "-c": "--use-cache",
    "-s": "--log-samples",
    "-x": "--predict-only",
    "-w": "--write-out",
    "-v": "--verbosity",
    "-E": "--samples",
    "-C": "--config",
}


def answer(option: str) -> str | None:
    """Return what does the same as an option or a command of lm-eval; None for any other."""
    name = SHORT.get(option, option.replace("_", "-"))
    return ANSWERS.get(name)


def translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a command with those of ``--model_args`` in their places.

    ``--model hf`` is then the type of the model, and not its name. Raises UserError for an argument
    without a counterpart, and for a setting that is given twice.
    """
    given = {name: value for name, value in settings.items() if name != "model_args"}
    arguments = _arguments(settings.get("model_args") or ())
    if given.get("task") == ("list",):
        raise UserError("--tasks list: the names of all tasks are printed by ropewalk list tasks.")
    named = given.get("model")
    model = named if isinstance(named, str) else " ".join(named or ())
    pretrained = arguments.get("model", ("", None))[1]
    if model in TYPES:
        if pretrained is None:
            raise UserError(
                f"--model {model} is a type of model in lm-eval; here --model is the model itself: "
                "a folder, a hub name or a GGUF file."
            )
        given["model"] = None
    elif model and pretrained:
        raise UserError(
            f"--model {model} and pretrained={pretrained} name two models; write --model "
            f"{pretrained}, which transformers runs."
        )
    for name, (argument, value) in arguments.items():
        if given.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} and {argument} of --model-args are the same; give one.")
        given[name] = value
    return given


def _arguments(words: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
    """Return the setting of each argument, with the argument's name and its value."""
    found: dict[str, tuple[str, Any]] = {}
    for part in ",".join(words).split(","):
        if not part:
            continue
        argument, equals, text = part.partition("=")
        if argument in INSTEAD:
            raise UserError(f"--model-args {argument}: {INSTEAD[argument]}.")
        if argument not in ARGUMENTS or not equals or not text:
            raise UserError(
                f"--model-args {part} has no counterpart; what is read: "
                f"{', '.join(f'{name}=…' for name in ARGUMENTS)}."
            )
        value: Any = text
        if argument in SWITCHES:
            value = SWITCHES[argument] if text.lower() in ("true", "1") else None
        found[ARGUMENTS[argument]] = (argument, value)
    return found
