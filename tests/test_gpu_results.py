"""What a GPU computed, in ``results/benchmarks/h100``, is computed here again on a CPU."""

from pathlib import Path

import pytest

import ropewalk as rw

GPU = Path(__file__).parents[1] / "results" / "benchmarks" / "h100"


@pytest.mark.slow
def test_an_h100_gives_the_answers_of_a_cpu_and_their_probabilities(tmp_path):
    """In float32, also of methods that move positions; 15 passkeys a length, some not found."""
    names = ["none", "yarn", "self_extend", "dual_chunk"]
    gpu = rw.frame(GPU).query("scaling in @names")
    assert (gpu["found"].value_counts() > 20).all()
    lengths = ("512", "1024")
    ran = rw.run("reference", scaling=names, task="passkey:trials=3", length=lengths, out=tmp_path)
    both = gpu.merge(rw.frame(ran.folders[0]), on=["scaling", "length", "unit"])
    assert len(both) == len(gpu) == 120
    assert both["found_x"].eq(both["found_y"]).all()
    assert (both["logprob_x"] - both["logprob_y"]).abs().max() < 1e-4
