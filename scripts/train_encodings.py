"""Train the same small language model with one position encoding after another, resumable.

Deterministic from its seed on one machine and number of threads.

    python scripts/train_encodings.py --encodings rope alibi --minutes 3

Texts, tokenizer and recipe are those of the reference model. The models of a seed see the same
batches in the same order, and what an encoding adds in parameters its MLP gives back. A killed
run goes on from its last checkpoint and gives the same weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
from _training import Recipe, Texts, Training, console, read_texts, start
from cyclopts import App, Parameter
from cyclopts.validators import Number
from transformers import AutoTokenizer

from harness.data.embedded import training
from harness.encodings._config import EncodingConfig, config_of
from harness.encodings._model import EncodingForCausalLM
from harness.errors import UserError
from harness.files import make_folder, replacing
from harness.models.config import REFERENCE
from harness.plugins import call, names
from harness.reports.writing.sentences import counted

# A fifth of the reference model's parameters, a quarter of its rows, more steps, a higher rate.
PLAIN = Recipe(steps=3000, rows=8, rate=3e-3, width=128, layers=4, mlp=384)
HEAD, EVERY = 32, 100  # channels of a head; steps between checkpoints
TIMED, WATCHING = 3, 1.1  # steps of a trial; what checkpoints and the curve take beside the steps
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


def begin(encoding: str, recipe: Recipe, texts: Texts, tokenizer: Any, out: Path) -> Training:
    """Build the model of an encoding, or read it back from its last checkpoint."""
    torch.manual_seed(recipe.seed)
    own = config(encoding, recipe, tokenizer)
    return Training(EncodingForCausalLM(own), recipe, texts, out, settings(own, recipe))


def settings(own: EncodingConfig, recipe: Recipe) -> dict[str, Any]:
    """Return all that the weights depend on, the hash of a user's file included."""
    return {**asdict(recipe), "encoding": own.to_dict()["encoding"], "code": own.code}


def train(encoding: str, recipe: Recipe, texts: Texts, tokenizer: Any, out: Path) -> None:
    """Train one model into its folder, with the record of how it came to be."""
    if (out / "training.json").exists():
        known = json.loads((out / "training.json").read_text())["recipe"]
        if known != settings(config(encoding, recipe, tokenizer), recipe):
            raise UserError(f"{out} is a model of another file or recipe; move it, or give --out.")
        console.print(f"{out} is there already")
        return
    task = begin(encoding, recipe, texts, tokenizer, out)
    record = call(f"encoding {encoding}", lambda: task.run(EVERY, out.name))
    task.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    parts = (task.model, task.model.model.encoding)
    whole, added = (sum(p.numel() for p in part.parameters()) for part in parts)
    with (out / "model.safetensors").open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    record |= {"parameters": whole, "of_the_encoding": added, "weights": f"sha256:{digest}"}
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "checkpoint.pt").unlink()
    console.print(f"written to {out}: {whole:,} parameters, {added:,} of the encoding's")


def tried(encoding: str, texts: Texts, tokenizer: Any) -> Training:
    """Take a first step with an encoding, which leaves no file; raise UserError where it fails."""
    with TemporaryDirectory() as folder:
        trial = begin(encoding, PLAIN, texts, tokenizer, Path(folder))
        call(f"encoding {encoding}", lambda: trial.step(0))
    return trial


def steps_in(minutes: float, encodings: Sequence[str], texts: Texts, tokenizer: Any) -> int:
    """Return how many steps the slowest of these encodings takes in so many minutes."""
    slowest = 0.0
    for encoding in encodings:
        trial = tried(encoding, texts, tokenizer)
        began = time.time()
        for number in range(TIMED):
            trial.step(number)
        slowest = max(slowest, (time.time() - began) / TIMED)
    return max(1, round(60 * minutes / WATCHING / slowest))


def recipe_for(
    out: Path,
    steps: int | None,
    minutes: float | None,
    encodings: Sequence[str],
    texts: Texts,
    tokenizer: Any,
) -> Recipe:
    """Return the recipe of all models in a folder: the one it has, so that they are comparable."""
    make_folder(out, "--out")
    kept = out / "recipe.json"
    if kept.exists():
        recipe = Recipe(**json.loads(kept.read_text()))
        if steps not in (None, recipe.steps):
            raise UserError(
                f"{out} has models of {recipe.steps} steps; give another folder with --out."
            )
        if minutes:
            console.print(f"{out} has a recipe already, which decides the steps; not --minutes.")
        return recipe
    if steps is None:
        steps = steps_in(minutes, encodings, texts, tokenizer) if minutes else PLAIN.steps
    recipe = replace(PLAIN, steps=steps, warmup=min(PLAIN.warmup, steps // 4))
    with replacing(kept) as file:
        file.write(json.dumps(asdict(recipe)).encode() + b"\n")
    return recipe


@app.default
def main(
    *,
    encodings: Annotated[Sequence[str] | None, Parameter(consume_multiple=True)] = None,
    seeds: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    steps: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    minutes: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    out: Path = Path("training/encodings"),
) -> None:
    """Train a model for every encoding and seed into a folder of its own, named ENCODING-seedN.

    Args:
        encodings: NAME, NAME:option=value or your own .py file; default: all.
        seeds: How many models of each, with the seeds 1, 2, …
        steps: Steps of every model; default: 3000.
        minutes: Minutes a model, in place of steps: as many as the slowest encoding takes in them.
        out: The folder of all models.
    """
    if steps and minutes:
        raise UserError("--steps and --minutes both say how long to train; give one of them.")
    asked = list(encodings or names("encoding"))
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    own = [encoding for encoding in asked if config(encoding, PLAIN, tokenizer).code]
    texts = read_texts(tokenizer, list(training()), PLAIN.window)
    for encoding in own:  # before hours of others
        tried(encoding, texts, tokenizer)
    recipe = recipe_for(out, steps, minutes, asked, texts, tokenizer)
    count = counted(len(asked) * seeds, "models")
    console.print(f"{count} of {recipe.steps} steps into {out}")
    for seed in range(1, seeds + 1):
        for encoding in asked:
            name = Path(encoding).name.replace(".py", "").replace(":", "-").replace(",", "-")
            made = replace(recipe, seed=seed)
            train(encoding, made, texts, tokenizer, out / f"{name}-seed{seed}")


if __name__ == "__main__":
    start(app)
