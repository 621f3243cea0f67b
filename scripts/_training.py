"""Train a language model by a recipe: on text, repeated spans and, if it has them, passkeys."""

from __future__ import annotations

import math
import platform
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from transformers.utils import logging

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.data.documents import HELD_OUT_MODULES, HELD_OUT_TOPICS, held_out
from ropewalk.harness.errors import UserError
from ropewalk.harness.reports._text import counted
from ropewalk.harness.sweep.record import named
from ropewalk.tasks.passkey import Filler, framed, prompt
from ropewalk.tasks.types import TaskContext

logging.disable_progress_bar()  # of shards that are written: a log keeps every step of it
console = Console()
EVERY = 100  # steps between two progress lines
WATCHED = 60  # passkeys that a progress line tells of
FILLERS: tuple[Filler, ...] = ("standard", "documents")
# Neither measured nor trained on: pdb.py has the same text in its docstrings, in other lines.
SET_ASIDE_TOPICS = ("debugger",)
# Generated tables are neither prose nor written code. Tests quote the modules they test.
LEFT_OUT = ("encodings", "site-packages", "test", "tests", "idle_test", "pydoc_data", "ensurepip")
SHINGLE = 3  # consecutive lines; a training text has none of a held-out text


def training() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of all other documents, without passages of a held-out one.

    A passage is a run of SHINGLE lines of at least 60 characters. The same words in other lines
    remain: 1 % of the held-out words occur in runs of 20 or more in training texts too.
    """
    unseen = [text for _, text in held_out()] + [topics[topic] for topic in SET_ASIDE_TOPICS]
    seen = {run for text in unseen for _, run in _shingles(text)}
    root = Path(sysconfig.get_path("stdlib"))
    kept_out = {f"{module}.py" for module in HELD_OUT_MODULES}
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in LEFT_OUT]
    inside = (path for folder in folders for path in folder.rglob("*.py"))
    for path in sorted([*root.glob("*.py"), *inside]):
        name = path.relative_to(root).as_posix()
        generated = path.name.startswith("_sysconfigdata")
        if name not in kept_out and not generated and not set(Path(name).parts) & set(LEFT_OUT):
            yield name, _without(path.read_text(encoding="utf-8", errors="replace"), seen)
    for topic, text in sorted(topics.items()):
        if topic not in HELD_OUT_TOPICS + SET_ASIDE_TOPICS:
            yield f"topics/{topic}", _without(text, seen)


def _shingles(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield every run of SHINGLE lines that has at least 60 characters, and its first line."""
    bare = [line.strip() for line in text.splitlines()]
    for i in range(len(bare) - SHINGLE + 1):
        run = tuple(bare[i : i + SHINGLE])
        if sum(map(len, run)) >= 60:
            yield i, run


def _without(text: str, seen: set[tuple[str, ...]]) -> str:
    """Return the text without the lines of every run that is in ``seen``."""
    found = (first for first, run in _shingles(text) if run in seen)
    dropped = {line for first in found for line in range(first, first + SHINGLE)}
    kept = (line for i, line in enumerate(text.splitlines()) if i not in dropped)
    return "\n".join(kept) + "\n"


@dataclass(frozen=True)
class Recipe:
    """Every setting the weights depend on."""

    seed: int = 1
    steps: int = 1600
    window: int = 256
    rows: int = 32
    rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.1
    vocabulary: int = 2048
    width: int = 256
    layers: int = 6
    mlp: int = 768
    answer_weight: float = 8.0
    passkeys: bool = True  # a quarter of the rows; without them, these are text


class Row(NamedTuple):
    """One training window and the weight of every token in the loss."""

    tokens: list[int]
    weights: list[float]


def text_row(source: TaskContext, window: int, draw: Random) -> Row:
    """Draw a window of text: the begin token, then consecutive tokens of one document."""
    while True:
        passage = draw.choices(source.documents(), cum_weights=_cumulative(source))[0]
        tokens = passage.tokens
        if len(tokens) >= window:
            first = draw.randrange(len(tokens) - window + 2)
            kept = [*source.opening, *tokens[first : first + window - 1]]
            return Row(kept, [1.0] * window)


@cache
def _cumulative(source: TaskContext) -> list[int]:
    """Return the running sum of the passages' lengths: a token is drawn, not a document."""
    return list(accumulate(len(passage.tokens) for passage in source.documents()))


