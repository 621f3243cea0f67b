"""Write what the training of every encoding took and came to, and how fast each is beside rope.

Reads a folder of models of ``train_encodings.py``; writes ``training.csv`` and each model's record.

    python scripts/encodings_table.py training/encodings results/encodings
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from _training import autocast, loss_of
from cyclopts import App
from transformers import AutoModelForCausalLM

import harness.encodings._model  # noqa: F401  # its class is known to AutoModelForCausalLM then
from harness.reports._write import save_csv

FOUND = 0.95  # the share of passkeys from which they count as learned
LONG = 8  # windows of the long forward
app = App(help=__doc__)


def fact_row(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a model's record says of its size, its losses and its passkeys."""
    curve = record["curve"]
    keys = [point["step"] for point in curve if point["passkey"] >= FOUND]
    return {
        "parameters": record["parameters"],
        "of the encoding": record["of_the_encoding"],
        "steps": record["recipe"]["steps"],
        "minutes of training": round(record["seconds"] / 60, 1),
        "held-out loss (nats)": curve[-1]["held_out"]["all"],
        "pass keys inside the window": curve[-1]["passkey"],
        "pass keys from step": keys[0] if keys else None,
    }


def works(model: Any, recipe: dict[str, Any]) -> dict[str, Callable[[], Any]]:
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


def timed(models: dict[str, dict[str, Callable[[], Any]]], rounds: int) -> pd.DataFrame:
    """Return the median CPU seconds of every work; the models take turns, after one round unseen.

    A model that cannot read the length has no number there.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds + 1):
        for name, works in models.items():
            for what, work in works.items():
                began = time.process_time()
                try:
                    work()
                except IndexError:  # beyond a learned table
                    continue
                seconds.setdefault((name, what), []).append(time.process_time() - began)
    middle = {key: median(taken[1:]) for key, taken in seconds.items()}
    return pd.Series(middle).unstack()


@app.default
def main(models: Path, out: Path, *, rounds: int = 5) -> None:
    """Write the table and the records.

    Args:
        models: Folder of the trained models.
        out: Where training.csv and the folder of records go.
        rounds: How often each work is timed.
    """
    torch.set_num_threads(1)
    files = sorted(models.glob("*/training.json"))
    records = {file.parent.name: json.loads(file.read_text()) for file in files}
    rows = {name: fact_row(record) for name, record in records.items()}
    table = pd.DataFrame.from_dict(rows, orient="index").convert_dtypes()
    loaded = {
        name: works(AutoModelForCausalLM.from_pretrained(models / name), record["recipe"])
        for name, record in records.items()
    }
    seconds = timed(loaded, rounds)
    first = next((name for name in seconds.index if name.startswith("rope-")), seconds.index[0])
    ratios = (seconds / seconds.loc[first]).round(2).add_suffix(f", times {first}")
    table = table.join(ratios)
    (out / "training").mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, out / "training" / f"{file.parent.name}.json")
    save_csv(table.rename_axis("model").reset_index(), out / "training.csv")


if __name__ == "__main__":
    app()
