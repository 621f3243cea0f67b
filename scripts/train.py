"""Train the small models: of the laboratory, one per position encoding, and the reference model.

```text
python -m scripts.train encodings rope alibi --steps 300
python -m scripts.train table training/encodings --out trainings.csv
python -m scripts.train reference --out training/reference
```

Weights are a function of the seed on one machine and number of threads. The texts are the training
part of the embedded documents. Beside plain text a model sees passkey prompts and repeated spans,
without which a model of this size does not learn to retrieve. A model that is there already is not
trained again.
"""

from __future__ import annotations

import json
import sys
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
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ropewalk.harness.encodings._config import config_of
from ropewalk.harness.encodings._model import EncodingForCausalLM
from ropewalk.harness.errors import UserError
from ropewalk.harness.files import make_folder, replacing
from ropewalk.harness.models.checkpoint import REFERENCE
from ropewalk.harness.plugins import call, names
from ropewalk.tasks._prompt import FILLER
from ropewalk.tasks.passkey import INTRODUCTION, NEEDLE, QUESTION
from scripts._measure import timed
from scripts._training import (
    Recipe,
    Texts,
    autocast,
    console,
    loss_of,
    read_texts,
    train,
    training,
)

# A fifth of the reference model's parameters, a quarter of its rows, more steps, a higher rate.
PLAIN = Recipe(steps=3000, rows=8, rate=3e-3, width=128, layers=4, mlp=384)
HEAD = 32  # channels of a head
FOUND = 0.95  # the share of passkeys from which they count as learned
LONG = 8  # windows of the long forward that is timed
Count = Annotated[int, Parameter(validator=Number(gte=1))]
app = App(help=__doc__)


def make(
    build: Callable[[], Any], tokenizer: Any, recipe: Recipe, texts: Texts, out: Path,
    dtype: torch.dtype = torch.float32, **settings: Any,
) -> None:  # fmt: skip
    """Train one model into its folder, with the record of how it came to be.

    ``settings`` are what its weights depend on beside the recipe.
    """
    whole = {**asdict(recipe), **settings}
    if (out / "training.json").exists():
        if json.loads((out / "training.json").read_text())["recipe"] != whole:
            raise UserError(f"{out} is a model of another file or recipe; move it, or give --out.")
        console.print(f"{out} is there already")
        return
    torch.manual_seed(recipe.seed)
    model = build()
    record: dict[str, Any] = {"recipe": whole}
    record |= call(f"the training of {out.name}", partial(train, model, recipe, texts, out.name))
    model.to(dtype).save_pretrained(out)
    tokenizer.save_pretrained(out)
    with (out / "model.safetensors").open("rb") as file:
        record["weights"] = f"sha256:{file_digest(file, 'sha256').hexdigest()}"
    encoding = (p for name, p in model.named_parameters() if name.startswith("model.encoding."))
    for name, parameters in (("parameters", model.parameters()), ("of_the_encoding", encoding)):
        record[name] = sum(p.numel() for p in parameters)
    with replacing(out / "training.json") as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    console.print(f"written to {out}: {record['parameters']:,} parameters")


@app.command
def encodings(
    *encoding: str,
    seeds: Count = 1,
    steps: Count = PLAIN.steps,
    passkeys: bool = True,
    out: Path = Path("training/encodings"),
) -> None:
    """Train a model for every encoding and seed into a folder of its own, named ENCODING-seedN.

    The models of a seed see the same batches in the same order, and what an encoding adds in
    parameters its MLP gives back.

    Args:
        encoding: NAME, NAME:option=value or your own .py file; default: all.
        seeds: How many models of each, with the seeds 1, 2, …
        steps: Steps of every model.
        passkeys: Whether a quarter of every batch are passkey prompts; otherwise it is text.
        out: The folder of all models.
    """
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    texts = read_texts(tokenizer, list(training()), PLAIN.window)
    make_folder(out, "--out")
    warmup = min(PLAIN.warmup, steps // 4)
    for seed, name in product(range(1, seeds + 1), encoding or names("encoding")):
        recipe = replace(PLAIN, seed=seed, steps=steps, warmup=warmup, passkeys=passkeys)
        config = config_of(
            name,
            vocab_size=recipe.vocabulary,
            hidden_size=recipe.width,
            intermediate_size=recipe.mlp,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.width // HEAD,
            max_position_embeddings=recipe.window,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        folder = Path(name).name.replace(".py", "").replace(":", "-").replace(",", "-")
        about = {"encoding": config.to_dict()["encoding"], "code": config.code}
        build = partial(EncodingForCausalLM, config)
        make(build, tokenizer, recipe, texts, out / f"{folder}-seed{seed}", **about)


@app.command
def reference(
    *, out: Path = Path("training/reference"), steps: Count = Recipe.steps, seed: int = Recipe.seed
) -> None:
    """Train the tokenizer and the weights of the embedded reference model.

    Args:
        out: The folder of the model.
        steps: Steps of the training.
        seed: Of the weights and the batches.
    """
    recipe, documents = Recipe(seed=seed, steps=steps), list(training())
    make_folder(out, "--out")
    tokenizer = train_tokenizer([text for _, text in documents], recipe.vocabulary)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.width // 64,
        num_key_value_heads=recipe.width // 128,
        head_dim=64,
        max_position_embeddings=recipe.window,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    texts = read_texts(tokenizer, documents, recipe.window)
    make(partial(LlamaForCausalLM, config), tokenizer, recipe, texts, out, torch.bfloat16)


def train_tokenizer(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the texts; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    asked = [INTRODUCTION + "".join(FILLER) + NEEDLE.format(key="") + QUESTION] * 200
    tokenizer.train_from_iterator([*texts, *asked], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


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
    seconds = times(loaded, rounds)
    first = next((name for name in loaded if name.startswith("rope-")), rows[0]["model"])
    ratios = (seconds / seconds.loc[first]).round(2).add_suffix(", relative to rope")
    return pd.DataFrame(rows).convert_dtypes().join(ratios, on="model")


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


def times(models: Mapping[str, Mapping[str, Callable[[], Any]]], rounds: int) -> pd.DataFrame:
    """Return the median CPU seconds of every work; the models take turns, after one round unseen.

    A model that cannot read the length has no number there.
    """
    rows = []
    for turn, name in product(range(rounds + 1), models):
        for what, work in models[name].items():
            with suppress(IndexError):  # beyond a learned table
                rows.append((turn, name, what, timed(work)[0]))
    taken = pd.DataFrame(rows, columns=["turn", "model", "work", "seconds"]).query("turn > 0")
    return taken.groupby(["model", "work"])["seconds"].median().unstack()


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        sys.exit(f"train: {error}")
