"""A made-up sweep as the reports receive it: every figure can be tried without a model."""

import math
from collections.abc import Iterator, Sequence
from random import Random

import pandas as pd

from ropewalk.tasks._intervals import proportion

LENGTHS = (256, 512, 1024, 2048)
SCALINGS = ("none", "pi", "ntk", "dynamic_ntk", "yarn", "mine")
TWELVE = ("none", "native", "pi", "ntk", "dynamic_ntk", "yarn:factor=8,beta_fast=16,beta_slow=2",
          "mine", "llama3", "longrope", "rerope", "self_extend:group=8", "string")  # fmt: skip
PERPLEXITY = "perplexity:protocol=tail"
PASSKEY = "passkey:trials=4"
OUT_OF_MEMORY = ("mine", 2048)
# How much a doubling of the length beyond the window multiplies perplexity, and reach in stretches.
HABITS = {"none": (1.47, 1.5), "pi": (1.1, 3), "ntk": (1.04, 4), "yarn": (0.97, 9), "mine": (1, 7)}
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

Row = dict[str, object]


def sweep(
    *,
    models: Sequence[str] = ("toy-7m",),
    scalings: Sequence[str] = SCALINGS,
    lengths: Sequence[int] = LENGTHS,
    trained_length: int = 256,
    gone: tuple[str, int] = OUT_OF_MEMORY,
) -> pd.DataFrame:
    """Return the tidy frame of a sweep in which ``ntk`` and ``dynamic_ntk`` coincide.

    The scaling and length ``gone`` ran out of memory in perplexity.
    """
    rows: list[Row] = []
    for model in models:
        for task, samples in ((PERPLEXITY, _documents), (PASSKEY, _trials)):
            for scaling in scalings:
                for length in lengths:
                    cell = _cell(model, task, scaling, length, trained_length)
                    if task == PERPLEXITY and (scaling, length) == gone:
                        rows.append({**cell, "status": "out_of_memory"})
                    else:
                        rows += [{**cell, **sample} for sample in samples(cell)]
    return pd.DataFrame(rows)


def _cell(model: str, task: str, scaling: str, length: int, trained_length: int) -> Row:
    name = scaling.split(":")[0].removeprefix("dynamic_") if length > trained_length else "none"
    metric = "perplexity" if task == PERPLEXITY else "accuracy"
    nothing = dict.fromkeys(("value", "weight", "seconds", "score", "low", "high", "n"), math.nan)
    return {
        "run": "reference", "model": model, "trained_length": trained_length, "scaling": scaling,
        "frequencies": f"{name}/{length}", "task": task, "metric": metric, "length": length,
        "unit": "", "status": "not_measured", **nothing,
    }  # fmt: skip


def _habit(cell: Row) -> tuple[float, float, float, Random]:
    """Return growth, reach, stretch and a source of chance that coinciding methods share."""
    name = str(cell["frequencies"]).split("/")[0]
    growth, reach = HABITS.get(name, (1 + len(name) / 50, len(name) / 2))
    stretch = int(str(cell["length"])) / int(str(cell["trained_length"]))
    return growth, reach, stretch, Random(f"{cell['frequencies']} {cell['model']} {cell['task']}")


def _documents(cell: Row) -> Iterator[Row]:
    """Give every document a loss of its own, which all methods share, and some chance."""
    growth, _, stretch, draw = _habit(cell)
    centre = math.log(28 * growth ** math.log2(max(stretch, 0.25)) * draw.uniform(0.98, 1.02))
    own = [Random(f"document {document}").gauss(0, 0.2) for document in range(24)]
    losses = [64 * (centre + hardness + draw.gauss(0, 0.04)) for hardness in own]
    score = math.exp(math.fsum(losses) / (24 * 64))
    known = {"score": score, "low": score * 0.93, "high": score * 1.08, "n": 24.0}
    for document, nats in enumerate(losses):
        unit = f"document {document}"
        yield {**known, "unit": unit, "status": "ok", "value": nats, "weight": 64.0,
               "seconds": 0.1, "protocol": "tail"}  # fmt: skip


def _trials(cell: Row) -> Iterator[Row]:
    _, reach, stretch, draw = _habit(cell)
    samples: list[Row] = []
    for depth in DEPTHS:
        for trial in range(4):
            odds = 1 / (1 + math.exp(min(3 * (stretch - reach * (0.7 + 0.6 * depth)), 50)))
            samples.append({
                "unit": f"depth {depth:.2f} trial {trial}", "status": "ok", "weight": 1.0,
                "value": float(draw.random() < odds), "seconds": 0.1, "depth": depth,
                "trial": float(trial), "key": "12345",
            })  # fmt: skip
    hits, n = sum(sample["value"] == 1 for sample in samples), len(samples)
    low, high = proportion(hits, n)
    known = {"score": hits / n, "low": low, "high": high, "n": float(n)}
    for sample in samples:
        yield {**sample, **known}


def asked(
    task: str, scaling: str, length: int, values: Sequence[float | None],
    *, part: str | None = None, status: str = "not_measured",
) -> list[Row]:  # fmt: skip
    """Return a cell of retrieval, a window of 1024, of which trials without a value were lost.

    Like those of a run, they say nothing of themselves but their question and ``status``.
    """
    known = [value for value in values if value is not None]
    score = sum(known) / len(known) if known else math.nan
    low, high = proportion(sum(known), len(known)) if known else (math.nan, math.nan)
    head: Row = {
        "run": "a", "model": "m", "trained_length": 1024, "scaling": scaling, "length": length,
        "frequencies": f"{scaling}/{length}", "task": task, "metric": "accuracy", "score": score,
        "low": low, "high": high, "n": float(len(known)),
    }  # fmt: skip
    rows: list[Row] = []
    for trial, value in enumerate(values):
        named = {"question": f"{task} {length} {part} {trial}"}
        told = {"unit": f"{part} {trial}", "weight": 1.0, **({"part": part} if part else {})}
        found = {"status": status} if value is None else {"status": "ok", "value": value, **told}
        rows.append({**head, **named, **found})
    return rows
