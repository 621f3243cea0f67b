"""Measure Ropewalk beside the usual way and write the tables of results/benchmarks.

``python -m scripts.bench`` measures every row, both sides in turn, on one thread of a CPU.
``--only prefix --out FOLDER`` measures one row; ``--quick --out FOLDER`` is a smoke test with short
inputs.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, LlamaConfig

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.engine import answers
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load
from ropewalk.harness.sweep.record import named
from ropewalk.tasks import passkey
from ropewalk.tasks.types import Loglikelihood
from ropewalk.tasks.types import LoglikelihoodResponse as Response

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
SHAPE = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "vocab_size": 32_000,
    "num_attention_heads": 8, "num_key_value_heads": 8,
}  # fmt: skip
LABELS = "transformers' forward with labels"
Row = dict[str, Any]


def dtypes() -> tuple[torch.dtype, ...]:
    """Return the types to measure: bfloat16 only where the processor has instructions for it."""
    return (torch.float32, *[torch.bfloat16] * torch.ops.mkldnn._is_mkldnn_bf16_supported())


def seconds(work: Callable[[], Any]) -> float:
    """Return the CPU time of this process that some work takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def in_turn(quick: bool, *ways: Callable[[], float]) -> list[list[float]]:
    """Return the figures of each way, repeat by repeat."""
    repeats = [[way() for way in ways] for _ in range(1 if quick else 3)]
    return [list(figures) for figures in zip(*repeats, strict=True)]


