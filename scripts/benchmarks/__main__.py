"""Measure the rows asked for and write the table."""

from __future__ import annotations

import platform
import re
import time
from pathlib import Path

import torch
import transformers

from benchmarks import table
from benchmarks.asked import Parser, asked, check
from benchmarks.calibration import attention_seconds, matrix_speed
from benchmarks.setting import Row, Setting
from harness.sweep.record import _processor

RESULTS = Path(__file__).resolve().parent.parent.parent / "results" / "benchmarks"
CALIBRATED = "matrix products and causal attention, in 10^9 operations a second: "


def main() -> None:
    """Run from the command line."""
    parser = Parser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ROW", help="a1 a2 b …; other rows stay"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="smoke test on an eighth of the lengths"
    )
    parser.add_argument("--out", type=Path, help="folder of the tables; --quick needs one")
    given = parser.parse_args()
    check(parser, given)
    modules = asked(parser, given)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    setting = Setting(given.device, given.repeats, given.quick)
    began, found, files = time.time(), list[Row](), list[Path]()
    machine, first = _machine(given.device), _calibrated(setting)
    for module in modules:
        for row in module.measure(setting):
            print(table.line(row), flush=True)
            found.append(row)
        of = f" for {' '.join(given.only)}" if given.only else " in all"
        last = f"at the end {_calibrated(setting)}; {time.time() - began:.0f} s{of}"
        if found:  # after every file of rows: what is measured is kept
            run = table.Measured(time.strftime("%Y-%m-%d"), machine, f"{CALIBRATED}{first}, {last}")
            files = table.write(found, run, given.out or RESULTS, _slug(_device(given.device)))
    if not found:  # the row has said what it lacks
        raise SystemExit(2)
    print(*files, sep="\n")


def _device(device: str) -> str:
    """Name the processor or the GPU, and what of a processor's instructions decides its speed."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    known = ("amx_bf16", "avx512_bf16", "avx512_f", "avx2")
    having = torch.cpu.get_capabilities()
    return " ".join([_processor(), *[name for name in known if having.get(name)][:1]])


def _slug(name: str) -> str:
    """Return a file's name: tables of several machines stand side by side."""
    return "-".join(re.findall(r"[a-z0-9_]+", re.sub(r"\((r|tm)\)", "", name.lower())))


def _machine(device: str) -> str:
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{_device(device)}, {platform.system()}, Python {platform.python_version()}, {versions}"


def _calibrated(setting: Setting) -> str:
    parts = []
    for dtype in (torch.float32, torch.bfloat16):
        length = setting.size(2048)
        fused = 2 * 8 * 64 * length**2 / attention_seconds(setting, dtype, 8, length)
        kind = str(dtype).removeprefix("torch.")
        parts.append(f"{kind} {matrix_speed(setting, dtype) / 1e9:.0f} and {fused / 1e9:.0f}")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
