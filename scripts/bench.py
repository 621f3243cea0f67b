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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention

from ropewalk.harness.data.corpus import make_context
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.sweep.record import named
from ropewalk.tasks import passkey
from ropewalk.tasks.types import Loglikelihood, LoglikelihoodResponse
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
)

LABELS = "transformers' forward with labels"
Way = Callable[[], tuple[float, Any]]  # measures once; returns the figure and a result


def dtypes() -> tuple[torch.dtype, ...]:
    """Return the types to measure: bfloat16 only where the processor has instructions for it."""
    return (torch.float32, *[torch.bfloat16] * torch.ops.mkldnn._is_mkldnn_bf16_supported())


def in_turn(quick: bool, *ways: Way, repeats: int = 3) -> tuple[list[list[float]], list[Any]]:
    """Return the figures of each way, repeat by repeat, and the last result of each."""
    turns = [[way() for way in ways] for _ in range(1 if quick else repeats)]
    figures = [[turn[index][0] for turn in turns] for index in range(len(ways))]
    return figures, [result for _, result in turns[-1]]


def row(
    what: str, peer: str, unit: str, figures: Sequence[Sequence[float]],
    bar: float | None = None, equal: str = "",
) -> Row:  # fmt: skip
    """Return a line of the table, from the figures of all repeats on both sides.

    ``bar`` is what the ratio should be at most, ``equal`` how the results of both sides differ.
    """
    ratios = [ours / theirs for ours, theirs in zip(*figures, strict=True)]
    ours, theirs, ratio = map(statistics.median, (*figures, ratios))
    return {
        "what": what, "peer": peer, "unit": unit, "ours": ours, "theirs": theirs, "ratio": ratio,
        "low": min(ratios), "high": max(ratios), "bar": bar, "equal": equal,
    }  # fmt: skip


@torch.no_grad()
def peer_losses(model: Any, requests: Sequence[Loglikelihood]) -> list[float]:
    """Return mean losses as peers compute them: a forward with labels, full logits and a cache."""
    texts = [torch.tensor([request.tokens]) for request in requests]
    return [float(model(input_ids=ids, labels=ids).loss) for ids in texts]


def engine_losses(model: Any, requests: Sequence[Loglikelihood]) -> list[float]:
    """Return the mean losses that the engine computes under plain frequencies."""
    plain = rotation_of(model, "none", requests[-1].length)
    return [statistics.fmean(reply.nll) for reply in replies(model, plain, requests)]


def compare(
    quick: bool, model: Any, lengths: Sequence[int], *others: Way
) -> tuple[list[list[float]], str]:
    """Time the engine, one forward with labels per length, and others.

    The losses must be equal to rounding; the text returned says how much they differ.
    """
    requests = [one_pass(model, length, length - 1) for length in lengths]
    ways = [partial(work, model, requests) for work in (engine_losses, peer_losses)]
    ways[0]()  # verifies the model, once
    timers = [partial(timed, way) for way in ways]
    figures, (ours, theirs, *_) = in_turn(quick, *timers, *others)
    difference = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert difference <= (1e-5 if model.dtype == torch.float32 else 2e-3), difference
    return figures, f"losses within {difference:.0e}"


def kernel_seconds(quick: bool, model: Any, length: int) -> tuple[float, None]:
    """Return what a pass takes at the speeds of one matrix product and of causal attention."""
    draw = partial(torch.randn, dtype=model.dtype)
    rows = 128 if quick else 2048
    one, other, (query, key, value) = draw(rows, 512), draw(512, 1408), draw(3, 1, 8, length, 64)
    attend = partial(scaled_dot_product_attention, query, key, value, is_causal=True)

    def each(kernel: Callable[[], object], times: int) -> float:
        turns = range(1 if quick else 5)
        taken = [timed(lambda: [kernel() for _ in range(times)])[0] for _ in turns]
        return statistics.median(taken) / times

    products, attention = operations(model.config, length)
    speed = 2 * rows * 512 * 1408 / each(lambda: torch.mm(one, other), 2 if quick else 40)
    attended = 2 * 8 * 64 * length * (length + 1) / each(attend, 2)
    return products / speed + attention / attended, None