def passkey_row(source: TaskContext, recipe: Recipe, least: int, draw: Random) -> Row:
    """Draw a passkey prompt of random length, depth and filler; text follows a short one."""
    length = draw.randint(least, recipe.window)
    key, depth, filler = draw.randrange(10_000, 100_000), draw.random(), draw.choice(FILLERS)
    trial = prompt(source, length, key, depth, filler=filler, draw=draw)
    tokens, start = list(trial.tokens), trial.start
    weights = [1.0 if filler == "documents" else 0.2] * start
    weights += [recipe.answer_weight] * (length - start)
    rest = recipe.window - length
    if rest > 0:
        more = [*source.encode(".\n"), *text_row(source, recipe.window, draw).tokens[1:]]
        tokens += more[:rest]
        weights += [recipe.answer_weight, *[1.0] * (rest - 1)]
    return Row(tokens, weights)


def span_row(source: TaskContext, recipe: Recipe, draw: Random) -> Row:
    """Repeat a span of text or of random tokens, digits mixed in, until the window is full."""
    length = draw.randint(12, recipe.window // 2)
    if draw.random() < 0.5:
        span = text_row(source, recipe.window, draw).tokens[1 : length + 1]
    else:
        span = [draw.randrange(2, recipe.vocabulary) for _ in range(length)]
    digits = [token for digit in "0123456789" for token in source.encode(digit)]
    for _ in range(length // 6):
        span[draw.randrange(length)] = draw.choice(digits)
    copies = span * math.ceil(recipe.window / length)
    tokens = [*source.opening, *copies][: recipe.window]
    return Row(tokens, [0.1 if i <= length else 1.0 for i in range(recipe.window)])


def batch(
    source: TaskContext, recipe: Recipe, least: int, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and weights of a step, each (rows, window); a function of the step."""
    draw = Random(f"{recipe.seed}/{step}")
    spans = recipe.rows // 4
    keys = spans if recipe.passkeys else 0
    rows = [span_row(source, recipe, draw) for _ in range(spans)]
    rows += [passkey_row(source, recipe, least, draw) for _ in range(keys)]
    rows += [text_row(source, recipe.window, draw) for _ in range(recipe.rows - spans - keys)]
    return torch.tensor([r.tokens for r in rows]), torch.tensor([r.weights for r in rows])


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
    return Texts(source, watched, frame.taken + len(needle))


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
        logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
    ).view_as(tokens[:, 1:])
    quarter = window // 4
    parts = {"all": nll, "first_quarter": nll[:, :quarter], "last_quarter": nll[:, -quarter:]}
    return {name: round(float(part.mean()), 4) for name, part in parts.items()}


@torch.inference_mode()
def passkey_share(model: Any, source: TaskContext, window: int, least: int) -> float:
    """Return the share of passkeys found inside the window, for the progress line."""
    recovered = 0
    for trial in range(WATCHED):
        draw = Random(f"watch/{trial}")
        length = draw.randint(least, window)
        key, depth, filler = draw.randrange(10_000, 100_000), draw.random(), FILLERS[1 - trial % 2]
        asked = prompt(source, length, key, depth, filler=filler, draw=draw)
        logits = model(input_ids=torch.tensor([asked.tokens], device=model.device)).logits[0]
        answer = logits[asked.start - 1 : -1].argmax(-1).tolist()
        recovered += answer == list(asked.tokens[asked.start :])
    return round(recovered / WATCHED, 3)


def train(model: Any, recipe: Recipe, texts: Texts, title: str) -> dict[str, Any]:
    """Train a model; return how long it took, on what, and the curve of its progress lines."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": recipe.decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
    began, device, curve = time.time(), model.device, list[dict[str, Any]]()
    for step in track(range(recipe.steps), title, console=console):
        rows = batch(texts.source, recipe, texts.least, step)
        tokens, weights = (part.to(device) for part in rows)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        with autocast(device.type):
            loss = loss_of(model, tokens, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if not loss.isfinite():
            raise UserError(f"{title}: the loss of step {step + 1} is {loss}; training ends here.")
        if (step + 1) % EVERY == 0 or step + 1 == recipe.steps:
            held = held_out_loss(model, texts.watched, recipe.window)
            share = passkey_share(model, texts.watched, recipe.window, texts.least)
            entry = {"step": step + 1, "train_loss": round(loss.item(), 4)}
            curve.append(entry | {"held_out": held, "passkey": share})
            console.print(
                f"{time.time() - began:.0f} s, step {step + 1}: loss {loss:.2f}, held-out"
                f" {held['all']:.2f} nats, passkeys {share:.0%}"
            )
    threads = counted(torch.get_num_threads(), "threads")
    return {
        "seconds": round(time.time() - began),
        "machine": f"{named(str(device))}, {platform.machine()}, {threads}, {device}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "curve": curve,
    }
