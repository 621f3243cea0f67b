"""How large a plan may be, and how much memory it may take: what is more is refused, and soon."""

from pathlib import Path

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.runs.store import read_samples
from ropewalk.harness.sweep.memory import estimate
from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.spec import parse


def test_cells_have_a_bound():
    grid = tuple(f"pi:factor={factor}" for factor in range(1, 1001))
    lengths = tuple(str(length) for length in range(1, 101))
    with pytest.raises(UserError, match="1,000 methods x 2 tasks x 100 lengths are 200,000 cells"):
        make_plan(parse(None, {"model": "absent", "scaling": grid, "length": lengths}))


def sweep(model: Path, docs: Path) -> tuple[str, ...]:
    """Return the words of a sweep over one length beyond the window."""
    return ("run", "--model", str(model), "--docs", str(docs), "--length", "8x")


@pytest.mark.slow
def test_less_memory_gives_the_same_numbers(tiny, docs, tmp_path, ropewalk):
    words = (*sweep(tiny, docs), "--scaling", "none", "pi")
    values = []
    for name, limit in (("free", ()), ("little", ("--max-memory", "4MiB"))):
        assert ropewalk(*words, *limit, "--out", tmp_path / name).status == 0
        samples = read_samples(tmp_path / name)
        values.append({key: sample["value"] for key, sample in samples.items()})
    assert values[0] == values[1]


def test_too_little_memory_is_refused_before_weights_are_read(tiny, docs, tmp_path, rejected):
    words = ("--max-memory", "100KB", "--out", tmp_path, "--dry-run")
    assert (
        "--max-memory 97.7KiB is too little: the weights and the longest question need"
        in rejected(*sweep(tiny, docs), *words)
    )


def test_loading_in_another_dtype_counts_the_files_beside_the_weights(docs):
    """Of a bfloat16 file read as float32 both are in memory; of equal dtypes only the weights."""
    at_peak = {}
    for dtype in ("float32", "bfloat16"):
        tail = {"length": "64", "scaling": "none", "task": "perplexity:tail=16", "dtype": dtype}
        at_peak[dtype] = estimate(make_plan(parse(None, {"docs": str(docs), **tail})), set())
    parameters = at_peak["float32"].parameters
    assert at_peak["float32"].bytes == 6 * parameters
    assert 2 * parameters < at_peak["bfloat16"].bytes < 4 * parameters
