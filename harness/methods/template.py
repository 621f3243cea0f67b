"""Write the first file of a user's plug-in: it runs as it is."""

from __future__ import annotations

from keyword import iskeyword
from pathlib import Path

from harness.errors import UserError
from harness.names import article
from harness.plugins import names

FREQUENCIES = '''\
"""{name}: what it does and where it comes from, in one line."""

from scaling import Frequencies, Rope


def frequencies(rope: Rope, length: int, *, strength: float = 1.0) -> Frequencies:
    """Return one frequency per channel pair: float32, radians per token, fastest first.

    Here NTK-aware: a base that grows with the stretch, max(1, length / trained_length). The same
    rope and length must give the same bits. Keyword-only parameters are the options of the method.
    """
    growth = rope.stretch(length) ** (strength * rope.rotary_dim / (rope.rotary_dim - 2))
    return Frequencies(rope.inv_freq(rope.base * growth))
'''

BANDS = '''\
"""{name}: what it does and where it comes from, in one line."""

import torch

from scaling import Bands, Frequencies, Rope, by_distance


def bands(rope: Rope, length: int, *, window: int = 64) -> Bands:
    """Return which pairs of query and key are rotated to which positions (tokens).

    Here ReRoPE: true positions up to a distance of window, no larger ones beyond. No pair may be in
    two bands, and every query must meet a key. Keyword-only parameters are the options.
    """
    plain = Frequencies(rope.inv_freq())
    query, key = torch.full((length,), window), torch.zeros(length)
    near = by_distance(length, plain, 0, window)
    far = by_distance(length, plain, window, query=query, key=key)
    return Bands(length, (near, far))
'''

TASK = '''\
"""{name}: what it measures and where it comes from, in one line."""

from collections.abc import Iterator, Sequence

from tasks import Loglikelihood, LoglikelihoodResponse, Sample, Score, TaskContext

VERSION = 1  # raise it when the same answer would get another number
METRIC = "accuracy"


def ask(
    context: TaskContext, lengths: Sequence[int], *, seed: int = 0, trials: int = 4
) -> Iterator[Loglikelihood]:
    """Yield the requests of every length: inputs in tokens, the targets from ``start`` on.

    Here the next token of a document after more and more context: the same targets at every length.
    Keyword-only parameters are the options; ``seed`` is that of the sweep. Raise ValueError, in a
    sentence, where no request is possible.
    """
    opening, longest = context.opening, max(lengths)
    fitting = [p for p in context.documents() if len(p.tokens) >= longest + trials]
    if trials < 1:
        raise ValueError(f"trials must be 1 or more, got {{trials}}")
    if not fitting:
        raise ValueError(f"no document has {{longest + trials}} tokens")
    for length in lengths:
        for passage in fitting:
            for trial in range(trials):
                end = longest + trial
                tokens = (*opening, *passage.tokens[end - length + len(opening) : end])
                name = f"{{passage.name}} {{trial}}"
                yield Loglikelihood(tokens, length - 1, doc_id=name)


def grade(
    request: Loglikelihood, response: LoglikelihoodResponse, context: TaskContext
) -> Sample:
    """Return a value over a weight of one: here 1 where greedy decoding gives the target."""
    hit = response.argmax[0] == request.tokens[request.start]
    return Sample(request.doc_id, float(hit), 1, {{"nats": response.nll[0]}})


def score(samples: Sequence[Sample]) -> Score:
    """Return the number of a cell, with a 95 % interval (None where there is none) and n."""
    found = sum(sample.value for sample in samples)
    return Score(found / len(samples), None, None, len(samples))
'''

REPORT = '''\
"""{name}: what it shows, in one line."""

import pandas as pd


def make(frame: pd.DataFrame, *, digits: int = 1) -> pd.DataFrame:
    """Return a table, or a matplotlib Figure, of samples: a row each, with its cell's score.

    Here the time that every cell took. Keyword-only parameters are the options. Raise ValueError,
    in a sentence, for a frame with nothing to show.
    """
    known = frame[frame["status"] == "ok"]
    if known.empty:
        raise ValueError("nothing was measured")
    cells = known.groupby(["model", "task", "scaling", "length"], sort=False)
    table = cells.agg(score=("score", "first"), seconds=("seconds", "sum")).reset_index()
    return table.round({{"seconds": digits}})


def words(table: pd.DataFrame) -> list[str]:
    """Return sentences on the table, to be printed below it."""
    slowest = table.loc[table["seconds"].idxmax()]
    return [f"{{slowest['scaling']}} at {{slowest['length']}} tokens took the longest."]
'''

ENCODING = '''\
"""{name}: what it adds and where it comes from, in one line."""

from typing import Any

import torch
from torch import nn

from harness.encodings import Places, Shape


class Encoding(nn.Module):
    """Here scores fall by the square root of the distance, at a learned rate a head.

    It holds parameters and persistent buffers alone. Other methods that it may have: inputs, turn,
    values, attend. Keyword-only parameters are the options.
    """

    def __init__(self, shape: Shape, *, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((shape.heads, 1, 1), rate))

    def scores(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, places: Places
    ) -> torch.Tensor:
        """Return what is added to the scaled scores, (heads, queries, keys)."""
        return -self.rate * places.distance**0.5
'''

TEXTS = {
    "method": FREQUENCIES,
    "bands": BANDS,
    "task": TASK,
    "report": REPORT,
    "encoding": ENCODING,
}


def begin(what: str, name: str, folder: Path) -> Path:
    """Write NAME.py, a plug-in of a kind, or bands; raise UserError for a bad name."""
    kind = "method" if what == "bands" else what
    if not name.isidentifier() or iskeyword(name):
        raise UserError(
            f"{name!r} is not a name for {article(kind)}; write letters, digits and _, "
            f"as in my_{kind}."
        )
    if name in names(kind):
        raise UserError(f"{article(kind)} of Ropewalk is called {name!r}; choose another name.")
    file = folder / f"{name}.py"
    if file.exists():
        raise UserError(
            f"{file} exists already; choose another name, or another folder with --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(TEXTS[what].format(name=name))
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None
    return file
