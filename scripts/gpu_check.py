"""Check on one GPU what no CPU can show: results, host waits, memory and speed.

``python -m scripts.gpu_check --out FOLDER`` runs its sections for at most seven minutes and writes
``gpu_check.jsonl``, a line after each measurement. Each section has a time limit, and one that
fails is recorded. ``--device cpu --answers`` writes the answers of a CPU to compare to.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import ropewalk
from ropewalk.harness.engine import DEFAULT, OutOfMemory, memory, sdpa
from ropewalk.harness.engine.prefix_tree import build_tree
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.banded_attention import kept_of
from ropewalk.harness.patching.patch import answering
from ropewalk.harness.sweep.record import named
from ropewalk.scaling.types import Bands, Rotation
from ropewalk.tasks.types import Generate, Loglikelihood, ModelRequest
from scripts._measure import (
    RESULTS,
    ROOT,
    Row,
    build,
    one_pass,
    operations,
    replies,
    rotation_of,
    timed,
    tokens_of,
)

ANSWERS = RESULTS / "answers.json"
BOOK = ROOT / "results" / "smollm2" / "books" / "en-moby-dick.txt.gz"
PASSKEYS = ROOT / "results" / "smollm2" / "passkey.parquet" / "passkey"
HEADS = ROOT / "results" / "smollm2" / "heads.json"
RATE = 989e12  # operations per second of an H100 or H200, dense, in bfloat16
MOVED = ("none", "rerope", "gali", "lampe", f"dpe:heads={HEADS}")
BARS = {("135M", 1): 6, ("135M", 16): 1, ("8B", 1): 12, ("8B", 16): 2}  # ms per token


@dataclass(frozen=True)
class Check:
    """Where is measured; ``model`` has a window of 8192 tokens, and ``answers`` are written."""

    device: str
    quick: bool
    model: str | None
    answers: bool

    @property
    def gpu(self) -> bool:
        """Whether this is a GPU; what only a GPU has is left out elsewhere."""
        return torch.device(self.device).type == "cuda"

    def size(self, tokens: int) -> int:
        """Return a length, a short one in a smoke test."""
        return max(tokens // 256, 80) if self.quick else tokens

    def build(self, name: str) -> Any:
        """Return a model of seeded random weights in bfloat16, a tiny one in a smoke test."""
        gc.collect()
        if self.gpu:
            torch.cuda.empty_cache()
        return build("tiny" if self.quick else name, torch.bfloat16, self.device)


def prompts(model: Any, length: int, count: int, new: int) -> list[ModelRequest]:
    """Return requests for texts whose prompts differ in their last tokens and in their length."""
    shared = tokens_of(model, length - 64)
    ends = [tokens_of(model, 63 - 3 * n, n) for n in range(count)]
    return [Generate(shared + end, new, doc_id=f"text {n}") for n, end in enumerate(ends)]


def difference(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """Return by how much losses differ at most."""
    pairs = zip(chain(*ones), chain(*others), strict=True)
    return max(abs(one - other) for one, other in pairs)


def dense(
    query: Tensor, key: Tensor, value: Tensor, left: int, right: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return attention in float64 from its definition, its log-sum-exp, and what each row sees.

    Row i of R sees keys i + K - R - left to i + K - R + right of K; -1 is no bound.
    """
    rows, keys = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    key, value = (t.double().repeat_interleave(groups, 1) for t in (key, value))
    scores = query.double() @ key.mT * query.shape[-1] ** -0.5
    place = torch.arange(rows, device=query.device)[:, None] + keys - rows
    offset = torch.arange(keys, device=query.device) - place
    seen = (offset >= (-left if left >= 0 else -keys)) & (offset <= (right if right >= 0 else keys))
    scores = scores.masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ value, scores.logsumexp(-1), seen


