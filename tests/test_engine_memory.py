"""Memory told before a run against what a process of its own comes to; sizes that fit a limit."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from harness.engine import Sizes, answers, memory
from harness.engine.prefix_tree import build_tree
from tasks._types import Question
from tests.child import in_child

LOCKED = 1 | 2 | 4  # MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT


def child(
    width: int, layers: int, vocabulary: int, pack: int, length: int, forks: int, chunk: int,
    new: int, dtype: str,
) -> None:  # fmt: skip
    """Print how many bytes the engine takes at most, in a process of its own."""
    shaped = config(width, layers, vocabulary)
    model = AutoModelForCausalLM.from_config(shaped, dtype=getattr(torch, dtype)).eval()

    def ask(length: int) -> list[Question]:
        many = [
            Question("q", length, tokens, length - 9 if fork else 1)
            for fork, tokens in enumerate(asked(length, forks))
        ]
        if new:
            many = [Question("t", q.length + new, q.tokens, q.length, new=new) for q in many]
        return many

    sizes = Sizes(pack=pack, chunk=chunk)
    # A system may take idle pages and give them back in the midst, which would count: hold them.
    system = ctypes.CDLL(None)
    system.mlockall(LOCKED)
    # Code that is met first would count as memory, and what is free already would not.
    list(answers(model, ask(length), sizes, str))
    system.munlockall()  # what is held cannot be trimmed
    system.malloc_trim(0)
    system.mlockall(LOCKED)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    list(answers(model, ask(length), sizes, str))
    sys.stdout.write(str(status("VmHWM") - before))


def status(field: str) -> int:
    """Return a size of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def config(width: int, layers: int, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 128, vocab_size=vocabulary,
        tie_word_embeddings=False,
    )  # fmt: skip


def asked(length: int, forks: int) -> list[tuple[int, ...]]:
    """Return the sequences that the child process asks about."""
    text = [(31 * i * i + 7 * i) % 1000 for i in range(length)]
    many = [tuple(text)]
    for fork in range(forks):
        rest = [(fork + 3 * i) % 1000 for i in range(length // 2)]
        many.append((*text[: length - len(rest)], *rest))
    return many


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("width", "layers", "vocabulary", "pack", "length", "forks", "chunk", "new", "dtype"),
    [
        (256, 2, 32_000, 8192, 2048, 0, 2048, 0, "float32"),
        (256, 2, 4096, 4096, 4096, 0, 512, 0, "bfloat16"),
        (512, 2, 4096, 8192, 4096, 0, 2048, 0, "float32"),
        (256, 2, 4096, 2048, 4096, 2, 2048, 0, "float32"),
        (256, 4, 4096, 4096, 4096, 1, 2048, 5, "float32"),
    ],
)
def test_the_estimate_is_what_is_measured(
    width: int, layers: int, vocabulary: int, pack: int, length: int, forks: int, chunk: int,
    new: int, dtype: str,
) -> None:  # fmt: skip
    """The peak of a process, above the loaded model, is within a quarter of what was told."""
    given = (width, layers, vocabulary, pack, length, forks, chunk, new, dtype)
    shape = memory.Shape.of(config(width, layers, vocabulary), 4 if dtype == "float32" else 2)
    tree = build_tree(asked(length, forks))
    texts = [(path, length + new) for path in tree.paths] if new else []
    told = memory.shared(shape, tree, 1 if new else length, Sizes(pack, chunk), texts)
    for _ in range(4):  # the allocator keeps more of what is freed at some times than at others
        measured = int(in_child(child, *given).out)
        if told == pytest.approx(measured, rel=0.25):
            break
    assert told == pytest.approx(measured, rel=0.25), f"{told / 2**20:.0f} {measured / 2**20:.0f}"


def test_smaller_sizes_need_less() -> None:
    """The first sizes are the engine's own, and some of those that follow need half as much."""
    shape = memory.Shape(512, 8, 8, 64, 1408, 8, 32_000, 2)
    tree = build_tree([tuple(range(seed, seed + 3000)) for seed in range(0, 9000, 3000)])
    tried = Sizes().smaller
    needs = [memory.shared(shape, tree, 9000, sizes) for sizes in tried]
    assert tried[0] == Sizes()
    assert min(needs) < needs[0] / 2
    assert len(set(tried)) == len(tried)
