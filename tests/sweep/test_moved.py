"""Methods that move positions, from the command line to the tables: a sweep like any other."""

from pathlib import Path

import pytest

from ropewalk.harness.runs.frame import make_frame
from tests.command_line import status
from tests.tiny import WINDOW

METHODS = ("none", "yarn", "rerope", "self_extend", "dual_chunk", "string", "lm_infinite")
LENGTHS = (WINDOW, 320)


def command(model: Path, docs: Path, out: Path, *scaling: str) -> list[str]:
    lengths = [str(length) for length in LENGTHS]
    return [
        "run", "--model", str(model), "--docs", str(docs), "--out", str(out), "--scaling",
        *(scaling or METHODS), "--task", "perplexity:tail=32", "--length", *lengths,
        "--device", "cpu",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def moved(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "moved"
    assert status(*command(tiny, docs, folder)) == 0
    return folder


def test_inside_the_window_what_changes_nothing_is_measured_once(moved):
    """At 1x Self-Extend and LM-Infinite are the plain embedding; ReRoPE and STRING are not."""
    frame = make_frame([moved])
    at = frame[frame["length"] == WINDOW].groupby("scaling")["frequencies"].first()
    assert at["none"] == at["yarn"] == at["self_extend"] == at["lm_infinite"]
    assert len({at["none"], at["rerope"], at["dual_chunk"], at["string"]}) == 4


@pytest.mark.slow
def test_half_the_distance_is_interpolation(tiny, docs, tmp_path):
    """Bands that halve every position are Position Interpolation by 2, to rounding."""
    file = tmp_path / "half.py"
    file.write_text(
        '"""Half: every distance halved."""\n'
        "import torch\n"
        "from ropewalk.scaling.types import Bands, by_distance\n"
        "from ropewalk.scaling.types import Frequencies, Rope\n"
        "def bands(rope: Rope, length: int) -> Bands:\n"
        "    half, plain = torch.arange(length) / 2, Frequencies(rope.inv_freq())\n"
        "    return Bands(length, (by_distance(length, plain, 0, query=half, key=half),))\n"
    )
    assert status(*command(tiny, docs, tmp_path / "run", "pi:factor=2", str(file))) == 0
    scores = (
        make_frame([tmp_path / "run"]).groupby(["length", "scaling"])["score"].first().unstack()
    )
    assert scores["half"].to_numpy() == pytest.approx(scores["pi:factor=2"].to_numpy(), rel=1e-5)
