"""Train a language model by a recipe, resumable: what the training scripts share."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from _mixture import Recipe, batch
from cyclopts import App, CycloptsError
from rich.console import Console
from rich.progress import track
from transformers.utils import logging

from harness.data.corpus import make_context
from harness.data.embedded import held_out
from harness.errors import UserError
from harness.files import make_folder
from harness.names import printable
from harness.reports.writing.sentences import counted
from harness.sweep.record import named
from tasks.passkey import framed, prompt
from tasks.types import TaskContext

logging.disable_progress_bar()  # of shards that are written: a log keeps every step of it
console = Console()
WATCHED = 60  # pass keys that a progress line tells of


def start(app: App) -> None:
    """Run a script's command; a user's error is one sentence on stderr and exit status 2."""
    try:
        app(sys.argv[1:], result_action="return_value", exit_on_error=False, print_error=False)
    except (CycloptsError, UserError) as error:
        told = f"{Path(sys.argv[0]).stem}: {printable(' '.join(str(error).split()))}"
        Console(stderr=True).print(told, highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


def machine(device: Any) -> str:
    """Name what a model was trained on: processor or GPU, and the threads."""
    threads = counted(torch.get_num_threads(), "threads")
    return f"{named(str(device))}, {platform.machine()}, {threads}, {device}"


@dataclass(frozen=True)
class Texts:
    """What is trained on and what is watched, in tokens, and the length of the shortest prompt."""

    source: TaskContext
    watched: TaskContext
    least: int


def read_texts(tokenizer: Any, documents: Sequence[tuple[str, str]], window: int) -> Texts:
    """Return the documents in a tokenizer's tokens, and the embedded held-out ones."""
    source = make_context(tokenizer, lambda: documents, window)
    watched = make_context(tokenizer, held_out, window)
    frame, needle = framed(source, 10_000)
    return Texts(source, watched, frame.taken(0) + len(needle))


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then cosine decay to a fiftieth."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    turn = math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(turn)))


def autocast(kind: str) -> torch.autocast:
    """Compute products in bfloat16 on this kind of device, if it does so fast."""
    fast = kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.autocast(kind, torch.bfloat16, enabled=fast)


def loss_of(model: Any, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean negative log-likelihood in nats."""
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    # The last token has no next one: its row is ignored, as to cut it off copies all logits twice.
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    nll = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none"
    ).view_as(tokens)[:, :-1]
    kept = weights[:, 1:]
    return (nll * kept).sum() / kept.sum()


@torch.inference_mode()
def held_out_loss(model: Any, source: TaskContext, window: int) -> dict[str, float]:
    """Return the mean loss over held-out windows, and over their first and last quarter."""
    rows = [
        [*source.opening, *passage.tokens[first : first + window - 1]]
        for passage in source.documents()
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
def passkey_share(model: Any, source: TaskContext, window: int, least: int) -> float:
    """Return the share of pass keys found inside the window, for the progress line."""
    found = 0
    for trial in range(WATCHED):
        draw = Random(f"watch/{trial}")
        made = prompt(
            source, draw.randint(least, window), draw.randrange(10_000, 100_000),
            draw.random(), filler="standard" if trial % 2 else "documents", draw=draw,
        )  # fmt: skip
        logits = model(input_ids=torch.tensor([made.tokens], device=model.device)).logits[0]
        said = logits[made.start - 1 : -1].argmax(-1).tolist()
        found += said == list(made.tokens[made.start :])
    return round(found / WATCHED, 3)


class Training:
    """A model, its optimizer, and how far they are; read back from a checkpoint in ``out``.

    ``settings`` are those that the weights depend on: a checkpoint of others is refused.
    """

    def __init__(
        self, model: Any, recipe: Recipe, texts: Texts, out: Path, settings: Mapping[str, Any]
    ) -> None:
        self.model, self.recipe, self.texts, self.out = model, recipe, texts, out
        self.settings = dict(settings)
        decayed = [p for p in model.parameters() if p.dim() > 1]
        scales = [p for p in model.parameters() if p.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": recipe.decay},
            {"params": scales, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
        self.state: dict[str, Any] = {"step": 0, "seconds": 0.0, "curve": []}
        if (out / "checkpoint.pt").exists():
            self._read(out / "checkpoint.pt")

    def _read(self, checkpoint: Path) -> None:
        saved = torch.load(checkpoint, weights_only=True, map_location=self.model.device)
        if saved["recipe"] != self.settings:
            raise UserError(f"{self.out} holds a run of another recipe: {saved['recipe']}")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state = saved["state"]

    def step(self, number: int) -> float:
        """Train on the batch of a step, a function of seed and number; return its loss."""
        rows = batch(self.texts.source, self.recipe, self.texts.least, number)
        tokens, weights = (part.to(self.model.device) for part in rows)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, number)
        with autocast(self.model.device.type):
            loss = loss_of(self.model, tokens, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def run(self, every: int, title: str = "Training") -> dict[str, Any]:
        """Take the steps that are left, save and watch ``every`` so many; return the record."""
        began, steps = time.time(), range(self.state["step"], self.recipe.steps)
        for number in track(steps, title, console=console):
            loss = self.step(number)
            if not math.isfinite(loss):
                raise UserError(
                    f"{title}: the loss of step {number + 1} is {loss}; training ends here."
                )
            if (number + 1) % every == 0 or number + 1 == self.recipe.steps:
                self.state["seconds"] += time.time() - began
                began = time.time()
                self._watch(number + 1, loss)
        return {
            "recipe": self.settings,
            "seconds": round(self.state["seconds"]),
            "machine": machine(self.model.device),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "curve": self.state["curve"],
        }

    def _watch(self, done: int, loss: float) -> None:
        """Append to the curve, and write a checkpoint beside the last, then in its place."""
        window, (_, watched, least) = self.recipe.window, vars(self.texts).values()
        held_out = held_out_loss(self.model, watched, window)
        found = passkey_share(self.model, watched, window, least)
        entry = {
            "step": done, "train_loss": round(loss, 4), "held_out": held_out, "passkey": found
        }  # fmt: skip
        self.state["curve"].append(entry)
        self.state["step"] = done
        console.print(
            f"{self.state['seconds']:.0f} s, step {done}: loss {loss:.2f}, held-out"
            f" {held_out['all']:.2f} nats, pass keys {found:.0%}"
        )
        whole = {
            "recipe": self.settings, "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "state": self.state,
        }  # fmt: skip
        make_folder(self.out)
        torch.save(whole, self.out / "checkpoint.new")
        (self.out / "checkpoint.new").replace(self.out / "checkpoint.pt")