def row(
    what: str,
    peer: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    bar: float | None = None,
    equal: str = "",
) -> Row:
    """Return a line of the table, from the figures of all repeats on both sides.

    ``bar`` is what the ratio should be at most, ``equal`` how the results of both sides differ.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "what": what, "peer": peer, "unit": unit, "ours": statistics.median(ours),
        "theirs": statistics.median(theirs), "ratio": statistics.median(ratios),
        "low": min(ratios), "high": max(ratios), "bar": bar, "equal": equal,
    }  # fmt: skip


def build(dtype: torch.dtype, **changes: Any) -> Any:
    """Return a model of seeded random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(**{**SHAPE, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def request(model: Any, count: int) -> Loglikelihood:
    """Return a request for the losses of random tokens; a shorter text begins the longer one."""
    text = Random(0).choices(range(model.config.vocab_size), k=count)
    return Loglikelihood(tuple(text), 1, doc_id="text")


def answered(model: Any, requests: Sequence[Loglikelihood]) -> list[Any]:
    """Return the engine's responses in the order of the requests."""
    return [response for _, response in sorted(answers(model, requests), key=itemgetter(0))]


@torch.no_grad()
def peer_loss(model: Any, asked: Loglikelihood) -> float:
    """Return the mean loss as peers compute it: one forward, labels, full logits, a cache."""
    ids = torch.tensor([asked.tokens])
    return float(model(input_ids=ids, labels=ids).loss)


def compare(
    quick: bool, model: Any, requests: Sequence[Loglikelihood], *others: Callable[[], float]
) -> tuple[list[list[float]], str]:
    """Time the engine, one forward with labels per request, and others.

    The losses must be equal to rounding; the text returned says how much they differ.
    """
    losses = {}

    def engine() -> None:
        losses["engine"] = [statistics.fmean(one.nll) for one in answered(model, requests)]

    def peer() -> None:
        losses["peer"] = [peer_loss(model, one) for one in requests]

    engine()  # verifies the model, once
    taken = in_turn(quick, partial(seconds, engine), partial(seconds, peer), *others)
    pairs = zip(losses["engine"], losses["peer"], strict=True)
    difference = max(abs(ours - theirs) / theirs for ours, theirs in pairs)
    assert difference <= (1e-5 if model.dtype == torch.float32 else 2e-3), difference
    return taken, f"losses within {difference:.0e}"


def operations(shaped: Any, length: int) -> tuple[float, float]:
    """Return the multiplications and additions of a forward with full logits.

    The first number counts matrix products, the second causal attention.
    """
    heads = shaped.num_attention_heads * shaped.head_dim
    groups = shaped.num_key_value_heads * shaped.head_dim
    width, layers = shaped.hidden_size, shaped.num_hidden_layers
    per_layer = 2 * width * heads + 2 * width * groups + 3 * width * shaped.intermediate_size
    products = 2 * length * (layers * per_layer + width * shaped.vocab_size)
    return float(products), float(2 * layers * heads * length * (length + 1))


def kernel_seconds(quick: bool, model: Any, length: int) -> float:
    """Return what a pass takes at the speeds of one matrix product and of causal attention."""
    draw = partial(torch.randn, dtype=model.dtype)
    rows = 128 if quick else 2048
    one, other, (query, key, value) = draw(rows, 512), draw(512, 1408), draw(3, 1, 8, length, 64)
    attend = partial(scaled_dot_product_attention, query, key, value, is_causal=True)

    def each(kernel: Callable[[], object], times: int) -> float:
        turns = range(1 if quick else 5)
        taken = [seconds(lambda: [kernel() for _ in range(times)]) for _ in turns]
        return statistics.median(taken) / times

    products, attention = operations(model.config, length)
    speed = 2 * rows * 512 * 1408 / each(lambda: torch.mm(one, other), 2 if quick else 40)
    return products / speed + attention * each(attend, 2) / (2 * 8 * 64 * length * (length + 1))


def prefix(quick: bool) -> Iterator[Row]:
    """Score the first tokens of a document at eight lengths."""
    for dtype in dtypes():
        model, longest = build(dtype), 256 if quick else 4096
        lengths = [longest * step // 8 for step in range(1, 9)]
        (ours, theirs), equal = compare(quick, model, [request(model, n) for n in lengths])
        costs = [sum(operations(model.config, n)) for n in lengths]
        what = f"prefix curve of 8 lengths to {longest}, S, {str(dtype)[6:]}"
        bar = costs[-1] / sum(costs)  # every token once
        yield row(what, f"{LABELS}, per length", "s", ours, theirs, bar, equal)


def passes(quick: bool) -> Iterator[Row]:
    """Score a text in one pass, beside transformers and beside the operations alone."""
    for dtype in dtypes():
        length, share = (2048, 0.80) if dtype == torch.float32 else (4096, 0.65)
        length, model = length // 16 if quick else length, build(dtype)
        kernels = partial(kernel_seconds, quick, model, length)
        (ours, theirs, alone), equal = compare(quick, model, [request(model, length)], kernels)
        what = f"pass of {length} tokens, S, {str(dtype)[6:]}"
        yield row(what, LABELS, "s", ours, theirs, 1.0, equal)
        yield row(what, "its matrix products and attention", "s", ours, alone, 1 / share)


def passkeys(quick: bool) -> Iterator[Row]:
    """Measure a passkey grid of the reference model under YaRN."""
    opened = open_checkpoint("reference", dtype="float32", device="cpu")
    model, rope = load_weights(opened), opened.rope
    context = make_context(opened.tokenizer, list, rope.trained_length)
    lengths, trials = ([512], 2) if quick else ([512, 1024, 2048], 4)
    asked = list(passkey.ask(context, lengths, depths=5, trials=trials))
    found: dict[str, Sequence[Response]] = {}

    def engine() -> None:
        found["engine"] = answered(model, asked)

    def peer() -> None:
        found["peer"] = [generated(model, one) for one in asked]

    # A factor at which some keys are recovered and some are missed.
    with patched(model, resolve(load("method", "yarn:factor=2"), rope, lengths[-1])):
        answered(model, asked[:1])  # verifies the model, once
        ours, theirs = in_turn(quick, partial(seconds, engine), partial(seconds, peer))
    hits, others = (
        [passkey.grade(one, text, context).value for one, text in zip(asked, texts, strict=True)]
        for texts in (found["engine"], found["peer"])
    )
    assert hits == others, "hits and misses differ from those of generate"
    where = ", ".join(map(str, lengths))
    what = f"passkeys at {where} tokens, 5 depths, {trials} trials, reference"
    equal = f"all {len(asked)} equal, {sum(hits):.0f} hits"
    bar = 1 / 2.03  # the ratio of the operations, counted: a haystack is read once
    yield row(what, "generate() per prompt", "s", ours, theirs, bar, equal)


def generated(model: Any, asked: Loglikelihood) -> Response:
    """Decode greedily as many tokens as the answer has, and one more."""
    prompt = torch.tensor([asked.tokens[: asked.start]])
    count = asked.length - asked.start
    limits = {"min_new_tokens": count + 1, "max_new_tokens": count + 1, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    written = model.generate(prompt, attention_mask=mask, do_sample=False, **limits)
    return Response((0.0,) * count, tuple(written[0, asked.start :].tolist()))


def memory(quick: bool) -> Iterator[Row]:
    """Measure the peak memory of a pass above the loaded model, each in a process of its own."""
    length, dtype = 256 if quick else 4096, str(dtypes()[-1])[6:]
    for vocabulary, layers, bar in ((32_000, 8, 1 / 14), (128_256, 4, 1 / 20)):
        peaks = [
            float(child("-c", f"from scripts.bench import peak; print(peak{given})")[0]) / 2**20
            for given in ((way, dtype, vocabulary, layers, length) for way in ("engine", "peer"))
        ]
        what = f"peak memory of a pass of {length} tokens, S with {layers} layers and a vocabulary"
        what += f" of {vocabulary:,}, {dtype}"
        yield row(what, LABELS, "MiB", peaks[:1], peaks[1:], bar)


def peak(way: str, dtype: str, vocabulary: int, layers: int, length: int) -> float:
    """Run one pass in this process and return its peak above the loaded model, in bytes."""
    torch.set_num_threads(1)
    model = build(getattr(torch, dtype), vocab_size=vocabulary, num_hidden_layers=layers)

    def run(length: int) -> Any:
        asked = request(model, length)
        return peer_loss(model, asked) if way == "peer" else answered(model, [asked])

    def status(field: str) -> float:
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * float(re.findall(rf"{field}:\s*(\d+)", text)[0])

    run(64)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    run(length)
    return status("VmHWM") - before


def start_up(quick: bool) -> Iterator[Row]:
    """Start commands that need no model, ten times each, beside the least that they could take."""
    with TemporaryDirectory() as folder:
        sweep = "run --scaling none --task passkey:depths=1,trials=1 --length 1x --device cpu"
        resumed = [*sweep.split(), "--out", f"{folder}/run"]
        child("-m", "ropewalk", *resumed)
        for what, words, least, bar in (
            ("ropewalk --help", ["--help"], "pass", 10.0),
            ("ropewalk run --help", ["run", "--help"], "pass", 20.0),
            ("a finished sweep, resumed", resumed, "import torch", None),
        ):
            commands = ["-m", "ropewalk", *words], ["-c", least]
            turns = range(1 if quick else 10)
            taken = [[1000 * child(*command)[1] for command in commands] for _ in turns]
            ours, theirs = zip(*taken, strict=True)
            yield row(what, f'python -c "{least}"', "ms", ours, theirs, bar)


def child(*words: str) -> tuple[str, float]:
    """Return what a Python process prints, and the CPU time that it takes, its start included."""

    def used() -> float:
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # user and system

    command, before = [sys.executable, *words], used()
    printed = subprocess.check_output(command, text=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    return printed, used() - before


def positions(quick: bool) -> Iterator[Row]:
    """Run methods that move positions, beside the same pass under plain frequencies."""
    opened = open_checkpoint("reference", dtype="float32", device="cpu")
    model, length = load_weights(opened), 128 if quick else 8 * opened.rope.trained_length
    asked = [request(model, length)]

    def run(method: str) -> None:
        with patched(model, resolve(load("method", method), opened.rope, length)):
            answered(model, asked)

    methods = ["self_extend", "dual_chunk", "dynamic_ntk:mode=per_query"]
    for method in ("none", *methods):
        run(method)  # verifies the model, once; the first pass of a process is slow
    for method in methods:
        ways = (partial(seconds, partial(run, one)) for one in (method, "none"))
        ours, theirs = in_turn(quick, *ways)
        what = f"{method}, pass of {length} tokens, reference"
        yield row(what, "the same under plain frequencies", "s", ours, theirs, 3.0)


# What ``--only`` takes, and what measures it.
ROWS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "prefix": prefix, "pass": passes, "passkeys": passkeys, "memory": memory,
    "positions": positions, "start": start_up,
}  # fmt: skip

HEAD = """# Ropewalk beside the usual way

Written by `python -m scripts.bench`: do not edit. Both sides of a row were measured in
turns on one thread, in CPU time. Figures are medians of the repeats; the ratio is
Ropewalk's figure over the peer's (less is better), with its least and greatest. The bar
is what the ratio should be at most.

"""


def markdown(rows: pd.DataFrame) -> str:
    """Return the page: what rows were measured on, and one line per row."""
    lines = [f"- {machine}\n" for machine in rows["machine"].unique()]
    lines.append("\n| | what | Ropewalk | peer | ratio | bar | equal | measured |\n")
    lines.append("|---|---|---:|---|---:|---|---|---|\n")
    records: Any = rows.itertuples()
    for one in records:
        spread = "" if one.low == one.high else f" ({one.low:.3g} – {one.high:.3g})"
        bar = f"≤ {one.bar:.3g}{', **no**' * (one.ratio > one.bar)}" if one.bar > 0 else ""
        equal = "" if pd.isna(one.equal) else one.equal
        lines.append(
            f"| {one.name} | {one.what} | {one.ours:.3g} {one.unit} | {one.peer}: {one.theirs:.3g} "
            f"{one.unit} | {one.ratio:.3g}{spread} | {bar} | {equal} | {one.date} |\n"
        )
    return HEAD + "".join(lines)


def write(rows: Sequence[Row], machine: str, folder: Path) -> list[Path]:
    """Write the page and the numbers, named for the device."""
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"\((r|tm)\)", "", machine.partition(",")[0].lower())
    numbers = folder / f"{'-'.join(re.findall(r'[a-z0-9_]+', device))}.csv"
    table = pd.DataFrame(rows).assign(date=time.strftime("%Y-%m-%d"), machine=machine)
    table.to_csv(numbers, index=False, float_format="%.6g")
    page = numbers.with_suffix(".md")
    page.write_text(markdown(pd.read_csv(numbers)), encoding="utf-8")
    return [page, numbers]


def machine() -> str:
    """Return the processor, with the instructions that decide its speed, and the versions."""
    known, having = ("amx_bf16", "avx512_bf16", "avx512_f", "avx2"), torch.cpu.get_capabilities()
    name = " ".join([named("cpu"), *[one for one in known if having.get(one)][:1]])
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}, {platform.system()}, Python {platform.python_version()}, {versions}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure the rows of the command line and write the table."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the lengths")
    parser.add_argument("--out", type=Path, help="folder of the tables; --quick needs one")
    given = parser.parse_args(words)
    if (given.quick or given.only) and given.out is None:
        parser.error("--quick and --only need --out FOLDER: they do not measure the whole table.")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    go_offline()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    rows = list[Row]()
    for name in given.only or ROWS:
        rows += [{"name": name, **measured} for measured in ROWS[name](given.quick)]
        files = write(rows, machine(), given.out or RESULTS)  # of what there is
    print(files[0].read_text(encoding="utf-8"), *files, sep="\n")


if __name__ == "__main__":
    main()