def operators(check: Check) -> Iterator[Row]:
    """Compare attention to its definition in float64: windows, rows, heads and channels."""
    generator = torch.Generator(check.device).manual_seed(0)
    sizes = [(1023, 1023), (1, 4099), (15, 257), (129, 1000), (128, 2048), (1, 1)]
    channels = (64, 80, 96, 128, 192, 256)
    cases = [(r, k, 64, heads, w) for r, k in sizes for heads in ((9, 3), (8, 8)) for w in range(4)]
    cases += [(129, 1000, d, (32, 8), w) for d in channels for w in (0, 2)]
    for rows, keys, width, (heads, groups), window in cases[:: 12 if check.quick else 1]:
        past = keys - rows
        left, right = [(-1, 0), (-1, -1), (past // 2 + 3, 0), (past, -1)][window]
        for dtype in (torch.bfloat16, torch.float32):
            draw = partial(torch.randn, device=check.device, generator=generator)
            query, key, value = (
                draw(1, count, length, width).to(dtype)
                for count, length in ((heads, rows), (groups, keys), (groups, keys))
            )
            out, lse, seen = dense(query, key, value, left, right)
            if not check.gpu:  # the definition beside PyTorch's
                got = scaled_dot_product_attention(query, key, value, seen, enable_gqa=True)
                sums = lse
            elif dtype == torch.float32:
                if window > 1:
                    continue
                got, sums = sdpa.on_cuda(query, key, value, None, causal=right == 0)
            else:
                got, sums = sdpa.flash(query, key, value, width**-0.5, left, right)
            errors = [float((got - out).abs().max()), float((sums - lse).abs().max())]
            bars = (1e-2, 1e-3) if dtype == torch.bfloat16 else (1e-4, 1e-4)
            shape = f"{rows} rows of {keys} keys, {heads}:{groups} heads of {width}"
            yield {
                "what": f"{str(dtype)[6:]}, {shape}, left {left}, right {right}", "errors": errors,
                "ok": all(a < b for a, b in zip(errors, bars, strict=True)),
            }  # fmt: skip


def answers(check: Check) -> Iterator[Row]:
    """Compare losses and texts in float32 to those of a CPU, which ``ANSWERS`` holds."""
    known = json.loads(ANSWERS.read_text(encoding="utf-8")) if ANSWERS.exists() else {}
    book = gzip.decompress(BOOK.read_bytes()).decode()
    methods = ("none", "yarn", "rerope", "lampe", "gali", MOVED[-1])  # its heads are a model's
    models = [("reference", None, 700, methods[:-1]), (check.model or "", 512, 1300, methods)]
    for name, window, length, measured in models[: 1 if check.model is None else 2]:
        opened = open_checkpoint(name, dtype="float32", device=check.device, trained_length=window)
        model, words = load_weights(opened), opened.tokenizer(book[:9000])["input_ids"]
        # Prompts of different lengths; the first is beyond the window.
        ends = [slice(0, length - 16), *(slice(40 * n, 53 * n + 60) for n in range(1, 12))]
        requests = [Generate(tuple(words[end]), 12, doc_id="text") for end in ends]
        scored = Loglikelihood(tuple(words[:length]), length - 128, doc_id="book")
        table = known.setdefault(opened.label, {})
        for method in measured[: 1 if check.quick else None]:
            label = method.partition(":")[0]
            asked = [scored, *(requests if method in methods[:3] else ())]
            rotation = rotation_of(model, method, length, opened.rope)
            first, *written = replies(model, rotation, asked, opened.decode)
            losses = [round(loss, 6) for loss in first.nll]
            tokens = [list(text.tokens) for text in written]
            if check.answers:
                table[label] = {"losses": losses, "texts": tokens}
            own = table[label]
            error, equal = difference([losses], [own["losses"]]), tokens == own["texts"]
            yield {
                "what": f"{opened.label}, {label}, {length} tokens, float32",
                "error": error, "texts": len(tokens), "ok": error < 1e-4 and equal,
            }  # fmt: skip
    if check.answers:
        text = json.dumps(known, separators=(",", ":")).replace("}", "}\n")
        ANSWERS.write_text(text + "\n", encoding="utf-8")


def too_little_memory(check: Check) -> Iterator[Row]:
    """Request one impossible pass among possible ones with a third of the memory."""
    model = check.build("8B")
    possible = [one_pass(model, 2048, 2047, seed) for seed in range(4)]
    rotation = rotation_of(model, "none", 2048)
    expected = replies(model, rotation, possible)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.3)
    try:
        got = replies(model, rotation, [*possible[:2], one_pass(model, 2**20, 8), *possible[2:]])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    lost = [place for place, one in enumerate(got) if isinstance(one, OutOfMemory)]
    rest = [one.nll for one in got if not isinstance(one, OutOfMemory)]
    error = difference(rest, [one.nll for one in expected]) if lost == [2] else None
    # Requests computed again are so in small chunks, where bfloat16 rounds otherwise.
    ok = error is not None and error < 0.5
    yield {"what": "8B", "out_of_memory": lost, "error": error, "ok": ok}


def passkeys(check: Check) -> Iterator[Row]:
    """Measure a grid of passkeys by a whole run, and compare it to the stored one of a GPU."""
    small = check.quick or check.model is None
    grid = "depths=2,trials=1" if small else "depths=10,trials=5"
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = ropewalk.run(
            check.model or "reference", scaling=["none", "yarn:factor=2"], task=f"passkey:{grid}",
            length=["128", "512"] if small else ["8192", "16384"], dtype="bfloat16",
            device=check.device, out=f"{folder}/run",
        )  # fmt: skip
        taken, table = time.perf_counter() - began, run.frame()
    row: Row = {"what": f"{len(table)} samples", "seconds": taken}
    row["ok"] = bool(table["status"].eq("ok").all())
    if not small:
        keys = ["scaling", "length", "unit"]
        both = table.merge(ropewalk.frame(PASSKEYS), on=keys, suffixes=("", "_stored"))
        row["same"] = float((both["value"] == both["value_stored"]).mean())
        row["ok"] &= len(both) == 200 and row["same"] >= 0.95
    yield row


def counted(
    model: Any, rotation: Rotation, requests: Sequence[ModelRequest]
) -> tuple[int, int, list[str]]:
    """Return the waits for the GPU, its kernels, and the places of the waits, without patching."""
    with answering(model, rotation, decode=lambda _: "") as answer:
        list(answer(requests))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            list(answer(requests))
            torch.cuda.set_sync_debug_mode("default")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            list(answer(requests))
            torch.cuda.synchronize()
    waits = [
        f"{Path(w.filename).name}:{w.lineno}" for w in caught if "called a synch" in str(w.message)
    ]
    kernels = sum("CUDA" in str(one.device_type) for one in profiler.events() or ())
    return len(waits), kernels, sorted(set(waits))


def waits(check: Check) -> Iterator[Row]:
    """Count waits and kernels of a pass under methods, and of a token."""
    model = check.build("135M")
    for method in MOVED:
        rotation, label = rotation_of(model, method, 16_384), method.partition(":")[0]
        count, kernels, places = counted(model, rotation, [one_pass(model, 16_384, 64)])
        yield {
            "what": f"135M, 16384 tokens, {label}", "waits": count, "kernels": kernels,
            "places": places, "ok": count <= 3,
        }  # fmt: skip
    plain = rotation_of(model, "none", 1024)
    for count in (1, 16):
        few, many = (counted(model, plain, prompts(model, 1024, count, new)) for new in (8, 40))
        per_token = (many[0] - few[0]) / 32
        yield {
            "what": f"135M, one step of {count} texts", "waits": per_token, "places": many[2],
            "kernels": (many[1] - few[1]) / 32, "ok": per_token <= 1,
        }  # fmt: skip


def decoding(check: Check) -> Iterator[Row]:
    """Time a token of 1 and 16 texts, and compare texts alone to the same ones together."""
    for name in ("135M", "8B")[: 1 if check.quick else 2]:
        model = check.build(name)
        plain = rotation_of(model, "none", 1024)
        cases = [("none", *case) for case in product((2048, 16_384), (1, 16))]
        for method, length, count in [*cases, *[("rerope", 16_384, 16)] * (name == "135M")]:
            size = check.size(length)
            asked = (prompts(model, size, count, new) for new in (16, 64))
            rotation = rotation_of(model, method, size + 64)
            few, many = (partial(replies, model, rotation, one) for one in asked)
            many()
            first, second = (timed(work, check.device)[0] for work in (few, many))
            milliseconds = 1000 * (second - first) / 48 / count
            yield {
                "what": f"{name}, {size} tokens, {count} texts, {method}",
                "ms_per_token": milliseconds, "prompts_s": first,
                "ok": milliseconds <= BARS[name, count] or not check.gpu,
            }  # fmt: skip
        length = check.size(9000)  # a pack of its own: the same keys whatever else is requested
        ends = [tokens_of(model, length - 7 * seed, seed) for seed in range(6)]
        requests = [Generate(prompt, 32, doc_id="text") for prompt in ends]
        alone = [replies(model, plain, [request])[0] for request in requests]
        equal = sum(a == b for a, b in zip(replies(model, plain, requests), alone, strict=True))
        what = f"{name}, {length} tokens, texts with the same bits alone and together"
        yield {"what": what, "equal": equal, "of": len(alone), "ok": equal == len(alone)}


def prefill(check: Check) -> Iterator[Row]:
    """Time passes under methods, and compare their memory to its estimate."""
    plain = 0.0
    for name, lengths in (("135M", (16_384,)), ("8B", (32_768, 131_072))):
        model = check.build(name)
        methods = MOVED if name == "135M" and not check.quick else MOVED[:2]
        for length, method in product(lengths, methods):
            count = check.size(length)
            request = one_pass(model, count, targets := min(1024, count // 2))
            rotation, label = rotation_of(model, method, count), method.partition(":")[0]
            run = partial(replies, model, rotation, [request])
            if length < 100_000:
                run()
            before, peak = 0, None
            if check.gpu:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            repeats = range(3 if length < 40_000 else 1)
            taken = median(timed(run, check.device)[0] for _ in repeats)
            if check.gpu:
                peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            plain = taken if method == "none" else plain
            shape = memory.Shape.of(model.config, model.dtype.itemsize).on(model.device)
            moved = kept_of(rotation) if isinstance(rotation, Bands) else memory.Moved()
            tree = build_tree([request.tokens])
            reckoned = memory.shared(shape, tree, targets, DEFAULT, (), moved) / 2**20
            unscored = 2 * (count - targets) * model.config.vocab_size * model.config.hidden_size
            use = (sum(operations(model.config, count)) - unscored) / taken / RATE
            bars = (
                taken <= plain * (8 if method == MOVED[-1] else 3),
                taken <= 0.08 or (name, method) != ("135M", "none"),
                use >= 0.45 or (length, method) != (131_072, "none"),
                (peak or 0) <= 1.05 * reckoned,
            )
            yield {
                "what": f"{name}, {count} tokens, {label}", "seconds": taken,
                "times_plain": taken / plain, "mfu": use, "peak_mib": peak,
                "estimate_mib": reckoned, "ok": all(bars) or not check.gpu,
            }  # fmt: skip


# The seconds that each may take, in this order, and whether it needs a GPU.
SECTIONS: dict[str, tuple[Callable[[Check], Iterator[Row]], int, bool]] = {
    "operators": (operators, 30, False),
    "answers": (answers, 75, False),
    "waits": (waits, 45, True),
    "decoding": (decoding, 110, False),
    "prefill": (prefill, 120, False),
    "passkeys": (passkeys, 60, False),
    "memory": (too_little_memory, 40, True),
}


def measured(check: Check, name: str, left: float) -> Iterator[Row]:
    """Yield the rows of a section, and one more for its error or its end."""
    section, limit, needs_gpu = SECTIONS[name]
    if needs_gpu and not check.gpu:
        yield {"what": "left out: it needs a GPU", "ok": True}
        return

    def stop(*_: Any) -> None:
        raise TimeoutError("the time limit of this section")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(min(limit, left), 1) if check.gpu else 0)
    began = time.perf_counter()
    try:
        yield from section(check)
    except Exception as error:  # noqa: BLE001  # it is recorded, and the next section begins
        where = traceback.format_exc().strip().splitlines()[-12:]
        yield {"what": f"{type(error).__name__}: {error}", "where": where, "ok": False}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    yield {"what": "whole section", "section_s": time.perf_counter() - began, "ok": True}


def main(words: Sequence[str] | None = None) -> int:
    """Run the sections of the command line; return 1 if any measurement misses its bar."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="names with commas")
    parser.add_argument("--model", help="a model with a window of 8192 tokens, as SmolLM2-135M")
    parser.add_argument("--seconds", type=float, default=420, help="for all sections")
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu_check.jsonl")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--answers", action="store_true", help="write the answers of this device")
    given = parser.parse_args(words)
    names = given.sections.split(",")
    if unknown := sorted(set(names) - set(SECTIONS)):
        parser.error(f"no section is called {unknown[0]}; write some of {', '.join(SECTIONS)}.")
    transformers.utils.logging.set_verbosity_error()
    if given.device == "cpu":
        torch.set_num_threads(1)
    check = Check(given.device, given.quick, given.model, given.answers)
    given.out.mkdir(parents=True, exist_ok=True)
    began, ok = time.perf_counter(), True
    versions = {one.__name__: one.__version__ for one in (torch, transformers)}
    about = {"section": "about", "device": named(given.device), **versions}
    with (given.out / "gpu_check.jsonl").open("a", encoding="utf-8") as file:
        print(json.dumps(about), file=file, flush=True)
        for name in names:
            for row in measured(check, name, given.seconds + began - time.perf_counter()):
                line = {"section": name, **row}
                print(json.dumps(line), file=file, flush=True)
                if "errors" not in row or not row["ok"]:
                    print("   " if row["ok"] else "!! ", json.dumps(line), flush=True)
                ok &= row["ok"]
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