def prefix(quick: bool) -> Iterator[Row]:
    """Score the first tokens of a document at eight lengths."""
    for dtype in dtypes():
        model, longest = build("S", dtype), 256 if quick else 4096
        lengths = [longest * step // 8 for step in range(1, 9)]
        figures, equal = compare(quick, model, lengths)
        costs = [sum(operations(model.config, n)) for n in lengths]
        what = f"prefix curve of 8 lengths to {longest}, S, {str(dtype)[6:]}"
        bar = costs[-1] / sum(costs)  # every token once
        yield row(what, f"{LABELS}, per length", "s", figures, bar, equal)


def passes(quick: bool) -> Iterator[Row]:
    """Score a text in one pass, beside transformers and beside the operations alone."""
    for dtype in dtypes():
        length, share = (2048, 0.80) if dtype == torch.float32 else (4096, 0.65)
        length, model = length // 16 if quick else length, build("S", dtype)
        kernels = partial(kernel_seconds, quick, model, length)
        (ours, theirs, alone), equal = compare(quick, model, [length], kernels)
        what = f"pass of {length} tokens, S, {str(dtype)[6:]}"
        yield row(what, LABELS, "s", (ours, theirs), 1.0, equal)
        yield row(what, "its matrix products and attention", "s", (ours, alone), 1 / share)


def passkeys(quick: bool) -> Iterator[Row]:
    """Measure a passkey grid of the reference model under YaRN."""
    opened = open_checkpoint("reference", dtype="float32", device="cpu")
    model, rope = load_weights(opened), opened.rope
    context = make_context(opened.tokenizer, list, rope.trained_length)
    lengths, trials = ([512], 2) if quick else ([512, 1024, 2048], 4)
    asked = list(passkey.ask(context, lengths, depths=5, trials=trials))
    # A factor at which some keys are recovered and some are missed.
    rotation = rotation_of(model, "yarn:factor=2", lengths[-1], rope)
    engine, peer = partial(replies, model, rotation), partial(generated, model, rotation)
    engine(asked[:1])  # verifies the model, once
    ways = [partial(timed, partial(work, asked)) for work in (engine, peer)]
    figures, results = in_turn(quick, *ways)
    hits, others = (
        [passkey.grade(one, text, context).value for one, text in zip(asked, texts, strict=True)]
        for texts in results
    )
    assert hits == others, "hits and misses differ from those of generate"
    where = ", ".join(map(str, lengths))
    what = f"passkeys at {where} tokens, 5 depths, {trials} trials, reference"
    equal = f"all {len(asked)} equal, {sum(hits):.0f} hits"
    bar = 1 / 2.03  # the ratio of the operations, counted: a haystack is read once
    yield row(what, "generate() per prompt", "s", figures, bar, equal)


def generated(
    model: Any, rotation: Any, requests: Sequence[Loglikelihood]
) -> list[LoglikelihoodResponse]:
    """Decode greedily as many tokens as each answer has, and one more."""
    texts = []
    with patched(model, rotation):
        for asked in requests:
            prompt, count = torch.tensor([asked.tokens[: asked.start]]), asked.length - asked.start
            texts.append(
                model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                    min_new_tokens=count + 1, max_new_tokens=count + 1, pad_token_id=0,
                )[0, asked.start :].tolist()
            )  # fmt: skip
    return [LoglikelihoodResponse((0.0,) * (len(text) - 1), tuple(text)) for text in texts]


def memory(quick: bool) -> Iterator[Row]:
    """Measure the peak memory of a pass above the loaded model, each in a process of its own."""
    length, dtype = 256 if quick else 4096, str(dtypes()[-1])[6:]
    for vocabulary, layers, bar in ((32_000, 8, 1 / 14), (128_256, 4, 1 / 20)):
        peaks = []
        for way in ("engine", "peer"):
            given = (way, dtype, vocabulary, layers, length)
            _, printed = child("-c", f"from scripts.bench import peak; print(peak{given})")
            peaks.append([float(printed)])
        what = f"peak memory of a pass of {length} tokens, S with {layers} layers and a vocabulary"
        what += f" of {vocabulary:,}, {dtype}"
        yield row(what, LABELS, "MiB", peaks, bar)


