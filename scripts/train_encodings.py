"""Train the same small language model with one position encoding after another, resumable.

Deterministic from its seed on one machine and number of threads.

    python -m scripts.train_encodings --encodings rope alibi --steps 300
    python -m scripts.train_encodings table training/encodings --out trainings.csv

Texts, tokenizer and recipe are those of the reference model. The models of a seed see the same
batches in the same order, and what an encoding adds in parameters its MLP gives back. A killed
run goes on from its last checkpoint and gives the same weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from hashlib import file_digest
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
from cyclopts import App, Parameter
from cyclopts.validators import Number
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropewalk.harness.encodings._config import EncodingConfig, config_of
from ropewalk.harness.encodings._model import EncodingForCausalLM
from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.models.checkpoint import REFERENCE
from ropewalk.harness.plugins import call, names
from ropewalk.harness.reports._text import counted
from scripts._training import (
    Recipe,
    Texts,
    Training,
    autocast,
    console,
    loss_of,
    read_texts,
    start,
    training,
)

# A fifth of the reference model's parameters, a quarter of its rows, more steps, a higher rate.
PLAIN = Recipe(steps=3000, rows=8, rate=3e-3, width=128, layers=4, mlp=384)
HEAD, EVERY = 32, 100  # channels of a head; steps between checkpoints
FOUND = 0.95  # the share of passkeys from which they count as learned
LONG = 8  # windows of the long forward that is timed
Count = Annotated[int, Parameter(validator=Number(gte=1))]
app = App(help=__doc__)


def config(encoding: str, recipe: Recipe, tokenizer: Any) -> EncodingConfig:
    """Return the config of the model with an encoding."""
    return config_of(
        encoding,
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.width // HEAD,
        max_position_embeddings=recipe.window,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def train(encoding: str, recipe: Recipe, texts: Texts, tokenizer: Any, out: Path) -> None:
    """Train one model into its folder, with the record of how it came to be."""
    own = config(encoding, recipe, tokenizer)
    settings = {**asdict(recipe), "encoding": own.to_dict()["encoding"], "code": own.code}
    if (out / "training.json").exists():
        if json.loads((out / "training.json").read_text())["recipe"] != settings:
            raise UserError(f"{out} is a model of another file or recipe; move it, or give --out.")
        console.print(f"{out} is there already")
        return
    torch.manual_seed(recipe.seed)
    task = Training(EncodingForCausalLM(own), recipe, texts, out, settings)
    record = call(f"encoding {encoding}", lambda: task.run(EVERY, out.name))
    task.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    parts = (task.model, task.model.model.encoding)
    whole, added = (sum(p.numel() for p in part.parameters()) for part in parts)
    with (out / "model.safetensors").open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    record |= {"parameters": whole, "of_the_encoding": added, "weights": f"sha256:{digest}"}
    with replacing(out / "training.json") as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    (out / "checkpoint.pt").unlink()
    console.print(f"written to {out}: {whole:,} parameters, {added:,} of the encoding's")


@app.default
def main(
    *,
    encodings: Annotated[Sequence[str] | None, Parameter(consume_multiple=True)] = None,
    seeds: Count = 1,
    steps: Count = PLAIN.steps,
    passkeys: bool = True,
    out: Path = Path("training/encodings"),
) -> None:
    """Train a model for every encoding and seed into a folder of its own, named ENCODING-seedN.

    Args:
        encodings: NAME, NAME:option=value or your own .py file; default: all.
        seeds: How many models of each, with the seeds 1, 2, …
        steps: Steps of every model.
        passkeys: Whether a quarter of every batch are passkey prompts; otherwise it is text.
        out: The folder of all models.
    """
    asked = list(encodings or names("encoding"))
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    texts = read_texts(tokenizer, list(training()), PLAIN.window)
    make_folder(out, "--out")
    warmup = min(PLAIN.warmup, steps // 4)
    recipe = replace(PLAIN, steps=steps, warmup=warmup, passkeys=passkeys)
    count = counted(len(asked) * seeds, "models")
    console.print(f"{count} of {recipe.steps} steps into {out}")
    for seed in range(1, seeds + 1):
        for encoding in asked:
            name = Path(encoding).name.replace(".py", "").replace(":", "-").replace(",", "-")
            made = replace(recipe, seed=seed)
            train(encoding, made, texts, tokenizer, out / f"{name}-seed{seed}")


def works(model: Any, recipe: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return what is timed of a model: a training step, a forward of one window, and of more."""
    window = recipe["window"]
    rows = torch.randint(recipe["vocabulary"], (recipe["rows"], window))
    text = torch.randint(recipe["vocabulary"], (1, LONG * window))

    def step() -> None:
        with autocast("cpu"):
            loss = loss_of(model, rows, torch.ones_like(rows))
        loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    @torch.inference_mode()
    def forward(length: int) -> None:
        model(input_ids=text[:, :length], use_cache=False)

    lengths = (window, LONG * window)
    return {"step": step} | {f"forward of {n} tokens": partial(forward, n) for n in lengths}


