"""What a row is measured with, and what it comes to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import AutoModelForCausalLM, LlamaConfig

SHAPES = {"S": (512, 8, 32_000), "XS": (256, 4, 4096), "1B": (2048, 16, 128_256)}
MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """Where and how often rows are measured; ``quick`` shrinks every input to a smoke test."""

    device: str = "cpu"
    repeats: int = 3
    quick: bool = False

    def clock(self) -> float:
        """Return seconds: of this process on a CPU, whatever its neighbours do; else of a wall."""
        if torch.device(self.device).type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def interleaved(self, *ways: Callable[[], Any], turns: int | None = None) -> list[list[float]]:
        """Return the seconds of each way, one after another in ``turns`` (default: repeats)."""
        found: list[list[float]] = [[] for _ in ways]
        for _ in range(turns or (1 if self.quick else self.repeats)):
            for seconds, way in zip(found, ways, strict=True):
                began = self.clock()
                way()
                seconds.append(self.clock() - began)
        return found

    def size(self, tokens: int) -> int:
        """Return a length, an eighth of it in a smoke test."""
        return tokens // 8 if self.quick else tokens


@dataclass(frozen=True)
class Row:
    """One line of the table: a value, its spread over the repeats, and the bar it is held to."""

    name: str
    what: str
    value: float
    low: float
    high: float
    unit: str
    bar: float | None
    above: bool
    equal: str

    @property
    def met(self) -> bool | None:
        """Tell whether the bar is met; None where there is none."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.above else self.value <= self.bar


def row(
    name: str, what: str, values: Sequence[float], unit: str, bar: float | None, equal: str = "",
    *, above: bool = True,
) -> Row:  # fmt: skip
    """Make a row of the values of all repeats."""
    middle = statistics.median(values)
    return Row(name, what, middle, min(values), max(values), unit, bar, above, equal)


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratio of each turn."""
    return [a / b for a, b in zip(one, other, strict=True)]


def over_law(
    name: str, gained: Sequence[float], law: float, of: str = "FLOP law", bar: float | None = 1.0
) -> Row:
    """Make the row below one: what was gained over the ratio of the operations themselves."""
    return row(name, f"the same over the {of} {law:.2f}", [g / law for g in gained], "x", bar)


def config(shape: str, **changes: Any) -> LlamaConfig:
    """Return a Llama config of one of the named shapes."""
    width, layers, vocabulary = SHAPES[shape]
    given = {
        "hidden_size": width,
        "intermediate_size": width * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**{**given, **changes})


def build(setting: Setting, shaped: LlamaConfig, dtype: torch.dtype) -> Any:
    """Return a model of seeded random weights."""
    torch.manual_seed(0)
    with torch.device(setting.device):
        return AutoModelForCausalLM.from_config(shaped, dtype=dtype).eval()


def tokens(model: Any, count: int, seed: int = 0) -> tuple[int, ...]:
    """Draw tokens."""
    return tuple(Random(seed).choices(range(model.config.vocab_size), k=count))


def operations(shaped: Any, length: int) -> float:
    """Return multiplications and additions of a forward with full logits (the FLOP law)."""
    heads = shaped.num_attention_heads * shaped.head_dim
    groups = shaped.num_key_value_heads * shaped.head_dim
    width, layers = shaped.hidden_size, shaped.num_hidden_layers
    linear = (
        2 * layers * (2 * width * heads + 2 * width * groups + 3 * width * shaped.intermediate_size)
    )
    head = 2 * width * shaped.vocab_size
    return float(length * (linear + head) + 2 * layers * heads * length * (length + 1))


def counted(run: Callable[[], Any]) -> int:
    """Count the operations of what is run on a CPU; of causal attention, of what it may see."""

    def fused(
        query: Any, key: Any, value: Any, _: float = 0.0, causal: bool = False, **__: Any
    ) -> int:
        whole = int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
        rows = query[-2]
        return whole * (rows + 1) // (2 * key[-2]) if causal else whole

    cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={cpu: fused}) as counter:
        run()
    return int(counter.get_total_flops())


@torch.no_grad()
def peer_loss(model: Any, given: Sequence[int], scored: int | None = None) -> float:
    """Return the mean loss as peers compute it: one forward, labels, full logits, a cache."""
    ids = torch.tensor([given], device=model.device)
    labels = ids.clone()
    if scored is not None:
        labels[:, :-scored] = -100
    return float(model(input_ids=ids, labels=labels).loss)


def agree(one: Sequence[float], other: Sequence[float], dtype: torch.dtype) -> str:
    """Assert that mean losses are equal to the rounding of a type; say how far they are apart."""
    allowed = 1e-5 if dtype == torch.float32 else 2e-3
    apart = max(abs(a - b) / b for a, b in zip(one, other, strict=True))
    assert apart <= allowed, f"results differ by {apart:.1e}, allowed {allowed:.0e}"
    return f"losses within {apart:.0e}"
