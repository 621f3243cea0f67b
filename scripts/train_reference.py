"""Train the embedded reference model from nothing, resumable.

Deterministic from its seed on one machine and number of threads.

    .venv/bin/python -m scripts.train_reference training/reference

Texts: the training part of the embedded documents. Beside plain text the model sees passkey
prompts and repeated spans, without which a model of this size does not learn to retrieve. A
killed run goes on from its last checkpoint and gives the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from cyclopts import App
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ropewalk.harness.files import make_folder, replacing
from ropewalk.tasks._prompt import FILLER
from ropewalk.tasks.passkey import INTRODUCTION, NEEDLE, QUESTION
from scripts._training import Recipe, Training, console, read_texts, start, training

app = App(help=__doc__)


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


@app.default
def main(
    out: Path = Path("training/reference"),
    *,
    steps: int = Recipe.steps,
    seed: int = Recipe.seed,
    device: str = "cpu",
) -> None:
    """Train the reference model into a folder of its own, saved and watched every 100 steps."""
    recipe, documents = Recipe(seed=seed, steps=steps), list(training())
    make_folder(out)
    if not (out / "tokenizer.json").exists():
        train_tokenizer([text for _, text in documents], recipe.vocabulary).save_pretrained(out)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
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
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(config).to(device)
    texts = read_texts(tokenizer, documents, recipe.window)
    console.print(
        f"{sum(len(p.tokens) for p in texts.source.documents())} tokens of text; {recipe}"
    )
    record = Training(model, recipe, texts, out, asdict(recipe)).run(every=100)
    model.to(torch.bfloat16).save_pretrained(out)
    with replacing(out / "training.json") as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    console.print(f"written to {out}")


if __name__ == "__main__":
    start(app)