def timed(models: Mapping[str, Mapping[str, Callable[[], Any]]], rounds: int) -> pd.DataFrame:
    """Return the median CPU seconds of every work; the models take turns, after one round unseen.

    A model that cannot read the length has no number there.
    """
    rows = []
    for turn, name in product(range(rounds + 1), models):
        for what, work in models[name].items():
            began = time.process_time()
            with suppress(IndexError):  # beyond a learned table
                work()
                rows.append((turn, name, what, time.process_time() - began))
    taken = pd.DataFrame(rows, columns=["turn", "model", "work", "seconds"]).query("turn > 0")
    return taken.groupby(["model", "work"])["seconds"].median().unstack()


@app.command
def table(*models: Path, out: Path, rounds: Count = 5, trust_remote_code: bool = False) -> None:
    """Write what trainings took and came to, and how fast each encoding is beside rope.

    Args:
        models: Folders of trained models; times are relative to the first rope of each folder.
        out: The CSV file of all, one row per model.
        rounds: How often each work is timed.
        trust_remote_code: Run encodings of your own, whose code is beside the weights.
    """
    torch.set_num_threads(1)
    tables = [table_of(folder, rounds, trust_remote_code) for folder in models]
    with replacing(out) as file:
        file.write(pd.concat(tables, ignore_index=True).to_csv(index=False).encode())


def table_of(models: Path, rounds: int, run_code: bool) -> pd.DataFrame:
    """Return the rows of one folder of trained models."""
    rows, loaded = [], {}
    for file in sorted(models.glob("*/training.json")):
        record, name = json.loads(file.read_text()), file.parent.name
        curve = record["curve"]
        learned = (point["step"] for point in curve if point["passkey"] >= FOUND)
        rows.append(
            {
                "training": models.name,
                "model": name,
                "parameters": record["parameters"],
                "of the encoding": record["of_the_encoding"],
                "steps": record["recipe"]["steps"],
                "minutes of training": round(record["seconds"] / 60, 1),
                "held-out loss (nats)": curve[-1]["held_out"]["all"],
                "passkeys inside the window": curve[-1]["passkey"],
                "passkeys from step": next(learned, None),
                "weights": record["weights"],
            }
        )
        model = AutoModelForCausalLM.from_pretrained(file.parent, run_code=run_code)
        loaded[name] = works(model, record["recipe"])
    if not rows:
        raise UserError(f"{models} has no trained models; name the folder that --out named.")
    seconds = timed(loaded, rounds)
    first = next((name for name in loaded if name.startswith("rope-")), rows[0]["model"])
    ratios = (seconds / seconds.loc[first]).round(2).add_suffix(", relative to rope")
    return pd.DataFrame(rows).convert_dtypes().join(ratios, on="model")


if __name__ == "__main__":
    start(app)
