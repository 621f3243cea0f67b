"""Train the embedded reference model from nothing, resumable.

Deterministic from its seed on one machine and number of threads.

    .venv/bin/python scripts/train_reference.py training/reference

Texts: the training part of the embedded documents. Beside plain text the model sees pass key
prompts and repeated spans, without which a model of this size does not learn to retrieve. A
killed run goes on from its last checkpoint and gives the same weights.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import torch
from _mixture import Recipe, batch
from cyclopts import App
from rich.console import Console
from rich.progress import track
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from harness.data.embedded import held_out, training
from harness.data.source import make_source
from tasks._prompt import FILLER, INTRODUCTION, NEEDLE, QUESTION, frame, prompt
from tasks._types import Source

app = App(help=__doc__)
console = Console()


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


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then cosine decay to a fiftieth."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    turn = math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(turn)))


def loss_of(model: Any, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean negative log-likelihood in nats."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    nll = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    kept = weights[:, 1:].flatten()
    return (nll * kept).sum() / kept.sum()


@torch.inference_mode()
def held_out_loss(model: Any, source: Source, window: int) -> dict[str, float]:
    """Return the mean loss over held-out windows, and over their first and last quarter."""
    rows = [
        [*source.opening, *passage.tokens[first : first + window - 1]]
        for passage in source.passages()
        for first in range(0, min(len(passage.tokens) - window, 4 * window), window)
    ]
    tokens: Any = torch.tensor(rows, device=model.device)
    logits = torch.cat([model(input_ids=part).logits[:, :-1] for part in tokens.split(16)])
    nll = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2).float(), tokens[:, 1:], reduction="none"
    )
    quarter = window // 4
    parts = {"all": nll, "first_quarter": nll[:, :quarter], "last_quarter": nll[:, -quarter:]}
    return {name: round(float(part.mean()), 4) for name, part in parts.items()}


@torch.inference_mode()
def passkey_share(model: Any, source: Source, window: int, least: int) -> float:
    """Return the share of 60 pass keys found inside the window, for the progress line."""
    found = 0
    for trial in range(60):
        draw = Random(f"watch/{trial}")
        made = prompt(
            source, draw.randint(least, window), draw.randrange(10_000, 100_000),
            draw.random(), filler="standard" if trial % 2 else "documents", draw=draw,
        )  # fmt: skip
        logits = model(input_ids=torch.tensor([made.tokens], device=model.device)).logits[0]
        said = logits[made.start - 1 : -1].argmax(-1).tolist()
        found += said == list(made.tokens[made.start :])
    return round(found / 60, 3)


def train(
    recipe: Recipe,
    documents: Sequence[tuple[str, str]],
    out: Path,
    *,
    device: str = "cpu",
    every: int = 100,
) -> None:
    """Train on the documents, save and watch ``every`` so many steps, write the model folder."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        train_tokenizer([text for _, text in documents], recipe.vocabulary).save_pretrained(out)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    source = make_source(tokenizer, lambda: documents, recipe.window)
    watched = make_source(tokenizer, held_out, recipe.window)
    least = sum(map(len, frame(source, 10_000)))
    model, optimizer, state = _start(recipe, tokenizer, out, device)
    console.print(f"{sum(len(p.tokens) for p in source.passages())} tokens of text; {recipe}")
    kind = torch.device(device).type
    fast = kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    began = time.time()
    for step in track(range(state["step"], recipe.steps), "Training", console=console):
        tokens, weights = (part.to(device) for part in batch(source, recipe, least, step))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        with torch.autocast(kind, torch.bfloat16, enabled=fast):
            loss = loss_of(model, tokens, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % every == 0 or step + 1 == recipe.steps:
            entry = {
                "step": step + 1,
                "train_loss": round(loss.item(), 4),
                "held_out": held_out_loss(model, watched, recipe.window),
                "passkey": passkey_share(model, watched, recipe.window, least),
            }
            state["curve"].append(entry)
            state["seconds"] += time.time() - began
            began = time.time()
            state["step"] = step + 1
            console.print(f"{state['seconds']:.0f} s", entry)
            _save(out, recipe, model, optimizer, state)
    _finish(out, model, recipe, state, device)


def _start(recipe: Recipe, tokenizer: Any, out: Path, device: str) -> tuple[Any, Any, Any]:
    """Build the model and its optimizer, or read them back from the last checkpoint."""
    torch.manual_seed(recipe.seed)
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
    model = LlamaForCausalLM(config).to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    scales = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
    state = {"step": 0, "seconds": 0.0, "curve": []}
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location=device)
        if saved["recipe"] != asdict(recipe):
            message = f"{out} holds a run of another recipe: {saved['recipe']}"
            raise SystemExit(message)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["state"]
    return model, optimizer, state


def _save(out: Path, recipe: Recipe, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """Write a checkpoint beside the last one, then put it in its place."""
    whole = {
        "recipe": asdict(recipe), "model": model.state_dict(),
        "optimizer": optimizer.state_dict(), "state": state,
    }  # fmt: skip
    torch.save(whole, out / "checkpoint.new")
    (out / "checkpoint.new").replace(out / "checkpoint.pt")


def _finish(out: Path, model: Any, recipe: Recipe, state: dict[str, Any], device: str) -> None:
    """Write the bf16 weights, and the record of how they came to be."""
    model.to(torch.bfloat16).save_pretrained(out)
    record = {
        "recipe": asdict(recipe),
        "seconds": round(state["seconds"]),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {device}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "curve": state["curve"],
    }
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written to {out}")


@app.default
def main(
    out: Path = Path("training/reference"),
    *,
    steps: int = Recipe.steps,
    seed: int = Recipe.seed,
    device: str = "cpu",
) -> None:
    """Train the reference model into a folder of its own."""
    train(Recipe(seed=seed, steps=steps), list(training()), out, device=device)


if __name__ == "__main__":
    app()