def peak(way: str, dtype: str, vocabulary: int, layers: int, length: int) -> float:
    """Compute losses in this process and return its peak above the loaded model, in MiB."""
    torch.set_num_threads(1)
    model = build("S", getattr(torch, dtype), vocab_size=vocabulary, num_hidden_layers=layers)
    losses = engine_losses if way == "engine" else peer_losses

    def status(field: str) -> float:
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return float(re.findall(rf"{field}:\s*(\d+)", text)[0]) / 1024

    losses(model, [one_pass(model, 64, 63)])
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    losses(model, [one_pass(model, length, length - 1)])
    return status("VmHWM") - before


def start_up(quick: bool) -> Iterator[Row]:
    """Start commands that need no model, ten times each, beside the least that they could take."""
    with TemporaryDirectory() as folder:
        sweep = "run --scaling none --task passkey:depths=1,trials=1 --length 1x --device cpu"
        resumed = f"{sweep} --out {folder}/run"
        child("-m", "ropewalk", *resumed.split())
        for what, words, least, bar in (
            ("ropewalk --help", "--help", "pass", 10.0),
            ("ropewalk run --help", "run --help", "pass", 20.0),
            ("a finished sweep, resumed", resumed, "import torch", None),
        ):
            commands = ["-m", "ropewalk", *words.split()], ["-c", least]
            ways = [partial(child, *command) for command in commands]
            figures, _ = in_turn(quick, *ways, repeats=10)
            yield row(what, f'python -c "{least}"', "s", figures, bar)


def child(*words: str) -> tuple[float, str]:
    """Return the CPU time that a Python process takes, its start included, and what it prints."""

    def used() -> float:
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # user and system

    command, before = [sys.executable, *words], used()
    printed = subprocess.check_output(command, text=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    return used() - before, printed


def positions(quick: bool) -> Iterator[Row]:
    """Run methods that move positions, beside the same pass under plain frequencies."""
    opened = open_checkpoint("reference", dtype="float32", device="cpu")
    model, length = load_weights(opened), 128 if quick else 8 * opened.rope.trained_length
    asked = [one_pass(model, length, length - 1)]
    methods = ["none", "self_extend", "dual_chunk", "dynamic_ntk:mode=per_query"]
    rotations = [rotation_of(model, name, length, opened.rope) for name in methods]
    plain, *moved = (partial(replies, model, rotation, asked) for rotation in rotations)
    for work in (plain, *moved):
        work()  # verifies the model, once; the first pass of a process is slow
    for method, work in zip(methods[1:], moved, strict=True):
        figures, _ = in_turn(quick, partial(timed, work), partial(timed, plain))
        what = f"{method}, pass of {length} tokens, reference"
        yield row(what, "the same under plain frequencies", "s", figures, 3.0)


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


def machine() -> str:
    """Return the processor, with the instructions that decide its speed, and the versions."""
    known, having = ("amx_bf16", "avx512_bf16", "avx512_f", "avx2"), torch.cpu.get_capabilities()
    name = " ".join([named("cpu"), *[one for one in known if having.get(one)][:1]])
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}, {platform.system()}, Python {platform.python_version()}, {versions}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure the rows of the command line and write the table, named for the device."""
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
    folder, about = given.out or RESULTS, {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"\((r|tm)\)", "", about["machine"].partition(",")[0].lower())
    numbers = folder / f"{'-'.join(re.findall(r'[a-z0-9_]+', device))}.csv"
    rows = list[Row]()
    for name in given.only or ROWS:
        rows += [{"name": name, **measured, **about} for measured in ROWS[name](given.quick)]
        pd.DataFrame(rows).to_csv(numbers, index=False, float_format="%.6g")  # what there is
    page = numbers.with_suffix(".md")
    page.write_text(markdown(pd.read_csv(numbers)), encoding="utf-8")
    print(page.read_text(encoding="utf-8"), page, numbers, sep="\n")


if __name__ == "__main__":
    main()
